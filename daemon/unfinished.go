package daemon

import (
	"context"
	"slices"
	"time"

	"mulligan/daemon/accounts"
	"mulligan/errs"
	"mulligan/snap"
)

// The waits between two tries to finish what is unfinished: each is twice the one before.
const (
	retryFirst = time.Second
	retryMost  = time.Minute
)

// unfinished is what keeps an app from being all that it should be, beside what
// settle finds. It is guarded by app.mu.
type unfinished struct {
	pursued   bool          // a goroutine of pursue is at it
	trying    bool          // and has the app
	poke      chan struct{} // has it try again now
	down      bool          // what runs whenever the daemon does has not been started
	owed      bool          // an operation could not start the app, for who starts it is away
	unlooked  bool          // nobody asked the drivers for leftovers since the last operation
	untracked bool          // the tracker was not started, for the files layer was held up
	left      []string      // those leftovers, and what kept the app from being started
	told      string        // the error that the audit trail has last
}

// owed reports whether anything about the app is unfinished, and whether the first
// try at it need not wait. The caller holds a.mu.
func (a *app) owed() (owed, atOnce bool) {
	held := len(a.heldWords()) > 0
	atOnce = a.broken == nil && len(a.rest.left) == 0 && !held
	return held || !a.settled || a.broken != nil || a.rest.down || a.rest.owed || a.rest.unlooked || len(a.rest.left) > 0 || a.lags(), atOnce
}

// lags reports whether the app's tracker follows by a driver that was replaced since, or
// was not started because the files layer was held up. The caller holds a.mu.
func (a *app) lags() bool {
	l, ok := a.layer(snap.Files)
	if _, held := l.driver.(*heldUp); !ok || held {
		return false
	}
	return a.rest.untracked || a.tracker != nil && a.tracker.driver != l.driver
}

// leaves reports whether a driver of the app may leave something behind.
func (a *app) leaves() bool {
	return slices.ContainsFunc(a.layers(), func(l layer) bool {
		_, ok := l.driver.(snap.Leaver)
		return ok
	})
}

// pursue has a goroutine finish what is unfinished about the app, if anything is and
// no goroutine is at it. The record of what that is are the operations in the store,
// and the drivers' own: a daemon that starts finds it again.
func (d *Daemon) pursue(a *app) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed || d.apps[a.rec().ID] != a {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	owed, atOnce := a.owed()
	if a.rest.pursued || a.ownerless != nil || !owed {
		return
	}
	a.rest.pursued = true
	wait := retryFirst
	if atOnce {
		wait = 0
	}
	d.bg.Go(func() { d.finishLater(d.run, a, wait) })
}

// finishLater tries to finish what is unfinished about the app, again and again, until
// nothing is, or the daemon closes.
func (d *Daemon) finishLater(ctx context.Context, a *app, wait time.Duration) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		case <-a.rest.poke:
			wait = 0
		}
		err := d.finishNow(ctx, a)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			d.opt.Log.Warn("something is unfinished, and tried again", "app", a.rec().Slug, "err", err)
		}
		if a.restFinished() {
			return
		}
		wait = min(max(2*wait, retryFirst), retryMost)
	}
}

// restFinished ends the pursuit where nothing is unfinished, where the app is no longer
// registered, or where its owner is not who it was: that is watchOwner's.
func (a *app) restFinished() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	owed, _ := a.owed()
	a.rest.pursued = owed && a.ownerless == nil && !a.gone
	return !a.rest.pursued
}

// finishNow is one try.
func (d *Daemon) finishNow(ctx context.Context, a *app) error {
	release, err := d.hold(ctx, a, "finish what is unfinished", accounts.Self(), true)
	if err != nil {
		return err
	}
	defer release()
	defer a.try()()
	if !d.registered(a) {
		a.forgetRest()
		return nil
	}
	if err := a.noteOwner(d.CheckOwner(a.rec())); err != nil {
		return err
	}
	if err := d.settle(ctx, a); err != nil {
		return err
	}
	if err := d.sweepHeld(ctx, a); err != nil {
		return err
	}
	err = d.rise(ctx, a)
	left := d.leftovers(ctx, a)
	if err != nil {
		left = append(left, "the app could not be started: "+withHint(err))
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.rest.left, a.rest.unlooked = left, false
	return err
}

// try notes that a try is under way, until the func that it returns is called.
func (a *app) try() (end func()) {
	set := func(trying bool) {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.rest.trying = trying
	}
	set(true)
	return func() { set(false) }
}

// registered reports whether the app was not removed meanwhile.
func (d *Daemon) registered(a *app) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.apps[a.rec().ID] == a
}

// forgetRest leaves nothing to be finished of an app that was removed.
func (a *app) forgetRest() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.settled, a.broken, a.tracker = true, nil, nil
	a.rest = unfinished{pursued: a.rest.pursued, poke: a.rest.poke}
}

// leftovers asks the drivers that may have left something behind to drop it, and says
// what is still there.
func (d *Daemon) leftovers(ctx context.Context, a *app) (left []string) {
	for _, l := range a.layers() {
		r, ok := l.driver.(snap.Leaver)
		if !ok {
			continue
		}
		words, err := r.Leftovers(ctx)
		if err != nil {
			words = append(words, withHint(err))
		}
		for _, w := range words {
			left = append(left, string(l.name)+": "+w)
		}
	}
	return left
}

// rise starts what of the app runs whenever the daemon does, its supervised command and
// the tracker, and what an operation could not start. The caller holds the app, which is settled.
func (d *Daemon) rise(ctx context.Context, a *app) error {
	a.mu.Lock()
	down, owed, lags := a.rest.down, a.rest.owed, a.lags()
	a.mu.Unlock()
	if !down && !owed && !lags {
		return nil
	}
	var err error
	if down && !a.asleep.Load() {
		err = d.startCommand(ctx, a, true)
	}
	if owed && a.unit() != nil {
		err = errs.Also(err, d.startUnit(ctx, a))
	}
	if lags || a.tracking() == nil {
		d.startTracker(ctx, a)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.rest.down, a.rest.owed = down && err != nil, owed && err != nil
	return err
}

// unsettle has what an operation leaves seen to as soon as it ends: by pursue, or by the
// next operation. why is what is wrong, for the app's problems; nil where nothing may be.
func (a *app) unsettle(why error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.settled = false
	if why != nil {
		a.broken = why
	}
	if !a.rest.trying {
		select {
		case a.rest.poke <- struct{}{}:
		default:
		}
	}
}

// oweStart has the app started by pursue, and its drivers opened anew, where err says that
// who starts it is away. What else keeps an app from starting is the app's own.
func (a *app) oweStart(err error) {
	if errs.KindOf(err) != errs.Unavailable {
		return
	}
	a.unsettle(err)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.rest.owed = true
}

// unfinishedWords says what is unfinished and tried again. The caller holds a.mu.
func (a *app) unfinishedWords() (list []string) {
	const again = "; mulligand tries again by itself, until it works"
	if a.broken != nil {
		list = append(list, withHint(a.broken)+again)
	} else if a.rest.down && len(a.rest.left) == 0 {
		list = append(list, "the app is not started yet; mulligand keeps trying")
	}
	for _, w := range append(a.heldWords(), a.rest.left...) {
		list = append(list, w+again)
	}
	return list
}

// unfinishedBusiness is unfinishedWords for a caller without a.mu.
func (a *app) unfinishedBusiness() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.unfinishedWords()
}

// news reports whether the error is another than the last that was told; nil always is.
func (a *app) news(err error) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err == nil {
		a.rest.told = ""
		return true
	}
	if a.rest.told == err.Error() {
		return false
	}
	a.rest.told = err.Error()
	return true
}

// withHint is an error with what to do about it.
func withHint(err error) string {
	if hint := errs.HintOf(err); hint != "" {
		return err.Error() + "; " + hint
	}
	return err.Error()
}
