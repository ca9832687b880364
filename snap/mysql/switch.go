package mysql

import (
	"context"
	"errors"
	"fmt"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/database"
)

// Stale compares the live state with the base.
func (e engine) Stale(ctx context.Context, _ *plan, base cas.Root) (bool, error) {
	want, err := e.d.load(base)
	if err != nil {
		return false, err
	}
	now, err := e.d.live(ctx, true)
	if err != nil {
		return false, err
	}
	return now.hash != want.sum, nil
}

// Commit exchanges the live tables and the target's. It locks all tables before it compares them with the base.
func (e engine) Commit(ctx context.Context, p *plan, target, base cas.Root) error {
	to, from, err := e.d.ends(target, base)
	if err != nil {
		return err
	}
	m := move{from: e.d.side(p.ID), away: e.d.old(p.ID), want: to, base: &from.state}
	begin := func() error { return nil }
	if p.Phase == database.Prepared {
		m.lock = func(ctx context.Context, holder *session) error { return e.d.stillBase(ctx, holder, from.sum) }
		begin = func() error { return e.d.records.Advance(p, database.Committing) }
	}
	err = e.d.exchange(ctx, m, begin)
	if errors.Is(err, errLate) {
		return errs.Also(snap.Changed("", e.d.login.String()), e.back(ctx, p, from))
	}
	return err
}

// back undoes an exchange after which a late write was found.
func (e engine) back(ctx context.Context, p *plan, base *stored) error {
	if err := e.d.records.Advance(p, database.Undoing); err != nil {
		return err
	}
	if err := e.putBack(ctx, p, base); err != nil {
		return err
	}
	return e.d.records.Advance(p, database.Undone)
}

// Undo makes the base's tables live again.
func (e engine) Undo(ctx context.Context, p *plan, _, base cas.Root) error {
	from, err := e.d.load(base)
	if err != nil {
		return err
	}
	return e.putBack(ctx, p, from)
}

// putBack makes the tables that Commit moved away live again, unchanged. A missing table to which a foreign key refers must not
// exist meanwhile, because the key would follow it.
func (e engine) putBack(ctx context.Context, p *plan, base *stored) error {
	m := move{from: e.d.old(p.ID), away: e.d.gone(p.ID), want: base, drop: base.dangling()}
	err := e.d.exchange(ctx, m, func() error { return nil })
	if base.Absent && isCode(err, errNotRemoved) { // the database is empty, and another try would not remove it either
		return nil
	}
	return err
}

// ReadBack reads the live database. Events that have ended count as what the server makes of them then.
func (e engine) ReadBack(ctx context.Context, _ *plan, root cas.Root) (hash snap.Hash, notes []string, err error) {
	want, err := e.d.load(root)
	if err != nil {
		return hash, nil, err
	}
	now, err := e.d.live(ctx, false)
	if err != nil {
		return hash, nil, err
	}
	if now.hash == want.sum {
		hash, err = database.HashOf(root)
		return hash, nil, err
	}
	aged, err := e.d.aged(ctx, &want.state, now.state)
	if err != nil {
		return hash, nil, err
	}
	for _, o := range want.Objects {
		if !aged[0].has(o) && !now.has(o) {
			notes = append(notes, fmt.Sprintf("Event %s of that state has ended since: a server drops such an event, or disables it.", o.Name))
		}
	}
	if aged[0].hash() != aged[1].hash() {
		return now.hash, notes, nil
	}
	hash, err = database.HashOf(root)
	return hash, notes, err
}
