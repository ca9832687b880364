package physical

import (
	"context"
	"log/slog"
	"os"

	"mulligan/errs"
	"mulligan/failpoint"
	"mulligan/snap"
	"mulligan/snap/postgres/physical/asowner"
	"mulligan/snap/postgres/physical/pgserver"
)

// raws are copies of whatever lay where the data folder should be, byte by byte: the snapshots of a cluster whose server
// cannot be started. They are hashed, and never read as a cluster.
type raws struct {
	store     *store
	server    *server
	failpoint failpoint.Hook
	log       *slog.Logger
}

// copy copies whatever lies at from into the store, or leaves nothing there.
func (rs *raws) copy(ctx context.Context, from, to string) (c asowner.RawCopied, err error) {
	if info, e := os.Lstat(from); e == nil && info.IsDir() {
		err = rs.store.room(ctx, from)
	}
	if err == nil {
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

// verify checks what is stored of a snapshot that was kept raw.
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

// fork makes a copy of a snapshot that was kept raw, which is to change places
// with the live folder.
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

// moved reports whether what lies where the data folder should be is no longer
// what was kept raw.
func (rs *raws) moved(ctx context.Context, r *raw) (bool, error) {
	if running, err := pgserver.InUse(rs.server.DataDir); err != nil || running {
		return true, err
	}
	now, err := asowner.Stamp.Call(ctx, rs.store.owner, rs.server.DataDir)
	return now != r.Stamp, err
}

// start starts the server in files that were kept raw, if one ran in them and can.
func (rs *raws) start(ctx context.Context, r *raw) error {
	if !r.Ran {
		return nil
	}
	err := rs.server.Start(ctx)
	if err != nil && ctx.Err() == nil {
		rs.log.Warn("a server that ran before its files were kept cannot be started", "cluster", rs.server.name, "err", err)
		err = nil
	}
	return err
}

// proof compares what lies where the data folder should be with r.
func (rs *raws) proof(ctx context.Context, p *plan, r *raw, proof *snap.Proof) (err error) {
	proof.Post = p.Read // before the server was started
	if proof.Post.IsZero() {
		proof.Post, err = asowner.HashRaw.Call(ctx, rs.store.owner, rs.server.DataDir)
	}
	proof.Want, proof.Match = r.Hash, proof.Post == r.Hash
	proof.Notes = []string{"Compared: the names, modes and contents of all files where the data folder should be. The snapshot was kept without being read."}
	return err
}
