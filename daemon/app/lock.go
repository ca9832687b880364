package app

import (
	"context"
	"fmt"
	"time"

	"mulligan/daemon/accounts"
	"mulligan/errs"
	"mulligan/ipc"
)

// CloseDrivers closes the app's present drivers, so that new ones can be opened.
func (s *Set) CloseDrivers(a *App) {
	a.AwaitRehearsal()
	if err := a.Now.Load().Close(); err != nil {
		s.opt.Log.Warn("a driver did not close", "app", a.Rec().Slug, "err", err)
	}
}

// Open opens the app's drivers. It keeps an error in the app, so that other apps are not affected;
// a successful Recover clears it.
func (s *Set) Open(ctx context.Context, a *App) error {
	s.CloseDrivers(a)
	next, err := s.SetUp(ctx, a.Rec())
	if err == nil {
		next.KeepHeld(a.Now.Load())
		a.Now.Store(next)
	}
	if err != nil {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.broken = err
	}
	return err
}

// EnsureOpen opens the app's drivers if nobody has since the daemon's start, as the app's turn has not come or its drivers could not be opened. Until
// then it has no layers, and its checkpoints seem to have nothing in them: whoever reads these without acquiring the app must call EnsureOpen first.
func (s *Set) EnsureOpen(ctx context.Context, a *App, what string) error {
	if len(a.Layers()) > 0 {
		return nil
	}
	release, err := s.AcquireBrief(ctx, a, what)
	if err == nil {
		release()
	} else if len(a.Layers()) > 0 {
		err = nil // only its recovery failed, which reading does not need
	}
	return err
}

// Way says which of two operations on the same app waits for the other one. Where none waits, the second one fails with errs.Busy.
type Way struct {
	waits   bool // the operation waits for the one that has the app
	awaited bool // other operations wait for this one
}

// The ways of operations.
var (
	// Alone is for operations that change the app.
	Alone = Way{}
	// Brief is for the daemon's own short work.
	Brief = Way{waits: true, awaited: true}
	// Look is for dry runs. People decide by what a dry run lists, and their decision must not be refused because another dry run goes on.
	Look = Way{awaited: true}
)

// Acquire makes the caller the only one who may change the app, until it calls release. It
// recovers first what an interrupted operation left. It blocks while a dry run or short work of the
// daemon has the app; if another operation has it, the error is errs.Busy.
func (s *Set) Acquire(ctx context.Context, a *App, what string, who ipc.Caller) (release func(), err error) {
	return s.AcquireAs(ctx, a, what, who, Alone)
}

// AcquireToLook is Acquire for a dry run: operations that come meanwhile wait for its end.
func (s *Set) AcquireToLook(ctx context.Context, a *App, what string, who ipc.Caller) (release func(), err error) {
	return s.AcquireAs(ctx, a, what, who, Look)
}

// AcquireBrief is Acquire for the daemon's own short work: it waits for other operations, and
// they wait for it, instead of failing with errs.Busy.
func (s *Set) AcquireBrief(ctx context.Context, a *App, what string) (release func(), err error) {
	return s.AcquireAs(ctx, a, what, accounts.Self(), Brief)
}

// AcquireAs is Acquire for an operation of that way.
func (s *Set) AcquireAs(ctx context.Context, a *App, what string, who ipc.Caller, way Way) (release func(), err error) {
	if err := a.NoteOwner(s.CheckOwner(a.Rec())); err != nil {
		return nil, errs.Wrap(errs.Denied, what, err)
	}
	release, err = s.Hold(ctx, a, what, who, way)
	if err != nil {
		return nil, err
	}
	err = s.Recover(ctx, a)
	if err != nil {
		release()
		return nil, errs.Wrap(errs.Failed, what, err)
	}
	return release, nil
}

// NoteOwner records how the owner's account changed (nil: it did not) and returns err.
func (a *App) NoteOwner(err error) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ownerless = err
	return err
}

// Hold is Acquire without recovery and without a check of the owner, for an app that no operation
// can work on.
func (s *Set) Hold(ctx context.Context, a *App, what string, who ipc.Caller, way Way) (release func(), err error) {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil, errs.New(errs.Unavailable, what, "the daemon is stopping").WithHint("try again when it has started")
	}
	s.ops.Add(1)
	s.mu.Unlock()
	if err := a.hold(ctx, what, who, way, s.opt.Now()); err != nil {
		s.ops.Done()
		return nil, err
	}
	a.cutRehearsal()
	return func() {
		a.Release()
		s.RetryUnfinished(a)
		s.ops.Done()
	}, nil
}

// hold waits until the app is free and takes it. If other operations are not to be waited for, it
// returns errs.Busy and names the one that has the app.
func (a *App) hold(ctx context.Context, what string, who ipc.Caller, way Way, now time.Time) error {
	for {
		a.mu.Lock()
		if a.gone {
			a.mu.Unlock()
			return errs.New(errs.NotFound, what, "%s is no longer registered", a.Rec().Slug)
		}
		if a.activity == "" {
			a.activity = fmt.Sprintf("%s by %s since %s", what, accounts.Actor(who), now.UTC().Format(time.RFC3339))
			a.way, a.released = way, make(chan struct{})
			a.mu.Unlock()
			return nil
		}
		activity, wait, released := a.activity, a.way.awaited || way.waits, a.released
		a.mu.Unlock()
		if !wait {
			return errs.New(errs.Busy, what, "%s is busy: %s", a.Rec().Slug, activity).WithHint("wait for it to end and try again")
		}
		select {
		case <-released:
		case <-ctx.Done():
			return errs.Wrap(errs.Unavailable, what, ctx.Err())
		}
	}
}

func (a *App) Release() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.activity, a.Sizes = "", Sizes{}
	if a.unfinished.queued && !a.way.waits {
		a.unfinished.queued, a.unfinished.retrying = false, false
	}
	a.unfinished.unchecked = a.unfinished.unchecked || !a.way.waits && a.mayLeave()
	close(a.released)
}
