package database

import (
	"context"
	"time"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/cas"
)

// Prepare builds the target beside the live state, and keeps target and base in the store
// until Finish.
func (d *Driver[T, P]) Prepare(ctx context.Context, req snap.RestoreRequest) (snap.Switch, error) {
	op := "prepare " + d.records.noun + " restore"
	s := &dbSwitch[T, P]{d: d, id: req.ID}
	err := d.Do(ctx, op, func() error {
		old, err := d.load(op, req.ID)
		var head *Plan
		if err == nil && old.Head().Phase != Dropped {
			head = old.Head()
		} else {
			old = nil
		}
		target, base, err := d.records.Ends(op, req, head)
		if err != nil {
			return err
		}
		p := P(new(T))
		*p.Head() = NewPlan(req, Preparing, nil)
		if err := d.prepare(ctx, p, old, target, base); err != nil {
			return err
		}
		s.changes = p.Head().Changes
		return nil
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

func (d *Driver[T, P]) prepare(ctx context.Context, p, old P, target, base cas.Root) error {
	if err := d.records.store.Check(ctx, base.Name, false); err != nil { // or there is no way back
		return err
	}
	if err := d.engine.Plan(ctx, p, old, target, base); err != nil {
		return err
	}
	if err := d.records.Advance(p, Preparing); err != nil {
		return err
	}
	err := d.engine.Build(ctx, p, old, target, base)
	if err == nil {
		err = d.records.Hold(p.Head(), target, base)
	}
	if err == nil {
		err = d.records.failpoint.At("prepare: install")
	}
	if err == nil {
		err = d.records.Advance(p, Prepared)
	}
	if err != nil {
		return errs.Also(err, d.dropWithin(ctx, cleanup, p))
	}
	h := p.Head()
	return d.records.Release(h.ID, h.Target, h.Base)
}

// cleanup bounds how long it is tried to drop what a failed preparation made. A sweep drops
// what is left.
const cleanup = time.Minute

// dropWithin is drop also where ctx has ended.
func (d *Driver[T, P]) dropWithin(ctx context.Context, limit time.Duration, p P) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	return d.drop(ctx, p)
}

// rehearsalDrop bounds how long the copy that a rehearsal made is dropped. A sweep drops what
// is left.
const rehearsalDrop = 10 * time.Second

// RehearseWith has build make the target of a switch called as beside the live state, and drops
// it again. Other methods but Sweep may run meanwhile.
func (d *Driver[T, P]) RehearseWith(ctx context.Context, as snap.RestoreID, id snap.SnapshotID, build func(P) error) error {
	op := "rehearse the restore of " + d.records.noun
	p := P(new(T))
	*p.Head() = NewPlan(snap.RestoreRequest{ID: as, Target: id, Base: id}, Preparing, nil)
	err := d.records.Advance(p, Preparing)
	if err == nil {
		err = build(p)
		if e := d.dropWithin(ctx, rehearsalDrop, p); err == nil {
			err = e
		}
	}
	return d.engine.Classify(op, err)
}

// load reads the plan of a switch; without one there is no switch.
func (d *Driver[T, P]) load(op string, id snap.RestoreID) (P, error) {
	p := P(new(T))
	if err := d.records.Load(op, id, p); err != nil {
		return nil, err
	}
	return p, nil
}

// Resumable reads the plan of a switch that got as far as being prepared.
func (d *Driver[T, P]) Resumable(op string, id snap.RestoreID) (P, error) {
	p, err := d.load(op, id)
	if err == nil && !p.Head().There() {
		return nil, d.records.NoSwitch(op, id)
	}
	return p, err
}

// Resume returns the switch that an earlier process prepared.
func (d *Driver[T, P]) Resume(_ context.Context, id snap.RestoreID) (snap.Switch, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	p, err := d.Resumable("resume "+d.records.noun+" restore", id)
	if err != nil {
		return nil, err
	}
	return &dbSwitch[T, P]{d: d, id: id, changes: p.Head().Changes}, nil
}
