package mysql

import (
	"context"

	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/database"
)

// ends loads the target and the base.
func (d *Driver) ends(target, base cas.Root) (to, from *stored, err error) {
	if to, err = d.load(target); err == nil {
		from, err = d.load(base)
	}
	return to, from, err
}

// Plan returns an error if the server could not exchange the two states.
func (e engine) Plan(ctx context.Context, p, _ *plan, target, base cas.Root) error {
	to, from, err := e.d.ends(target, base)
	if err != nil {
		return err
	}
	if err := e.d.cfg.Store.Check(ctx, target.Name, false); err != nil {
		return err
	}
	if err := e.d.restorable(ctx, &to.state, &from.state); err != nil {
		return err
	}
	aged, err := e.d.aged(ctx, &to.state, &from.state)
	if err == nil {
		p.Changes = compare(aged[0], aged[1], nil)
	}
	return err
}

// restorable returns an error if from and to cannot be exchanged.
func (d *Driver) restorable(ctx context.Context, to, from *state) error {
	s, err := d.connect(ctx)
	if err != nil {
		return err
	}
	defer s.end()
	if err := s.foreign(ctx); err != nil {
		return err
	}
	if err := broken(to, from); err != nil {
		return err
	}
	return to.referred()
}

// Build loads the target's tables into a database beside the live one and checks their digests.
func (e engine) Build(ctx context.Context, p, old *plan, target, _ cas.Root) error {
	to, err := e.d.load(target)
	if err != nil {
		return err
	}
	p.Loaded = to.sum.String()
	if old != nil && old.Phase == database.Prepared && old.Loaded == p.Loaded {
		return nil
	}
	return e.d.stage(ctx, p.ID, to)
}

// stage loads a state beside the live database.
func (d *Driver) stage(ctx context.Context, id snap.RestoreID, to *stored) error {
	if _, err := d.dropSides(ctx, id); err != nil { // a database that cannot be removed is empty, so it can be used
		return err
	}
	s, err := d.connect(ctx)
	if err != nil {
		return err
	}
	defer s.end() // this also ends an interrupted transaction
	return d.loadSide(ctx, s, d.side(id), to)
}

// Drop drops the databases of a switch.
func (e engine) Drop(ctx context.Context, p *plan) (left []string, err error) {
	return e.d.dropSides(ctx, p.ID)
}
