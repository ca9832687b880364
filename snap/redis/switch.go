package redis

import (
	"context"
	"errors"
	"fmt"
	"io"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/records"
)

// dbSwitch is a restore under way. What it knows is on disk, in the plan.
type dbSwitch struct {
	d       *Driver
	id      snap.RestoreID
	changes []snap.Change
}

// Changes counts the keys that differ, by the part of their names up to the first colon.
func (s *dbSwitch) Changes(limit int) ([]snap.Change, int) {
	return s.changes[:max(0, min(limit, len(s.changes)))], len(s.changes)
}

// with calls f with the plan, one at a time, and gives its error a kind. If
// a process died while the server followed it, the server is let go first.
func (s *dbSwitch) with(ctx context.Context, op string, f func(*plan) error) error {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return errs.Wrap(errs.Unavailable, op, err)
	}
	p, err := s.d.loadPlan(op, s.id)
	if err == nil {
		err = s.d.letGo(ctx, p)
	}
	if err == nil {
		err = f(p)
	}
	return s.d.classify(op, err)
}

// same reports whether the live state is the stored one, but for keys that have
// expired since and that the server dropped, or is about to: gone counts the stored ones.
func (d *Driver) same(ctx context.Context, live summary, root cas.Root) (same bool, gone int, err error) {
	_, hash, err := parseMeta(root)
	if err != nil || live.hash() == hash {
		return err == nil, 0, err
	}
	stored, err := d.scanStored(ctx, root, nil)
	if err != nil {
		return false, 0, err
	}
	defer stored.close()
	now := live.read.UnixMilli()
	want, gone, err := stored.hashAt(now)
	if err != nil {
		return false, 0, err
	}
	got, _, err := live.scanned.hashAt(now)
	return err == nil && got == want, gone, err
}

// atBase finds out where in its history the server is, if its data there is
// the base's; without its data being read where the position proves it.
func (d *Driver) atBase(ctx context.Context, base cas.Root) (at position, is bool, err error) {
	m, _, err := parseMeta(base)
	if err != nil {
		return at, false, err
	}
	c, err := d.dial(ctx)
	if err != nil {
		return at, false, err
	}
	defer c.close()
	if at, err = c.position(); err != nil || at == m.Position {
		return at, err == nil, err
	}
	live, err := d.read(ctx, io.Discard, nil)
	if err != nil {
		return at, false, err
	}
	defer live.scanned.close()
	is, _, err = d.same(ctx, live, base)
	return live.at, is, err
}

// Stale reports whether the live state is no longer the base.
func (s *dbSwitch) Stale(ctx context.Context) (stale bool, err error) {
	err = s.with(ctx, "look for later writes to redis", func(p *plan) error {
		_, base, err := s.d.records.Held(p.Head())
		if err != nil {
			return err
		}
		_, is, err := s.d.atBase(ctx, base)
		stale = !is
		return err
	})
	return stale, err
}

// Commit makes the server load the target.
func (s *dbSwitch) Commit(ctx context.Context) error {
	const op = "restore redis"
	return s.with(ctx, op, func(p *plan) error {
		if p.Phase == records.Committed {
			return nil
		}
		if err := p.Forward(op); err != nil {
			return err
		}
		target, base, err := s.d.records.Held(p.Head())
		if err != nil {
			return err
		}
		done, err := s.d.alreadyAt(ctx, p, target)
		if err == nil && !done {
			err = s.d.replace(ctx, op, p, target, base)
		}
		if err == nil {
			err = s.d.settle(ctx)
		}
		if err != nil {
			return err
		}
		return s.d.records.Advance(p, records.Committed)
	})
}

// alreadyAt reports whether an earlier Commit, cut short, got to the target.
func (d *Driver) alreadyAt(ctx context.Context, p *plan, target cas.Root) (bool, error) {
	if p.Phase != records.Committing {
		return false, nil
	}
	live, err := d.read(ctx, io.Discard, nil)
	if err != nil {
		return false, err
	}
	defer live.scanned.close()
	is, _, err := d.same(ctx, live, target)
	return is, err
}

// tries is how often a server may move on, without a key having changed, while
// it is told to follow: the pings to its replicas do that.
const tries = 5

// replace makes the server load the target, if it has the base.
func (d *Driver) replace(ctx context.Context, op string, p *plan, target, base cas.Root) error {
	for range tries {
		at, is, err := d.atBase(ctx, base)
		if err != nil {
			return err
		}
		if !is {
			break
		}
		err = d.lead(ctx, p, target, &at, func() error { return d.records.Advance(p, records.Committing) })
		if !errors.Is(err, errMoved) {
			return errs.Also(err, d.callOff(ctx, p, at, err))
		}
	}
	return snap.Changed(op, "the server at "+d.server.String())
}

// callOff takes the plan back to prepared where a Commit failed and the server
// still has the data that it had at the position; otherwise it is Undo that
// brings it back. A server that is a master again remembers whose history its
// data came from: its own of before, or that of the master that it followed.
func (d *Driver) callOff(ctx context.Context, p *plan, at position, failed error) error {
	if failed == nil || p.Phase != records.Committing || p.Lead != nil {
		return nil
	}
	ctx, cancel := d.after(ctx)
	defer cancel()
	c, err := d.dial(ctx)
	if err != nil {
		return nil // the error that is told is the one before
	}
	defer c.close()
	r, err := c.info("replication")
	if err != nil || r["master_replid2"] != at.ID {
		return nil
	}
	return d.records.Advance(p, records.Prepared)
}

// Undo makes the server load the base, if a Commit began. What was written
// after Commit is lost; what was written while there was no Commit stays.
func (s *dbSwitch) Undo(ctx context.Context) error {
	return s.with(ctx, "undo the restore of redis", func(p *plan) error {
		switch p.Phase {
		case records.Undone:
			return nil
		case records.Prepared:
			return s.d.records.Advance(p, records.Undone)
		}
		_, base, err := s.d.records.Held(p.Head())
		if err != nil {
			return err
		}
		if err := s.d.records.Advance(p, records.Undoing); err != nil {
			return err
		}
		_, is, err := s.d.atBase(ctx, base)
		if err == nil && !is {
			err = s.d.lead(ctx, p, base, nil, func() error { return s.d.seam("undo: load") })
		}
		if err == nil {
			err = s.d.settle(ctx)
		}
		if err != nil {
			return err
		}
		return s.d.records.Advance(p, records.Undone)
	})
}

// Check reads the live state again and compares.
func (s *dbSwitch) Check(ctx context.Context) (proof snap.Proof, err error) {
	err = s.with(ctx, "check the restore of redis", func(p *plan) error {
		want, base, err := s.d.records.Held(p.Head())
		if err != nil {
			return err
		}
		if p.Back() {
			want = base
		}
		live, err := s.d.read(ctx, io.Discard, nil)
		if err != nil {
			return err
		}
		defer live.scanned.close()
		var gone int
		if proof.Match, gone, err = s.d.same(ctx, live, want); err != nil {
			return err
		}
		if _, proof.Want, err = parseMeta(want); err != nil {
			return err
		}
		if proof.Post = live.hash(); proof.Match {
			proof.Post = proof.Want
		}
		if gone > 0 {
			proof.Notes = append(proof.Notes, fmt.Sprintf("%d keys of that state have expired since.", gone))
		}
		_, proof.Pre, err = parseMeta(base)
		return err
	})
	return proof, err
}

// Finish drops what was kept for Undo. A restore that is half done must be
// committed or undone first.
func (s *dbSwitch) Finish(ctx context.Context) error {
	const op = "finish the restore of redis"
	err := s.with(ctx, op, func(p *plan) error {
		if err := p.Ended(op); err != nil {
			return err
		}
		if err := s.d.records.Drop(string(p.ID)); err != nil {
			return err
		}
		return s.d.records.Release(p.ID)
	})
	if errs.KindOf(err) == errs.NotFound {
		return nil
	}
	return err
}
