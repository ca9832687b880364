package database

import (
	"context"

	"mulligan/errs"
	"mulligan/snap"
)

// dbSwitch is a switch under way. Its state is in the plan on disk.
type dbSwitch[T any, P planPointer[T], S any] struct {
	d       *Switcher[T, P, S]
	id      snap.RestoreID
	changes []snap.Change
	total   int
}

func (s *dbSwitch[T, P, S]) Changes(limit int) ([]snap.Change, int) {
	return s.changes[:max(0, min(limit, len(s.changes)))], s.total
}

// do calls f with the plan, while no other method runs.
func (s *dbSwitch[T, P, S]) do(ctx context.Context, op string, f func(P) error) error {
	return s.d.Do(ctx, op, func() error {
		p, err := s.d.Resumable(op, s.id)
		if err != nil {
			return err
		}
		return f(p)
	})
}

// doHeld calls f with the plan, the target and the base.
func (s *dbSwitch[T, P, S]) doHeld(ctx context.Context, op string, f func(p P, target, base S) error) error {
	return s.do(ctx, op, func(p P) error {
		target, base, err := s.d.snapshots.Held(p.Head())
		if err != nil {
			return err
		}
		return f(p, target, base)
	})
}

func (s *dbSwitch[T, P, S]) Stale(ctx context.Context) (stale bool, err error) {
	err = s.doHeld(ctx, "look for later writes to "+s.d.plans.noun, func(p P, _, base S) (err error) {
		stale, err = s.d.steps.Stale(ctx, p, base)
		return err
	})
	return stale, err
}

// warmer is an Engine that can do part of Commit's work while the app still runs.
type warmer[P Planned, S any] interface {
	Warm(ctx context.Context, p P, base S) error
}

// Warm does part of Commit's work ahead of it, if the engine can.
func (s *dbSwitch[T, P, S]) Warm(ctx context.Context) error {
	w, ok := s.d.steps.(warmer[P, S])
	if !ok {
		return nil
	}
	return s.doHeld(ctx, "look for later writes to "+s.d.plans.noun, func(p P, _, base S) error {
		return w.Warm(ctx, p, base)
	})
}

func (s *dbSwitch[T, P, S]) Commit(ctx context.Context) error {
	op := "restore " + s.d.plans.noun
	return s.doHeld(ctx, op, func(p P, target, base S) error {
		if p.Head().Phase != Committed {
			if err := p.Head().Forward(op); err != nil {
				return err
			}
			if err := s.d.steps.Commit(ctx, p, target, base); err != nil {
				return err
			}
			if err := s.d.plans.Advance(p, Committed); err != nil {
				return err
			}
		}
		return s.tidy(ctx, p)
	})
}

// Undo makes the live state the base again if a Commit began. It discards writes made since
// Commit; without a Commit it changes nothing.
func (s *dbSwitch[T, P, S]) Undo(ctx context.Context) error {
	return s.doHeld(ctx, "undo the restore of "+s.d.plans.noun, func(p P, target, base S) error {
		if p.Head().Phase == Undone {
			return s.tidy(ctx, p)
		}
		if p.Head().Phase != Prepared {
			if err := s.d.plans.Advance(p, Undoing); err != nil {
				return err
			}
			if err := s.d.steps.Undo(ctx, p, target, base); err != nil {
				return err
			}
		}
		if err := s.d.plans.Advance(p, Undone); err != nil {
			return err
		}
		return s.tidy(ctx, p)
	})
}

// tidier is an Engine that may leave files beside the live state if it was killed at the end of
// a Commit or an Undo.
type tidier[P Planned] interface {
	Tidy(ctx context.Context, p P) error
}

func (s *dbSwitch[T, P, S]) tidy(ctx context.Context, p P) error {
	if t, ok := s.d.steps.(tidier[P]); ok {
		return t.Tidy(ctx, p)
	}
	return nil
}

func (s *dbSwitch[T, P, S]) Check(ctx context.Context) (proof snap.Proof, err error) {
	err = s.doHeld(ctx, "check the restore of "+s.d.plans.noun, func(p P, target, base S) (err error) {
		proof, err = s.d.check(ctx, p, target, base)
		return err
	})
	return proof, err
}

// Finish drops everything that was kept for Undo. DropLeftovers later drops the parts that the server cannot drop now. Finish
// returns an error if a Commit or an Undo is incomplete.
func (s *dbSwitch[T, P, S]) Finish(ctx context.Context) error {
	op := "finish the restore of " + s.d.plans.noun
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
