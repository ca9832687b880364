package redis

import (
	"context"
	"slices"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/records"
)

// plan is what is kept of a switch.
type plan struct {
	records.Plan
	Lead *lead // set while the server may be following
}

// lead is what the server's settings are to be put back from. The password is
// one that the server had for a master of its own; mostly there is none.
type lead struct {
	Host, Port       string // where it was told to find its master
	User, MasterAuth string
}

// loadPlan reads the plan of a switch; without one there is no switch.
func (d *Driver) loadPlan(op string, id snap.RestoreID) (*plan, error) {
	p := &plan{}
	if err := d.records.Load(op, id, p); err != nil {
		return nil, err
	}
	return p, nil
}

// sweepSwitches drops the switches that are gone, and those that never got a plan.
func (d *Driver) sweepSwitches(ctx context.Context, gone []snap.RestoreID) error {
	names, err := d.records.Switches()
	if err != nil {
		return err
	}
	for _, name := range names {
		id := snap.RestoreID(name)
		p, err := d.loadPlan("", id)
		switch {
		case errs.KindOf(err) == errs.NotFound:
		case err != nil:
			return err
		case !slices.Contains(gone, id):
			continue
		default:
			if err := d.letGo(ctx, p); err != nil {
				return err
			}
		}
		if err := d.records.Drop(name); err != nil {
			return err
		}
	}
	return nil
}
