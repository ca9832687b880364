package database

import (
	"context"
	"sync"

	"mulligan/errs"
	"mulligan/snap"
)

// Steps is the engine-specific part of each step of a switch. P is a pointer to the engine's
// plan, and S is the engine's handle of a snapshot. A Switcher calls one method at a time. Steps
// may return errors without a kind: Classify adds it.
type Steps[P Planned, S any] interface {
	// Plan fills in p, which is not saved yet. It returns an error if the target cannot be restored, and changes nothing outside
	// p. old is the plan of an earlier preparation under the same id, or nil.
	Plan(ctx context.Context, p, old P, target, base S) error

	// Build durably builds the target beside the live state. p is saved before Build is called, so that Drop, which is called
	// after an error, finds every object. Build may reuse the objects of old.
	Build(ctx context.Context, p, old P, target, base S) error

	// Stale reports whether the live state is no longer the base.
	Stale(ctx context.Context, p P, base S) (bool, error)

	// Commit makes the live state the target if it is the base, or completes an interrupted
	// Commit. It saves p as Committing immediately before it changes the live state.
	Commit(ctx context.Context, p P, target, base S) error

	// Undo makes the live state the base again, however far Commit or an earlier Undo got.
	// p is already saved as Undoing.
	Undo(ctx context.Context, p P, target, base S) error

	// Drop drops all objects of the switch beside the live state. If the live state is partly base and partly target, Drop makes
	// it the base again; p.Reached is the phase that the switch had reached. left names the objects that the server cannot drop,
	// one phrase each.
	Drop(ctx context.Context, p P) (left []string, err error)

	// Classify adds the operation to err, and a kind and a hint if err has none. It returns nil if err is nil.
	Classify(op string, err error) error
}

// Snapshots is a driver's storage of snapshots. It keeps the targets and bases of switches separately, because a snapshot may
// be deleted while a switch needs it.
type Snapshots[S any] interface {
	// Snapshot returns a snapshot. The error is of kind errs.NotFound if there is no such snapshot.
	Snapshot(op string, id snap.SnapshotID) (S, error)

	// Intact checks that every part of a snapshot is stored.
	Intact(ctx context.Context, s S) error

	// Hold keeps target and base for the switch whose plan is p.
	Hold(p *Plan, target, base S) error

	// Held returns the target and base that Hold keeps. The error is of kind errs.Corrupt if one is missing.
	Held(p *Plan) (target, base S, err error)

	// Release drops the target and base that Hold keeps for a switch, except the snapshots in keep.
	Release(id snap.RestoreID, keep ...snap.SnapshotID) error
}

// planPointer constrains P to be a pointer to the plan type T.
type planPointer[T any] interface {
	*T
	Planned
}

// Switcher runs the steps of switches in order and makes the plan durable before each of
// them.
type Switcher[T any, P planPointer[T], S any] struct {
	steps     Steps[P, S]
	plans     *Plans
	snapshots Snapshots[S]
	check     func(ctx context.Context, p P, target, base S) (snap.Proof, error)
	mu        sync.Mutex // held while a method runs, because the methods share the live state
}

// NewSwitcher returns a Switcher. check reads the live state and compares it with the target or
// base that p says should be live.
func NewSwitcher[T any, P planPointer[T], S any](plans *Plans, in Snapshots[S], steps Steps[P, S],
	check func(ctx context.Context, p P, target, base S) (snap.Proof, error),
) *Switcher[T, P, S] {
	return &Switcher[T, P, S]{steps: steps, plans: plans, snapshots: in, check: check}
}

// Do calls f while no other method of the driver runs, and returns its error, classified with Steps.Classify.
func (d *Switcher[T, P, S]) Do(ctx context.Context, op string, f func() error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return errs.Wrap(errs.Unavailable, op, err)
	}
	return d.steps.Classify(op, f())
}

// load reads the plan of a switch.
func (d *Switcher[T, P, S]) load(op string, id snap.RestoreID) (P, error) {
	p := P(new(T))
	if err := d.plans.Load(op, id, p); err != nil {
		return nil, err
	}
	return p, nil
}

// Resumable reads the plan of a switch. The error is of kind errs.NotFound if its preparation was not completed, or it was
// dropped.
func (d *Switcher[T, P, S]) Resumable(op string, id snap.RestoreID) (P, error) {
	p, err := d.load(op, id)
	if err == nil && !p.Head().There() {
		return nil, d.plans.NoSwitch(op, id)
	}
	return p, err
}

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
