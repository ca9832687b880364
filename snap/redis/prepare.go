package redis

import (
	"context"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/records"
)

// Prepare reads target and base to their ends, checking them against their hashes,
// and keeps them in the store until Finish. Nothing has to be made ready beside the server.
func (d *Driver) Prepare(ctx context.Context, req snap.RestoreRequest) (snap.Switch, error) {
	const op = "prepare redis restore"
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
	p := &plan{Plan: records.NewPlan(req, records.Prepared, changes)}
	if err := d.records.Hold(p.Head(), target, base); err != nil {
		return nil, err
	}
	if err := d.seam("prepare: plan"); err != nil {
		return nil, err
	}
	if err := d.records.Save(p); err != nil {
		return nil, err
	}
	return p, d.records.Release(p.ID, p.Target, p.Base)
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
