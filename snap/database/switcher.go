package database

import (
	"context"
	"sync"

	"mulligan/errs"
	"mulligan/snap"
)

// Steps is what a kind of database does in each step of a switch. P is a pointer to its plan,
// and S what a snapshot is known by. A Switcher calls one method at a time. Errors need no kind:
// Classify gives them one.
type Steps[P Planned, S any] interface {
	// Plan fills in p, which is not saved yet, and refuses what could not be restored. It
	// changes nothing. old is the plan of an earlier preparation under the same id, or nil.
	Plan(ctx context.Context, p, old P, target, base S) error

	// Build makes the target ready beside the live state, durably. p was saved before, so that
	// Drop, which is called after an error, finds what is there. What old built may be used again.
	Build(ctx context.Context, p, old P, target, base S) error

	// Stale reports whether the live state is no longer the base.
	Stale(ctx context.Context, p P, base S) (bool, error)

	// Commit makes the live state the target, if it is still the base, or where an earlier
	// Commit left it. It saves p as Committing before the live state changes, and not before.
	Commit(ctx context.Context, p P, target, base S) error

	// Undo makes the live state the base again, from wherever Commit or Undo left it.
	// p is saved as Undoing.
	Undo(ctx context.Context, p P, target, base S) error

	// Drop drops what the switch has beside the live state, whatever of it is there. A live
	// state that is neither base nor target becomes the base again: p.Reached tells how far the
	// switch got. left names what the server cannot drop, each in a phrase.
	Drop(ctx context.Context, p P) (left []string, err error)

	// Classify gives err a kind and a hint, where it has none, and the operation. nil stays nil.
	Classify(op string, err error) error
}

// Snapshots is where a driver's snapshots are kept, and the two ends of its switches with them: a
// snapshot may be deleted while a switch needs it.
type Snapshots[S any] interface {
	// Snapshot finds a snapshot: errs.NotFound where there is none.
	Snapshot(op string, id snap.SnapshotID) (S, error)

	// Intact checks that all of a snapshot is there.
	Intact(ctx context.Context, s S) error

	// Hold keeps target and base for the switch whose plan p is.
	Hold(p *Plan, target, base S) error

	// Held gives what Hold kept. That one is missing is damage.
	Held(p *Plan) (target, base S, err error)

	// Release lets go of what is held for a switch, but for keep.
	Release(id snap.RestoreID, keep ...snap.SnapshotID) error
}

// planPointer is a pointer to a plan T.
type planPointer[T any] interface {
	*T
	Planned
}

// Switcher is the part of a driver that takes switches through their steps: their order, and
// what is on the disk before each of them.
type Switcher[T any, P planPointer[T], S any] struct {
	steps     Steps[P, S]
	plans     *Plans
	snapshots Snapshots[S]
	check     func(ctx context.Context, p P, target, base S) (snap.Proof, error)
	mu        sync.Mutex // held during each method: they are rare, and the state is one
}

// NewSwitcher makes a Switcher. check reads the live state again, and compares it with what p
// says should be live.
func NewSwitcher[T any, P planPointer[T], S any](plans *Plans, in Snapshots[S], steps Steps[P, S],
	check func(ctx context.Context, p P, target, base S) (snap.Proof, error),
) *Switcher[T, P, S] {
	return &Switcher[T, P, S]{steps: steps, plans: plans, snapshots: in, check: check}
}

// Do calls f while no other method of the driver runs, and classifies its error.
func (d *Switcher[T, P, S]) Do(ctx context.Context, op string, f func() error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return errs.Wrap(errs.Unavailable, op, err)
	}
	return d.steps.Classify(op, f())
}

// load reads the plan of a switch; without one there is no switch.
func (d *Switcher[T, P, S]) load(op string, id snap.RestoreID) (P, error) {
	p := P(new(T))
	if err := d.plans.Load(op, id, p); err != nil {
		return nil, err
	}
	return p, nil
}

// Resumable reads the plan of a switch that got as far as being prepared.
func (d *Switcher[T, P, S]) Resumable(op string, id snap.RestoreID) (P, error) {
	p, err := d.load(op, id)
	if err == nil && !p.Head().There() {
		return nil, d.plans.NoSwitch(op, id)
	}
	return p, err
}

// Resume returns the switch that an earlier process prepared.
func (d *Switcher[T, P, S]) Resume(_ context.Context, id snap.RestoreID) (snap.Switch, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	p, err := d.Resumable("resume "+d.plans.noun+" restore", id)
	if err != nil {
		return nil, err
	}
	return d.restore(p), nil
}

func (d *Switcher[T, P, S]) restore(p P) snap.Switch {
	h := p.Head()
	return &dbSwitch[T, P, S]{d: d, id: h.ID, changes: h.Changes, total: max(h.Total, len(h.Changes))}
}
