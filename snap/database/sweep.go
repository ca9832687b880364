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

// SweepSwitches drops the switches that gone names, and those that were never prepared. It is
// called within Do.
func (d *Switcher[T, P, S]) SweepSwitches(ctx context.Context, gone []snap.RestoreID) error {
	names, err := d.plans.Switches()
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := d.sweep(ctx, name, gone); err != nil {
			return fmt.Errorf("restore %s: %w", strings.ToValidUTF8(name, "?"), err)
		}
	}
	return nil
}

// sweep drops the switch of that name where nobody wants it. A plan that cannot be read is an
// error: nobody knows where the live state is.
func (d *Switcher[T, P, S]) sweep(ctx context.Context, name string, gone []snap.RestoreID) error {
	id := snap.RestoreID(name)
	p, err := d.load("", id)
	switch {
	case errs.KindOf(err) == errs.NotFound:
		return d.plans.Drop(name) // half gone
	case err != nil:
		return err
	case slices.Contains(gone, id) || !p.Head().There():
		return d.drop(ctx, p)
	}
	return nil
}

// drop drops a switch and what it has beside the live state. Where the server is away or
// cannot drop that, the plan stays, as Dropped, for Leftovers and the next Sweep.
func (d *Switcher[T, P, S]) drop(ctx context.Context, p P) error {
	h := p.Head()
	if h.Phase != Dropped {
		h.Reached = h.Phase
	}
	if err := d.plans.Advance(p, Dropped); err != nil && !errors.Is(err, unix.ENOSPC) { // a full disk is no reason to keep it
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

// Leftovers drops what is left of switches that nobody wants any more, and names what is
// still there.
func (d *Switcher[T, P, S]) Leftovers(ctx context.Context) (left []string, err error) {
	const op = "drop what restores left on the server"
	err = d.Do(ctx, op, func() error {
		names, err := d.plans.Switches()
		if err != nil {
			return err
		}
		for _, name := range names {
			these, err := d.leftovers(ctx, name)
			if err != nil {
				return err
			}
			left = append(left, these...)
		}
		return nil
	})
	return left, err
}

func (d *Switcher[T, P, S]) leftovers(ctx context.Context, name string) (left []string, err error) {
	p, err := d.load("", snap.RestoreID(name))
	if errs.KindOf(err) == errs.NotFound || err == nil && p.Head().Phase != Dropped {
		return nil, nil // half gone, or under way: for Sweep
	}
	if err != nil {
		return nil, err
	}
	if left, err = d.steps.Drop(ctx, p); err != nil || len(left) > 0 {
		return left, err
	}
	return nil, d.plans.Drop(name)
}
