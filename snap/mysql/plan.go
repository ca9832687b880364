package mysql

import (
	"context"
	"fmt"
	"slices"

	"github.com/zeebo/blake3"

	"mulligan/errs"
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

// drop drops a switch and its databases. Where the server is away or cannot remove
// one, the plan stays, as records.Dropped, for the next Sweep or Leftovers.
func (d *Driver) drop(ctx context.Context, p *plan) error {
	if err := d.records.Advance(p, records.Dropped); err != nil {
		return err
	}
	if err := d.records.Release(p.ID); err != nil {
		return err
	}
	left, err := d.dropSides(ctx, p.ID)
	if errs.KindOf(d.classify("", err)) == errs.Unavailable && ctx.Err() == nil {
		return nil
	}
	if err != nil || len(left) > 0 {
		return err
	}
	return d.records.Drop(string(p.ID))
}

// errNotRemoved is the server's number for a DROP DATABASE that dropped all tables, and
// could not remove the database's folder: there are files in it that are no table's.
const errNotRemoved = 1010

// dropSides drops the databases of a switch. left are those that are empty, and that
// the server cannot remove: a crash of it may have left files there, which no
// statement reaches.
func (d *Driver) dropSides(ctx context.Context, id snap.RestoreID) (left []string, err error) {
	s, err := d.connect(ctx)
	if err != nil {
		return nil, err
	}
	defer s.end()
	for _, db := range []string{d.side(id), d.old(id), d.gone(id)} {
		err := s.exec(ctx, "DROP DATABASE IF EXISTS "+quote(db))
		if isCode(err, errNotRemoved) {
			left = append(left, fmt.Sprintf("database %s is empty, and the server cannot remove it (%v): remove the files in its folder, in the server's data folder", db, err))
			continue
		}
		if err != nil {
			return nil, err
		}
	}
	return left, nil
}

// Leftovers drops the databases of switches that nobody wants any more, and names those
// that are still there.
func (d *Driver) Leftovers(ctx context.Context) (left []string, err error) {
	const op = "drop what restores left on the server"
	d.mu.Lock()
	defer d.mu.Unlock()
	names, err := d.records.Switches()
	if err != nil {
		return nil, errs.Wrap(errs.Failed, op, err)
	}
	for _, name := range names {
		p, err := d.loadPlan(op, snap.RestoreID(name))
		if errs.KindOf(err) == errs.NotFound || err == nil && p.Phase != records.Dropped {
			continue // half gone, or under way: for Sweep
		}
		var these []string
		if err == nil {
			these, err = d.dropSides(ctx, p.ID)
		}
		if err == nil && len(these) == 0 {
			err = d.records.Drop(name)
		}
		if err != nil {
			return left, d.classify(op, err)
		}
		left = append(left, these...)
	}
	return left, nil
}
