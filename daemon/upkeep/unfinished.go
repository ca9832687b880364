package upkeep

import (
	"context"
	"time"

	"mulligan/daemon/accounts"
	"mulligan/daemon/app"
	"mulligan/daemon/turns"
	"mulligan/errs"
	"mulligan/snap"
)

// The wait between two retries doubles, from retryFirst to retryMost.
const (
	retryFirst = time.Second
	retryMost  = time.Minute
)

// retryUnfinished starts a goroutine that finishes what is unfinished about the app, unless
// nothing is or such a goroutine runs. The unfinished work is recorded in the store's operations
// and by the drivers, so a daemon that starts finds it again.
func (svc *Service) retryUnfinished(a *app.App) {
	if !svc.apps.Registered(a) {
		return
	}
	begun, atOnce := a.BeginRetries()
	if !begun {
		return
	}
	wait := retryFirst
	if atOnce {
		wait = 0
	}
	svc.apps.Background(func() { svc.finishLater(svc.run, a, wait) })
}

// finishLater retries until nothing about the app is unfinished, or until ctx ends.
func (svc *Service) finishLater(ctx context.Context, a *app.App, wait time.Duration) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		case <-a.RetryNow():
			wait = 0
		}
		err := svc.finishNow(ctx, a)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			svc.opt.Log.Warn("an unfinished operation will be tried again", "app", a.Rec().Slug, "err", err)
		}
		if a.EndRetries() {
			return
		}
		wait = min(max(2*wait, retryFirst), retryMost)
	}
}

// finishNow makes one try to finish what is unfinished.
func (svc *Service) finishNow(ctx context.Context, a *app.App) error {
	release, err := svc.apps.Hold(ctx, a, "finish what is unfinished", accounts.Self(), app.Brief)
	if err != nil {
		return err
	}
	defer release()
	defer a.Try()()
	if !svc.apps.Registered(a) {
		a.ForgetUnfinished()
		return nil
	}
	if err := a.NoteOwner(svc.owners.CheckOwner(a.Rec())); err != nil {
		return err
	}
	if err := svc.Recover(ctx, a); err != nil {
		return err
	}
	if err := svc.sweepHeld(ctx, a); err != nil {
		return err
	}
	err = svc.rise(ctx, a)
	left := svc.leftovers(ctx, a)
	if err != nil {
		left = append(left, "the app could not be started: "+errs.Words(err))
	}
	a.NoteLeftovers(left)
	return err
}

// leftovers asks the drivers to drop their leftovers, and returns what still exists, one phrase
// each.
func (svc *Service) leftovers(ctx context.Context, a *app.App) (left []string) {
	for _, l := range a.Layers() {
		r, ok := l.Driver.(snap.LeftoverDropper)
		if !ok {
			continue
		}
		words, err := r.DropLeftovers(ctx)
		if err != nil {
			words = append(words, errs.Words(err))
		}
		for _, w := range words {
			left = append(left, string(l.Name)+": "+w)
		}
	}
	return left
}

// rise starts the app's supervised command, its tracker, and a unit that an operation could not
// start. The caller must have acquired and recovered the app.
func (svc *Service) rise(ctx context.Context, a *app.App) error {
	down, owed, lags := a.ToStart()
	if !down && !owed && !lags {
		return nil
	}
	var err error
	if down && !a.Asleep.Load() {
		err = svc.apps.StartCommand(ctx, a, true)
	}
	a.NoteDown(err != nil)
	if owed {
		err = errs.Also(err, svc.apps.StartOwed(ctx, a))
	}
	if lags || turns.TrackerOf(a) == nil {
		svc.turns.StartTracker(ctx, a)
	}
	return err
}
