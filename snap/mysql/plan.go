package mysql

import (
	"context"
	"fmt"
	"slices"

	"github.com/zeebo/blake3"

	"mulligan/ipc/errs"
	"mulligan/snap"
	"mulligan/snap/records"
)

// plan is what is kept of a switch.
type plan struct {
	records.Plan
	Loaded string // the hash of the state whose tables are in the side database
}

// sideMark is in the name of every database that a restore makes, behind the live one's.
const sideMark = "__mulligan_"

// The databases of a switch: the target's tables before Commit, the base's after
// Commit, and what was live when Undo came.
func (d *Driver) side(id snap.RestoreID) string {
	name := []byte(d.login.db + sideMark + string(id))
	for i, c := range name[len(d.login.db):] {
		if c == '-' || c >= 0x80 || c < '0' {
			name[len(d.login.db)+i] = '_'
		}
	}
	if len(name) > 58 { // a name has 64 characters at most
		sum := blake3.Sum256(name)
		name = fmt.Appendf(nil, "%.30s%s%.16x", d.login.db, sideMark, sum)
	}
	return string(name)
}

func (d *Driver) old(id snap.RestoreID) string  { return d.side(id) + "_old" }
func (d *Driver) gone(id snap.RestoreID) string { return d.side(id) + "_gone" }

// loadPlan reads the plan of a switch; without one there is no switch.
func (d *Driver) loadPlan(op string, id snap.RestoreID) (*plan, error) {
	p := &plan{}
	if err := d.records.Load(op, id, p); err != nil {
		return nil, err
	}
	return p, nil
}

// resumable is loadPlan for a switch that got as far as being prepared.
func (d *Driver) resumable(op string, id snap.RestoreID) (*plan, error) {
	p, err := d.loadPlan(op, id)
	if err == nil && !p.There() {
		return nil, d.records.NoSwitch(op, id)
	}
	return p, err
}

// sweepSwitches drops the switches that are gone, and those that never got a plan.
// Where the server is away, their databases are dropped by a later sweep.
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
			err = d.records.Drop(name)
		case err == nil && (slices.Contains(gone, id) || !p.There()):
			err = d.drop(ctx, p)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// drop drops a switch and its databases; these another time, where the server is away.
func (d *Driver) drop(ctx context.Context, p *plan) error {
	if err := d.records.Advance(p, records.Dropped); err != nil {
		return err
	}
	err := d.dropSides(ctx, p.ID)
	if errs.KindOf(d.classify("", err)) == errs.Unavailable && ctx.Err() == nil {
		return nil
	}
	if err != nil {
		return err
	}
	return d.records.Drop(string(p.ID))
}

// dropSides drops the databases of a switch.
func (d *Driver) dropSides(ctx context.Context, id snap.RestoreID) error {
	s, err := d.connect(ctx)
	if err != nil {
		return err
	}
	defer s.end()
	for _, db := range []string{d.side(id), d.old(id), d.gone(id)} {
		if err := s.exec(ctx, "DROP DATABASE IF EXISTS "+quote(db)); err != nil {
			return err
		}
	}
	return nil
}
