package sqlite

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"mulligan/ipc/errs"
	"mulligan/snap"
	"mulligan/snap/cas"
)

// Prepare writes the target's content to the state folder, checking it against its digest,
// and keeps target and base in the store until Finish.
func (d *Driver) Prepare(ctx context.Context, req snap.RestoreRequest) (snap.Switch, error) {
	const op = "prepare database restore"
	d.mu.Lock()
	defer d.mu.Unlock()
	if !validName(string(req.ID)) || req.ID[0] == '.' {
		return nil, errs.New(errs.Invalid, op, "%q is not a restore id", req.ID)
	}
	if p, err := d.loadPlan(op, req.ID); err == nil && p.Phase != prepared {
		return nil, errs.New(errs.Conflict, op, "restore %s is %s already", req.ID, p.Phase).
			WithHint("undo or finish it first")
	}
	if err := ctx.Err(); err != nil {
		return nil, errs.Wrap(errs.Unavailable, op, err)
	}
	target, err := d.root(op, req.Target)
	if err != nil {
		return nil, err
	}
	base, err := d.root(op, req.Base)
	if err != nil {
		return nil, err
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
	p := &plan{ID: req.ID, Target: req.Target, Base: req.Base, BaseIdentity: m.Identity, Phase: prepared, Changes: changes}
	staged := filepath.Join(d.cfg.StateDir, "switches", ".new-"+string(req.ID))
	if err := d.stage(ctx, staged, p, target); err != nil {
		return nil, errors.Join(err, os.RemoveAll(staged))
	}
	if err := d.keepRoots(p, target, base); err != nil {
		return nil, errors.Join(err, os.RemoveAll(staged))
	}
	if err := d.seam("prepare: install"); err != nil {
		return nil, err
	}
	if err := d.installPlan(req.ID, staged); err != nil {
		return nil, err
	}
	return p, d.dropRoots(req.ID, req.Target, req.Base)
}

// stage writes plan and content into the folder dir, durably.
func (d *Driver) stage(ctx context.Context, dir string, p *plan, target cas.Root) error {
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	s, err := load(d.cfg.Store, target.Hash)
	if err != nil {
		return damaged(err)
	}
	f, err := os.OpenFile(filepath.Join(dir, "target"), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	err = s.writeTo(ctx, f)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := d.seam("prepare: stage"); err != nil {
		return err
	}
	return savePlan(dir, p)
}

// keepRoots holds target and base in the store under the switch's own name.
func (d *Driver) keepRoots(p *plan, target, base cas.Root) error {
	b := d.cfg.Store.Begin()
	defer b.Discard()
	return b.Commit(
		cas.Root{Name: d.switchRoot(p.ID, p.Target), Hash: target.Hash, Meta: target.Meta},
		cas.Root{Name: d.switchRoot(p.ID, p.Base), Hash: base.Hash, Meta: base.Meta},
	)
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
