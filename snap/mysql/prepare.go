package mysql

import (
	"context"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/records"
)

// Prepare writes the target's tables into a database beside the live one, checks
// them against their digests, and keeps target and base in the store until Finish.
func (d *Driver) Prepare(ctx context.Context, req snap.RestoreRequest) (snap.Switch, error) {
	const op = "prepare database restore"
	d.mu.Lock()
	defer d.mu.Unlock()
	old, err := d.resumable(op, req.ID)
	var head *records.Plan
	if err == nil {
		head = old.Head()
	}
	target, base, err := d.records.Ends(op, req, head)
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, errs.Wrap(errs.Unavailable, op, err)
	}
	p, err := d.prepare(ctx, req, old, target, base)
	if err != nil {
		return nil, d.classify(op, err)
	}
	return &dbSwitch{d: d, id: req.ID, changes: p.Changes}, nil
}

func (d *Driver) prepare(ctx context.Context, req snap.RestoreRequest, old *plan, target, base cas.Root) (*plan, error) {
	to, err := d.load(target)
	if err != nil {
		return nil, err
	}
	from, err := d.load(base)
	if err != nil {
		return nil, err
	}
	for _, root := range []cas.Root{target, base} {
		if err := d.cfg.Store.Check(ctx, root.Name, false); err != nil {
			return nil, err
		}
	}
	s, err := d.connect(ctx)
	if err != nil {
		return nil, err
	}
	defer s.end()
	if err := s.foreign(ctx); err != nil {
		return nil, err
	}
	if err := broken(&to.state, &from.state); err != nil {
		return nil, err
	}
	if err := to.referred(); err != nil {
		return nil, err
	}
	p := &plan{Plan: records.NewPlan(req, records.Preparing, compare(&to.state, &from.state, nil))}
	if old == nil || old.Loaded != to.sum.String() {
		if err := d.stage(ctx, p, to); err != nil {
			// What is left of it is swept, if it cannot be dropped now.
			return nil, errs.Also(err, d.drop(context.WithoutCancel(ctx), p))
		}
	}
	p.Loaded = to.sum.String()
	if err := d.records.Hold(p.Head(), target, base); err != nil {
		return nil, err
	}
	if err := d.records.Advance(p, records.Prepared); err != nil {
		return nil, err
	}
	return p, d.records.Release(p.ID, p.Target, p.Base)
}

// stage loads the target beside the live database.
func (d *Driver) stage(ctx context.Context, p *plan, to *stored) error {
	if err := d.records.Advance(p, records.Preparing); err != nil {
		return err
	}
	if _, err := d.dropSides(ctx, p.ID); err != nil { // one that stays is empty, as good as new
		return err
	}
	s, err := d.connect(ctx)
	if err != nil {
		return err
	}
	defer s.end() // and with it a transaction that was cut short
	return d.loadSide(ctx, s, d.side(p.ID), to)
}

// Resume returns the switch that an earlier process prepared.
func (d *Driver) Resume(_ context.Context, id snap.RestoreID) (snap.Switch, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	p, err := d.resumable("resume database restore", id)
	if err != nil {
		return nil, err
	}
	return &dbSwitch{d: d, id: id, changes: p.Changes}, nil
}
