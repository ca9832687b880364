package database

import (
	"context"
	"time"

	"mulligan/errs"
	"mulligan/snap"
)

// Prepare builds the target beside the live state, and keeps target and base in the store
// until Finish.
func (d *Switcher[T, P, S]) Prepare(ctx context.Context, req snap.RestoreRequest) (snap.Switch, error) {
	op := "prepare " + d.plans.noun + " restore"
	var s snap.Switch
	err := d.Do(ctx, op, func() error {
		old, err := d.load(op, req.ID)
		var head *Plan
		if err == nil && old.Head().Phase != Dropped {
			head = old.Head()
		} else {
			old = nil
		}
		target, base, err := d.ends(op, req, head)
		if err != nil {
			return err
		}
		p := P(new(T))
		*p.Head() = NewPlan(req, Preparing, nil)
		if err := d.prepare(ctx, p, old, target, base); err != nil {
			return err
		}
		s = d.restore(p)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

// ends finds the snapshots that req is about, if a switch may be prepared under its id: old is
// the plan that it has already, or nil.
func (d *Switcher[T, P, S]) ends(op string, req snap.RestoreRequest, old *Plan) (target, base S, err error) {
	if !ValidName(string(req.ID)) {
		return target, base, errs.New(errs.Invalid, op, "%q is not a restore id", req.ID)
	}
	if err = old.replaceable(op); err != nil {
		return target, base, err
	}
	if target, err = d.snapshots.Snapshot(op, req.Target); err == nil {
		base, err = d.snapshots.Snapshot(op, req.Base)
	}
	return target, base, err
}

func (d *Switcher[T, P, S]) prepare(ctx context.Context, p, old P, target, base S) error {
	if err := d.snapshots.Intact(ctx, base); err != nil { // or there is no way back
		return err
	}
	if err := d.steps.Plan(ctx, p, old, target, base); err != nil {
		return err
	}
	if err := d.plans.Advance(p, Preparing); err != nil {
		return err
	}
	err := d.steps.Build(ctx, p, old, target, base)
	if err == nil {
		err = d.snapshots.Hold(p.Head(), target, base)
	}
	if err == nil {
		err = d.plans.failpoint.At("prepare: install")
	}
	if err == nil {
		err = d.plans.Advance(p, Prepared)
	}
	if err != nil {
		return errs.Also(err, d.dropWithin(ctx, cleanup, p))
	}
	h := p.Head()
	return d.snapshots.Release(h.ID, h.Target, h.Base)
}

// cleanup bounds how long it is tried to drop what a failed preparation made. A sweep drops
// what is left.
const cleanup = time.Minute

// dropWithin is drop also where ctx has ended.
func (d *Switcher[T, P, S]) dropWithin(ctx context.Context, limit time.Duration, p P) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	return d.drop(ctx, p)
}

// rehearsalDrop bounds how long the copy that a rehearsal made is dropped. A sweep drops what
// is left.
const rehearsalDrop = 10 * time.Second

// RehearseWith has build make the target of a switch called as beside the live state, and drops
// it again. Other methods but Sweep may run meanwhile.
func (d *Switcher[T, P, S]) RehearseWith(ctx context.Context, as snap.RestoreID, id snap.SnapshotID, build func(P) error) error {
	op := "rehearse the restore of " + d.plans.noun
	p := P(new(T))
	*p.Head() = NewPlan(snap.RestoreRequest{ID: as, Target: id, Base: id}, Preparing, nil)
	err := d.plans.Advance(p, Preparing)
	if err == nil {
		err = build(p)
		if e := d.dropWithin(ctx, rehearsalDrop, p); err == nil {
			err = e
		}
	}
	return d.steps.Classify(op, err)
}
