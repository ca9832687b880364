package sqlite

import (
	"errors"
	"slices"

	"mulligan/snap"
	"mulligan/snap/database"
)

// plan is what is kept of a switch, beside the target's content.
type plan struct {
	database.Plan
	BaseIdentity identity // of the live files when the base was captured
}

// loadPlan reads the plan of a switch; without one there is no switch.
func (d *Driver) loadPlan(op string, id snap.RestoreID) (*plan, error) {
	p := &plan{}
	if err := d.records.Load(op, id, p); err != nil {
		return nil, err
	}
	return p, nil
}

// sweepSwitches removes the folders of the switches that are gone, and
// those that were never finished or are half gone.
func (d *Driver) sweepSwitches(gone []snap.RestoreID) error {
	names, err := d.records.Switches()
	if err != nil {
		return err
	}
	for _, name := range names {
		if d.records.Whole(name) && !slices.Contains(gone, snap.RestoreID(name)) {
			continue
		}
		err := d.removeTemp(snap.RestoreID(name))
		if err := errors.Join(err, d.records.Drop(name)); err != nil {
			return err
		}
	}
	return nil
}
