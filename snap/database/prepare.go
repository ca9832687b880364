package database

import (
	"context"
	"time"

	"mulligan/errs"
	"mulligan/snap"
)

// Prepare builds the target beside the live state. Target and base stay in the store until
// Finish, even if their snapshots are deleted.
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

// ends returns the two snapshots of req. It returns an error if no switch may be prepared
// under req.ID; old is the existing plan under that id, or nil.
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
	if err := d.snapshots.Intact(ctx, base); err != nil { // without the base, there would be no Undo
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

// cleanup bounds the time for dropping the objects of a failed preparation. Sweep drops the remaining ones.
const cleanup = time.Minute

// dropWithin is drop with a time limit of its own, so that it works after ctx ended.
func (d *Switcher[T, P, S]) dropWithin(ctx context.Context, limit time.Duration, p P) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	return d.drop(ctx, p)
}

// rehearsalDrop bounds the time for dropping a rehearsal's objects. Sweep drops the remaining ones.
const rehearsalDrop = 10 * time.Second

// RehearseWith calls build with the plan of a new switch called as, and then drops the objects that build made. All other
// methods except Sweep may run meanwhile.
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
