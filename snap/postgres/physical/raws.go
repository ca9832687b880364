package physical

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"

	"mulligan/errs"
	"mulligan/failpoint"
	"mulligan/snap"
	"mulligan/snap/postgres/physical/asowner"
	"mulligan/snap/postgres/physical/pgserver"
)

// raws handles raw snapshots: byte-by-byte copies of everything in the place of the data folder, made when the server of a
// cluster cannot be started. The copies are hashed, and never interpreted as a cluster.
type raws struct {
	store     *store
	records   *records
	server    *server
	failpoint failpoint.Hook
	log       *slog.Logger
}

// room returns an error unless a copy of everything at from fits into the store.
func (rs *raws) room(ctx context.Context, from string) error {
	if info, err := os.Lstat(from); err != nil || !info.IsDir() {
		return nil
	}
	return rs.store.room(ctx, from)
}

// copy copies everything at from to the path to in the store. On an error it removes to.
func (rs *raws) copy(ctx context.Context, from, to string) (c asowner.RawCopied, err error) {
	if err = rs.room(ctx, from); err == nil {
		err = rs.failpoint.At("raw: copy")
	}
	if err == nil {
		c, err = asowner.CopyRaw.Call(ctx, rs.store.owner, asowner.Pair{A: from, B: to})
	}
	if err != nil {
		return c, errs.Also(err, rs.store.remove(ctx, to))
	}
	return c, nil
}

// verify checks the stored files of a raw snapshot.
func (rs *raws) verify(ctx context.Context, r raw, depth snap.Depth) error {
	if r.Dir == "" {
		return nil
	}
	damaged := errs.New(errs.Corrupt, "", "the kept files of snapshot %s are damaged", r.ID).WithHint("use another checkpoint")
	if n, err := asowner.Inode(rs.store.path("raws", r.Dir)); err != nil || n == 0 {
		return errs.Also(damaged, err)
	}
	if depth != snap.Full {
		return nil
	}
	now, err := asowner.HashRaw.Call(ctx, rs.store.owner, rs.store.path("raws", r.Dir))
	if err == nil && now != r.Hash {
		err = damaged
	}
	return err
}

// fork makes a copy of a raw snapshot, which a restore exchanges with the live folder.
func (rs *raws) fork(ctx context.Context, r raw, fk *fork) error {
	if r.Dir == "" {
		return nil
	}
	dir := rs.store.path("forks", fk.Dir)
	c, err := rs.copy(ctx, rs.store.path("raws", r.Dir), dir)
	if err != nil {
		return err
	}
	if c.Hash != r.Hash {
		return errs.New(errs.Corrupt, "", "the kept files of snapshot %s are damaged", r.ID).WithHint("use another checkpoint")
	}
	fk.Inode, err = asowner.Inode(dir)
	return err
}

// moved reports whether the content in the place of the data folder differs from the raw snapshot r, or is in use.
func (rs *raws) moved(ctx context.Context, r *raw) (bool, error) {
	if running, err := pgserver.InUse(rs.server.DataDir); err != nil || running {
		return true, err
	}
	now, err := asowner.Stamp.Call(ctx, rs.store.owner, rs.server.DataDir)
	return now != r.Stamp, err
}

// haltedRecord is the record of the raw snapshot for which a running server was stopped. It exists until the server is started again,
// or until the plan of a restore has the raw snapshot as its base: then the plan tells that the server is to be started again.
const haltedRecord = "halted"

// restart starts a server that was stopped for the raw snapshot id, if no restore has begun since. "" is any raw snapshot.
func (rs *raws) restart(ctx context.Context, id snap.SnapshotID) error {
	var r raw
	err := rs.records.get(".", haltedRecord, &r)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case errs.KindOf(err) == errs.Corrupt: // only a server that ran is recorded
		r = raw{ID: id, Ran: true}
	case err != nil:
		return err
	}
	if id != "" && r.ID != id {
		return nil
	}
	return rs.start(ctx, &r)
}

// start starts the server in the files of a raw snapshot if one ran in them. A server that cannot be started is not an error.
func (rs *raws) start(ctx context.Context, r *raw) error {
	if !r.Ran {
		return nil
	}
	err := rs.server.Start(ctx)
	if err != nil && ctx.Err() == nil {
		rs.log.Warn("a server that ran before its files were kept cannot be started", "cluster", rs.server.name, "err", err)
		err = nil
	}
	if err == nil {
		err = rs.records.drop(".", haltedRecord)
	}
	return err
}

// proof compares the content in the place of the data folder with r.
func (rs *raws) proof(ctx context.Context, p *plan, r *raw, proof *snap.Proof) (err error) {
	proof.Post = p.Read // hash from before the server was started
	if proof.Post.IsZero() {
		proof.Post, err = asowner.HashRaw.Call(ctx, rs.store.owner, rs.server.DataDir)
	}
	proof.Want, proof.Match = r.Hash, proof.Post == r.Hash
	proof.Notes = []string{"Compared: the names, modes and contents of all files where the data folder should be. The snapshot was kept without being read."}
	return err
}
