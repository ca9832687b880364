package redis

import (
	"context"

	"mulligan/ipc/errs"
	"mulligan/snap"
	"mulligan/snap/cas"
)

// Prepare reads target and base to their ends, checking them against their hashes,
// and keeps them in the store until Finish. Nothing has to be made ready beside the server.
func (d *Driver) Prepare(ctx context.Context, req snap.RestoreRequest) (snap.Switch, error) {
	const op = "prepare redis restore"
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
	if err := d.loadable(target, base); err != nil {
		return nil, err
	}
	changes, err := d.diff(ctx, storedSide(target), storedSide(base), nil)
	if err != nil {
		return nil, err
	}
	if old, err := d.loadPlan("", req.ID); err == nil {
		if err := d.letGo(ctx, old); err != nil {
			return nil, err
		}
	}
	p := &plan{ID: req.ID, Target: req.Target, Base: req.Base, Phase: prepared, Changes: changes}
	b := d.cfg.Store.Begin()
	defer b.Discard()
	err = b.Commit(
		cas.Root{Name: d.switchRoot(p.ID, p.Target), Hash: target.Hash, Meta: target.Meta},
		cas.Root{Name: d.switchRoot(p.ID, p.Base), Hash: base.Hash, Meta: base.Meta},
	)
	if err != nil {
		return nil, err
	}
	if err := d.seam("prepare: plan"); err != nil {
		return nil, err
	}
	if err := d.savePlan(p); err != nil {
		return nil, err
	}
	return p, d.dropRoots(p.ID, p.Target, p.Base)
}

// loadable refuses a target that a newer server wrote: a server that cannot
// load what it was sent is left with nothing.
func (d *Driver) loadable(target, base cas.Root) error {
	t, _, err := parseMeta(target)
	if err != nil {
		return err
	}
	b, _, err := parseMeta(base)
	if err == nil && t.Version > b.Version {
		return errs.New(errs.Unsupported, "", "the snapshot has format %d, and the server writes %d", t.Version, b.Version).
			WithHint("restore it with the newer server that it was captured from")
	}
	return err
}

// Resume returns the switch that an earlier process prepared.
func (d *Driver) Resume(_ context.Context, id snap.RestoreID) (snap.Switch, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	p, err := d.loadPlan("resume redis restore", id)
	if err != nil {
		return nil, err
	}
	return &dbSwitch{d: d, id: id, changes: p.Changes}, nil
}
