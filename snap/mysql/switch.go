package mysql

import (
	"context"
	"errors"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/records"
)

// dbSwitch is a restore under way. What it knows is on disk, in the plan.
type dbSwitch struct {
	d       *Driver
	id      snap.RestoreID
	changes []snap.Change
}

// Changes lists the tables and objects that differ.
func (s *dbSwitch) Changes(limit int) ([]snap.Change, int) {
	return s.changes[:max(0, min(limit, len(s.changes)))], len(s.changes)
}

// with calls f with the plan, one at a time, and gives its error a kind.
func (s *dbSwitch) with(ctx context.Context, op string, f func(*plan) error) error {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return errs.Wrap(errs.Unavailable, op, err)
	}
	p, err := s.d.resumable(op, s.id)
	if err == nil {
		err = f(p)
	}
	return s.d.classify(op, err)
}

// ends gives target and base.
func (d *Driver) ends(p *plan) (target, base *stored, err error) {
	t, b, err := d.records.Held(p.Head())
	if err != nil {
		return nil, nil, err
	}
	if target, err = d.load(t); err == nil {
		base, err = d.load(b)
	}
	return target, base, err
}

// Stale reports whether the live state is no longer the base.
func (s *dbSwitch) Stale(ctx context.Context) (stale bool, err error) {
	err = s.with(ctx, "look for later writes to database", func(p *plan) error {
		_, base, err := s.d.ends(p)
		if err != nil {
			return err
		}
		now, err := s.d.hashLive(ctx, true)
		stale = now != base.sum
		return err
	})
	return stale, err
}

// Commit exchanges the live tables for the target's, with all of them locked from
// the last look at them on.
func (s *dbSwitch) Commit(ctx context.Context) error {
	const op = "restore database"
	return s.with(ctx, op, func(p *plan) error {
		if p.Phase == records.Committed {
			return nil
		}
		if err := p.Forward(op); err != nil {
			return err
		}
		target, base, err := s.d.ends(p)
		if err != nil {
			return err
		}
		m := move{from: s.d.side(p.ID), away: s.d.old(p.ID), want: target, base: &base.state}
		begin := func() error { return nil }
		if p.Phase == records.Prepared {
			m.lock = func(ctx context.Context, holder *session) error { return s.d.stillBase(ctx, holder, base.sum) }
			begin = func() error { return s.d.records.Advance(p, records.Committing) }
		}
		err = s.d.exchange(ctx, m, begin)
		if errors.Is(err, errLate) {
			return errs.Also(snap.Changed(op, s.d.login.String()), s.d.back(ctx, p, base))
		}
		if err != nil {
			return err
		}
		return s.d.records.Advance(p, records.Committed)
	})
}

// Undo brings the base's own tables back, if a Commit began. What was written
// after Commit is lost; what was written while there was no Commit stays.
func (s *dbSwitch) Undo(ctx context.Context) error {
	return s.with(ctx, "undo the restore of database", func(p *plan) error {
		switch p.Phase {
		case records.Undone:
			return nil
		case records.Prepared:
			return s.d.records.Advance(p, records.Undone)
		}
		_, base, err := s.d.ends(p)
		if err != nil {
			return err
		}
		return s.d.back(ctx, p, base)
	})
}

// back makes the tables that Commit put aside the live ones again, as they are.
// A foreign key to a table that was missing must not find one: it would follow it.
func (d *Driver) back(ctx context.Context, p *plan, base *stored) error {
	m := move{from: d.old(p.ID), away: d.gone(p.ID), want: base, drop: base.dangling()}
	err := d.exchange(ctx, m, func() error { return d.records.Advance(p, records.Undoing) })
	if err != nil && !(base.Absent && isCode(err, errNotRemoved)) { // else it is empty: no try will do better
		return err
	}
	return d.records.Advance(p, records.Undone)
}

// Check reads the live database again and compares.
func (s *dbSwitch) Check(ctx context.Context) (proof snap.Proof, err error) {
	err = s.with(ctx, "check the restore of database", func(p *plan) error {
		want, base, err := s.d.ends(p)
		if err != nil {
			return err
		}
		if p.Back() {
			want = base
		}
		now, err := s.d.hashLive(ctx, false)
		proof = snap.Proof{Pre: base.sum, Post: now, Want: want.sum, Match: now == want.sum}
		return err
	})
	return proof, err
}

// Finish drops what was kept for Undo; what of it the server cannot drop now is left
// for Leftovers. A restore that is half done must be committed or undone first.
func (s *dbSwitch) Finish(ctx context.Context) error {
	const op = "finish the restore of database"
	err := s.with(ctx, op, func(p *plan) error {
		if err := p.Ended(op); err != nil {
			return err
		}
		return s.d.drop(ctx, p)
	})
	if errs.KindOf(err) == errs.NotFound {
		return nil
	}
	return err
}
