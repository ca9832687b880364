package database

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"mulligan/errs"
	"mulligan/snap"
)

// SweepSwitches drops the switches in gone, and those whose preparation was not completed. One that cannot be dropped does not keep
// the others. It must be called within Do.
func (d *Switcher[T, P, S]) SweepSwitches(ctx context.Context, gone []snap.RestoreID) error {
	names, err := d.plans.Switches()
	for _, name := range names {
		if e := d.sweep(ctx, name, gone); e != nil {
			err = errs.Also(err, fmt.Errorf("restore %s: %w", strings.ToValidUTF8(name, "?"), e))
		}
	}
	return err
}

// sweep drops the named switch if it is in gone, or if its preparation was not completed. It returns an error if the plan
// cannot be read, because then it is unknown which state is live.
func (d *Switcher[T, P, S]) sweep(ctx context.Context, name string, gone []snap.RestoreID) error {
	id := snap.RestoreID(name)
	p, err := d.load("", id)
	switch {
	case errs.KindOf(err) == errs.NotFound:
		return d.plans.Drop(name) // Plans.Drop was interrupted after it removed the plan
	case err != nil:
		return err
	case slices.Contains(gone, id) || !p.Head().There():
		return d.drop(ctx, p)
	}
	return nil
}

// drop drops a switch and its objects beside the live state. If the server is down or cannot drop the objects, the plan stays,
// with the phase Dropped, for DropLeftovers and the next Sweep.
func (d *Switcher[T, P, S]) drop(ctx context.Context, p P) error {
	h := p.Head()
	if h.Phase != Dropped {
		h.Reached = h.Phase
	}
	if err := d.plans.Advance(p, Dropped); err != nil && !errors.Is(err, unix.ENOSPC) { // drop the switch even if the disk is full
		return err
	}
	if err := d.snapshots.Release(h.ID); err != nil {
		return err
	}
	left, err := d.steps.Drop(ctx, p)
	if errs.KindOf(d.steps.Classify("", err)) == errs.Unavailable && ctx.Err() == nil {
		return nil
	}
	if err != nil || len(left) > 0 {
		return err
	}
	return d.plans.Drop(string(h.ID))
}

// DropLeftovers tries to drop the remaining objects of dropped switches, and returns those that still exist.
func (d *Switcher[T, P, S]) DropLeftovers(ctx context.Context) (left []string, err error) {
	const op = "drop what restores left on the server"
	err = d.Do(ctx, op, func() error {
		names, err := d.plans.Switches()
		for _, name := range names {
			these, e := d.leftovers(ctx, name)
			err, left = errs.Also(err, e), append(left, these...)
		}
		return err
	})
	return left, err
}

func (d *Switcher[T, P, S]) leftovers(ctx context.Context, name string) (left []string, err error) {
	p, err := d.load("", snap.RestoreID(name))
	if errs.KindOf(err) == errs.NotFound || err == nil && p.Head().Phase != Dropped {
		return nil, nil // the switch has no plan, which is left to Sweep, or is under way
	}
	if err != nil {
		return nil, err
	}
	if left, err = d.steps.Drop(ctx, p); err != nil || len(left) > 0 {
		return left, err
	}
	return nil, d.plans.Drop(name)
}
