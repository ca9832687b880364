package app

import (
	"context"
	"fmt"
	"time"

	"mulligan/daemon/accounts"
	"mulligan/errs"
	"mulligan/ipc"
)

// CloseDrivers closes what the present drivers hold open, before others take their place.
func (s *Set) CloseDrivers(a *App) {
	a.AwaitRehearsal()
	if err := a.Now.Load().Close(); err != nil {
		s.opt.Log.Warn("a driver did not close", "app", a.Rec().Slug, "err", err)
	}
}

// Open sets an app up. What is wrong with it is kept in broken, until settle has
// done all of its work: one app's trouble is not another's.
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

// Acquire makes the caller the only one who changes the app, having settled
// what an earlier operation left. Somebody else at it is errs.Busy.
func (s *Set) Acquire(ctx context.Context, a *App, what string, who ipc.Caller) (release func(), err error) {
	return s.take(ctx, a, what, who, false)
}

// AcquireBrief is acquire for the daemon's own short work: it waits for others,
// and others wait for it instead of being turned away.
func (s *Set) AcquireBrief(ctx context.Context, a *App, what string) (release func(), err error) {
	return s.take(ctx, a, what, accounts.Self(), true)
}

func (s *Set) take(ctx context.Context, a *App, what string, who ipc.Caller, brief bool) (release func(), err error) {
	if err := a.NoteOwner(s.CheckOwner(a.Rec())); err != nil {
		return nil, errs.Wrap(errs.Denied, what, err)
	}
	release, err = s.Hold(ctx, a, what, who, brief)
	if err != nil {
		return nil, err
	}
	err = s.Settle(ctx, a)
	if err != nil {
		release()
		return nil, errs.Wrap(errs.Failed, what, err)
	}
	return release, nil
}

// NoteOwner notes why the app's owner is not who it was, nil where it is, and returns it.
func (a *App) NoteOwner(err error) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ownerless = err
	return err
}

// Hold is take for an app that cannot be worked with: what an earlier operation
// left stays, and whose the app is doesn't matter.
func (s *Set) Hold(ctx context.Context, a *App, what string, who ipc.Caller, brief bool) (release func(), err error) {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil, errs.New(errs.Unavailable, what, "the daemon is stopping").WithHint("try again when it is up")
	}
	s.ops.Add(1)
	s.mu.Unlock()
	if err := a.hold(ctx, what, who, brief, s.opt.Now()); err != nil {
		s.ops.Done()
		return nil, err
	}
	a.cutRehearsal()
	return func() {
		a.LetGo()
		s.Pursue(a)
		s.ops.Done()
	}, nil
}

// hold waits until the app is free, or says who has it.
func (a *App) hold(ctx context.Context, what string, who ipc.Caller, brief bool, now time.Time) error {
	for {
		a.mu.Lock()
		if a.gone {
			a.mu.Unlock()
			return errs.New(errs.NotFound, what, "%s is no longer registered", a.Rec().Slug)
		}
		if a.holder == "" {
			a.holder = fmt.Sprintf("%s by %s since %s", what, accounts.Actor(who), now.UTC().Format(time.RFC3339))
			a.brief, a.freed = brief, make(chan struct{})
			a.mu.Unlock()
			return nil
		}
		holder, wait, freed := a.holder, a.brief || brief, a.freed
		a.mu.Unlock()
		if !wait {
			return errs.New(errs.Busy, what, "%s is busy: %s", a.Rec().Slug, holder).WithHint("wait for it to end and try again")
		}
		select {
		case <-freed:
		case <-ctx.Done():
			return errs.Wrap(errs.Unavailable, what, ctx.Err())
		}
	}
}

func (a *App) LetGo() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.holder, a.Sizes = "", Sizes{}
	a.rest.unlooked = a.rest.unlooked || !a.brief && a.leaves()
	close(a.freed)
}
