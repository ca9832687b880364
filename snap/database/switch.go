package database

import (
	"context"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/cas"
)

// dbSwitch is a restore under way. All that it knows is on disk, in the plan.
type dbSwitch[T any, P planPointer[T]] struct {
	d       *Driver[T, P]
	id      snap.RestoreID
	changes []snap.Change
}

// Changes says how the database differs.
func (s *dbSwitch[T, P]) Changes(limit int) ([]snap.Change, int) {
	return s.changes[:max(0, min(limit, len(s.changes)))], len(s.changes)
}

// do calls f with the plan.
func (s *dbSwitch[T, P]) do(ctx context.Context, op string, f func(P) error) error {
	return s.d.Do(ctx, op, func() error {
		p, err := s.d.Resumable(op, s.id)
		if err != nil {
			return err
		}
		return f(p)
	})
}

// doHeld calls f with the plan, target and base.
func (s *dbSwitch[T, P]) doHeld(ctx context.Context, op string, f func(p P, target, base cas.Root) error) error {
	return s.do(ctx, op, func(p P) error {
		target, base, err := s.d.records.Held(p.Head())
		if err != nil {
			return err
		}
		return f(p, target, base)
	})
}

// Stale reports whether the live state is no longer the base.
func (s *dbSwitch[T, P]) Stale(ctx context.Context) (stale bool, err error) {
	err = s.doHeld(ctx, "look for later writes to "+s.d.records.noun, func(p P, _, base cas.Root) (err error) {
		stale, err = s.d.engine.Stale(ctx, p, base)
		return err
	})
	return stale, err
}

// warmer is an Engine that can shorten the next Commit while the app still runs.
type warmer[P Planned] interface {
	Warm(ctx context.Context, p P, base cas.Root) error
}

// Warm shortens the next Commit, if the engine can.
func (s *dbSwitch[T, P]) Warm(ctx context.Context) error {
	w, ok := s.d.engine.(warmer[P])
	if !ok {
		return nil
	}
	return s.doHeld(ctx, "look for later writes to "+s.d.records.noun, func(p P, _, base cas.Root) error {
		return w.Warm(ctx, p, base)
	})
}

// Commit makes the live state the target.
func (s *dbSwitch[T, P]) Commit(ctx context.Context) error {
	op := "restore " + s.d.records.noun
	return s.doHeld(ctx, op, func(p P, target, base cas.Root) error {
		if p.Head().Phase != Committed {
			if err := p.Head().Forward(op); err != nil {
				return err
			}
			if err := s.d.engine.Commit(ctx, p, target, base); err != nil {
				return err
			}
			if err := s.d.records.Advance(p, Committed); err != nil {
				return err
			}
		}
		return s.tidy(ctx, p)
	})
}

// Undo makes the live state the base again, if a Commit began. What was written
// after Commit is lost; what was written while there was no Commit stays.
func (s *dbSwitch[T, P]) Undo(ctx context.Context) error {
	return s.doHeld(ctx, "undo the restore of "+s.d.records.noun, func(p P, target, base cas.Root) error {
		switch p.Head().Phase {
		case Undone:
			return s.tidy(ctx, p)
		case Prepared:
			return s.d.records.Advance(p, Undone)
		}
		if err := s.d.records.Advance(p, Undoing); err != nil {
			return err
		}
		if err := s.d.engine.Undo(ctx, p, target, base); err != nil {
			return err
		}
		if err := s.d.records.Advance(p, Undone); err != nil {
			return err
		}
		return s.tidy(ctx, p)
	})
}

// tidier is an Engine that leaves something beside the live state when it was killed at the
// end of a Commit or an Undo.
type tidier[P Planned] interface {
	Tidy(ctx context.Context, p P) error
}

func (s *dbSwitch[T, P]) tidy(ctx context.Context, p P) error {
	if t, ok := s.d.engine.(tidier[P]); ok {
		return t.Tidy(ctx, p)
	}
	return nil
}

// Check reads the live state again and compares.
func (s *dbSwitch[T, P]) Check(ctx context.Context) (proof snap.Proof, err error) {
	err = s.doHeld(ctx, "check the restore of "+s.d.records.noun, func(p P, want, base cas.Root) (err error) {
		if p.Head().Back() {
			want = base
		}
		if proof.Pre, err = HashOf(base); err != nil {
			return err
		}
		if proof.Want, err = HashOf(want); err != nil {
			return err
		}
		proof.Post, proof.Notes, err = s.d.engine.ReadBack(ctx, p, want)
		proof.Match = err == nil && proof.Post == proof.Want
		return err
	})
	return proof, err
}

// Finish drops what was kept for Undo; what of it a server cannot drop now is left for
// Leftovers. A restore that is half done must be committed or undone first.
func (s *dbSwitch[T, P]) Finish(ctx context.Context) error {
	op := "finish the restore of " + s.d.records.noun
	err := s.do(ctx, op, func(p P) error {
		if err := p.Head().Ended(op); err != nil {
			return err
		}
		return s.d.drop(ctx, p)
	})
	if errs.KindOf(err) == errs.NotFound {
		return nil
	}
	return err
}
