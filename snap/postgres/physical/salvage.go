package physical

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"time"

	"mulligan/errs"
	"mulligan/privsep"
	"mulligan/snap"
	"mulligan/snap/database"
	"mulligan/snap/postgres/physical/asowner"
	"mulligan/snap/postgres/physical/pgserver"
)

// Salvage stops the server and keeps what lies where the data folder should be, byte
// by byte: a folder that no server can be started in, a file, a link, or nothing.
func (d *Driver) Salvage(ctx context.Context, req snap.CaptureRequest) (snap.Snapshot, error) {
	const op = "keep the files of cluster"
	if !database.ValidName(string(req.ID)) {
		return snap.Snapshot{}, errs.New(errs.Invalid, op, "%q is not a snapshot id", req.ID)
	}
	var r raw
	err := d.Do(ctx, op, func() (err error) {
		r, err = d.salvage(ctx, req)
		return err
	})
	if err != nil {
		return snap.Snapshot{}, err
	}
	return snap.Snapshot{ID: r.ID, Driver: driverName, Hash: r.Hash, Quiesced: true, Raw: true, Created: r.Created, Warnings: r.Warnings}, nil
}

func (d *Driver) salvage(ctx context.Context, req snap.CaptureRequest) (r raw, err error) {
	d.hangUp()
	r = raw{ID: req.ID, Quiesced: true, Created: time.Now().UTC(), Ran: d.server.Status(ctx, d.cfg.DataDir) != ""}
	if err := d.cfg.Failpoint.At("salvage: stop"); err != nil {
		return r, err
	}
	if err := d.server.Stop(ctx); err != nil {
		return r, err
	}
	dir := randomHex(8)
	got, err := d.copyRaw(ctx, d.cfg.DataDir, d.store.path("raws", dir))
	if err != nil {
		return r, err
	}
	r.Hash, r.Stamp, r.Warnings = got.Hash, got.Stamp, got.Warnings()
	if got.There {
		r.Dir = dir
	}
	if err := errors.Join(ctx.Err(), d.cfg.Failpoint.At("salvage: record")); err != nil {
		return r, err
	}
	return r, d.records.put("raws", string(r.ID), r)
}

// copyRaw copies whatever lies at from into the store, or leaves nothing there.
func (d *Driver) copyRaw(ctx context.Context, from, to string) (c asowner.RawCopied, err error) {
	if info, e := os.Lstat(from); e == nil && info.IsDir() {
		err = d.store.room(ctx, from)
	}
	if err == nil {
		err = d.cfg.Failpoint.At("raw: copy")
	}
	if err == nil {
		c, err = asowner.CopyRaw.Call(ctx, d.owner, asowner.Pair{A: from, B: to})
	}
	if err != nil {
		return c, errs.Also(err, d.store.remove(ctx, to))
	}
	return c, nil
}

// verifyRaw checks what is stored of a snapshot that was kept raw.
func (d *Driver) verifyRaw(ctx context.Context, r raw, depth snap.Depth) error {
	if r.Dir == "" {
		return nil
	}
	damaged := errs.New(errs.Corrupt, "", "the kept files of snapshot %s are damaged", r.ID).WithHint("use another checkpoint")
	if n, err := asowner.Inode(d.store.path("raws", r.Dir)); err != nil || n == 0 {
		return errs.Also(damaged, err)
	}
	if depth != snap.Full {
		return nil
	}
	now, err := asowner.HashRaw.Call(ctx, d.owner, d.store.path("raws", r.Dir))
	if err == nil && now != r.Hash {
		err = damaged
	}
	return err
}

// rawFork makes a copy of a snapshot that was kept raw, which is to change places
// with the live folder.
func (d *Driver) rawFork(ctx context.Context, r raw, fk *fork) error {
	if r.Dir == "" {
		return nil
	}
	dir := d.store.path("forks", fk.Dir)
	c, err := d.copyRaw(ctx, d.store.path("raws", r.Dir), dir)
	if err != nil {
		return err
	}
	if c.Hash != r.Hash {
		return errs.New(errs.Corrupt, "", "the kept files of snapshot %s are damaged", r.ID).WithHint("use another checkpoint")
	}
	fk.Inode, err = asowner.Inode(dir)
	return err
}

// movedRaw reports whether what lies where the data folder should be is no longer
// what was kept raw.
func (d *Driver) movedRaw(ctx context.Context, r *raw) (bool, error) {
	if running, err := pgserver.InUse(d.cfg.DataDir); err != nil || running {
		return true, err
	}
	now, err := asowner.Stamp.Call(ctx, d.owner, d.cfg.DataDir)
	return now != r.Stamp, err
}

// bringUp starts the server after what a snapshot holds has become live. Files that
// were kept raw are left as they are, unless a server ran in them: then they are
// hashed first, and it is started if that can be.
func (d *Driver) bringUp(ctx context.Context, p *plan, r *raw) error {
	if r == nil {
		return d.server.Start(ctx)
	}
	if !r.Ran {
		return nil
	}
	if p.Read.IsZero() {
		now, err := asowner.HashRaw.Call(ctx, d.owner, d.cfg.DataDir)
		if err != nil {
			return err
		}
		p.Read = now
		if err := d.plans.Save(p); err != nil {
			return err
		}
	}
	return d.startRaw(ctx, r)
}

// startRaw starts the server in files that were kept raw, if one ran in them and can.
func (d *Driver) startRaw(ctx context.Context, r *raw) error {
	if !r.Ran {
		return nil
	}
	err := d.server.Start(ctx)
	if err != nil && ctx.Err() == nil {
		d.cfg.Log.Warn("a server that ran before its files were kept cannot be started", "cluster", d.cfg.Name, "err", err)
		err = nil
	}
	return err
}

// rawProof compares what lies where the data folder should be with r.
func (d *Driver) rawProof(ctx context.Context, p *plan, r *raw, proof *snap.Proof) (err error) {
	proof.Post = p.Read // before the server was started
	if proof.Post.IsZero() {
		proof.Post, err = asowner.HashRaw.Call(ctx, d.owner, d.cfg.DataDir)
	}
	proof.Want, proof.Match = r.Hash, proof.Post == r.Hash
	proof.Notes = []string{"Compared: the names, modes and contents of all files where the data folder should be. The snapshot was kept without being read."}
	return err
}

// Recall gives what was recorded of the cluster with this StateDir when it was last
// well: for a driver whose cluster has no data folder to [Locate].
func Recall(stateDir string) (p pgserver.Place, found bool) {
	var w ward
	data, err := os.ReadFile(filepath.Join(stateDir, "ward.json"))
	if err != nil || json.Unmarshal(data, &w) != nil || w.Bin == "" {
		return p, false
	}
	return pgserver.Place{Bin: w.Bin, Owner: privsep.User{UID: w.UID, GID: w.GID}}, true
}
