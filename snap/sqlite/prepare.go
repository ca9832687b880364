package sqlite

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/records"
)

// Prepare writes the target's content to the state folder, checking it against its digest,
// and keeps target and base in the store until Finish.
func (d *Driver) Prepare(ctx context.Context, req snap.RestoreRequest) (snap.Switch, error) {
	const op = "prepare database restore"
	d.mu.Lock()
	defer d.mu.Unlock()
	var old *records.Plan
	if p, err := d.loadPlan(op, req.ID); err == nil {
		old = p.Head()
	}
	target, base, err := d.records.Ends(op, req, old)
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, errs.Wrap(errs.Unavailable, op, err)
	}
	p, err := d.prepare(ctx, req, target, base)
	if err != nil {
		return nil, d.classify(op, err)
	}
	return &dbSwitch{d: d, id: req.ID, changes: p.Changes}, nil
}

func (d *Driver) prepare(ctx context.Context, req snap.RestoreRequest, target, base cas.Root) (*plan, error) {
	m, _, err := parseMeta(base)
	if err != nil {
		return nil, err
	}
	if err := d.cfg.Store.Check(ctx, base.Name, false); err != nil {
		return nil, err
	}
	changes, err := d.diffRoots(target, base)
	if err != nil {
		return nil, err
	}
	p := &plan{Plan: records.NewPlan(req, records.Prepared, changes), BaseIdentity: m.Identity}
	staged, err := d.stage(ctx, req.ID, target)
	if err == nil {
		err = d.records.Hold(p.Head(), target, base)
	}
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(staged))
	}
	if err := d.seam("prepare: install"); err != nil {
		return nil, err
	}
	if err := d.records.Install(p, staged); err != nil {
		return nil, err
	}
	return p, d.records.Release(req.ID, req.Target, req.Base)
}

// stage writes the target's content into a folder of its own, durably.
func (d *Driver) stage(ctx context.Context, id snap.RestoreID, target cas.Root) (dir string, err error) {
	if dir, err = d.records.Stage(id); err != nil {
		return dir, err
	}
	s, err := load(d.cfg.Store, target.Hash)
	if err != nil {
		return dir, records.Damaged(err)
	}
	f, err := os.OpenFile(filepath.Join(dir, "target"), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return dir, err
	}
	if s.Raw != nil {
		err = s.checkStored(ctx) // it is made beside the database, when it is committed
	} else {
		err = s.writeTo(ctx, f)
	}
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return dir, err
	}
	return dir, d.seam("prepare: stage")
}

// Resume returns the switch that an earlier process prepared.
func (d *Driver) Resume(_ context.Context, id snap.RestoreID) (snap.Switch, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	p, err := d.loadPlan("resume database restore", id)
	if err != nil {
		return nil, err
	}
	return &dbSwitch{d: d, id: id, changes: p.Changes}, nil
}
