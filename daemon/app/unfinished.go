package app

import (
	"slices"

	"mulligan/daemon/layer"
	"mulligan/errs"
	"mulligan/snap"
)

// unfinished is the work on an app that must be tried again: a failed recovery, a failed start,
// leftovers of drivers. App.mu guards it.
type unfinished struct {
	queued      bool          // the daemon has started, and the app's first try is due after those of other apps
	retrying    bool          // a retry goroutine runs for the app, or it is queued
	trying      bool          // that goroutine has acquired the app
	poke        chan struct{} // wakes the retry goroutine at once
	down        bool          // the supervised command has not been started yet
	owed        bool          // an operation could not start the app, because systemd, libvirt or the container engine was unavailable
	unchecked   bool          // the drivers were not asked for leftovers since the last operation
	untracked   bool          // the tracker was not started yet, or not because the files layer is held up
	left        []string      // the leftovers, and the error of the last start, one phrase each
	lastAudited string        // the last error written to the audit trail
}

// hasUnfinished reports whether anything about the app is unfinished, and whether the first try
// may start at once. The caller must hold a.mu.
func (a *App) hasUnfinished() (owed, atOnce bool) {
	held := len(a.Now.Load().HeldWords()) > 0
	atOnce = a.broken == nil && len(a.unfinished.left) == 0 && !held
	return held || !a.recovered || a.broken != nil || a.unfinished.down || a.unfinished.owed || a.unfinished.unchecked || len(a.unfinished.left) > 0 || a.followerOutdated(), atOnce
}

// followerOutdated reports whether the tracker must be started: it was not yet, its driver was replaced, or
// the files layer was held up when it should have started. The caller must hold a.mu.
func (a *App) followerOutdated() bool {
	l, ok := a.Layer(snap.Files)
	if _, held := l.Driver.(*layer.Held); !ok || held {
		return false
	}
	return a.unfinished.untracked || a.Follower != nil && a.Follower.Driver() != l.Driver
}

// mayLeave reports whether a driver of the app may leave leftovers behind.
func (a *App) mayLeave() bool {
	return slices.ContainsFunc(a.Layers(), func(l layer.Layer) bool {
		_, ok := l.Driver.(snap.LeftoverDropper)
		return ok
	})
}

// Queue notes when the daemon starts that nothing of the app was started yet, and that the first try waits for those of other apps. An operation on the
// app ends the wait, unless it is the daemon's own short work: what it leaves unfinished is tried again as after any other operation.
func Queue(a *App) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.unfinished.down, a.unfinished.untracked = len(a.Rec().Run) > 0, true
	a.unfinished.queued, a.unfinished.retrying = true, true
}

// Dequeue reports whether the first try is still due, and has the caller run the retries then, until EndRetries returns true.
func Dequeue(a *App) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	was := a.unfinished.queued
	a.unfinished.queued = false
	return was
}

// EndRetries ends the retries if nothing is unfinished, if the app is no longer registered, or if
// its owner's account changed (watchOwner deals with that). It reports whether they ended.
func (a *App) EndRetries() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	owed, _ := a.hasUnfinished()
	a.unfinished.retrying = owed && a.ownerless == nil && !a.gone
	return !a.unfinished.retrying
}

// Try marks a try as under way until the returned function is called.
func (a *App) Try() (end func()) {
	set := func(trying bool) {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.unfinished.trying = trying
	}
	set(true)
	return func() { set(false) }
}

// ForgetUnfinished clears all unfinished work of an app that was removed.
func (a *App) ForgetUnfinished() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.recovered, a.broken, a.Follower = true, nil, nil
	a.unfinished = unfinished{retrying: a.unfinished.retrying, poke: a.unfinished.poke}
}

// RequestRecovery has the app recovered as soon as the present operation ends: by the retry
// goroutine or by the next operation. Problems reports why; nil means that nothing may be wrong.
func (a *App) RequestRecovery(why error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.recovered = false
	if why != nil {
		a.broken = why
	}
	if !a.unfinished.trying {
		select {
		case a.unfinished.poke <- struct{}{}:
		default:
		}
	}
}

// NoteOwed has the retry goroutine start the app for an operation of [KindStart].
func (a *App) NoteOwed() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.unfinished.owed = true
}

// OwesStart reports whether the app is down, and meant to be up: an operation of [KindStart] has to start it, or its supervised command could not be
// started yet. A command beside a guest is not the whole app: the guest may have been stopped on purpose.
func (a *App) OwesStart() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	rec := a.Rec()
	return a.unfinished.owed || a.unfinished.down && len(rec.Run) > 0 && rec.Domain == ""
}

// unfinishedWords returns what is unfinished and tried again, one phrase each. The caller must
// hold a.mu.
func (a *App) unfinishedWords() (list []string) {
	const again = "; mulligand tries again by itself, until it works"
	if a.broken != nil {
		list = append(list, errs.Words(a.broken)+again)
	} else if a.unfinished.down && len(a.unfinished.left) == 0 {
		list = append(list, "the app is not started yet; mulligand keeps trying")
	}
	for _, w := range append(a.Now.Load().HeldWords(), a.unfinished.left...) {
		list = append(list, w+again)
	}
	return list
}

// Unfinished returns what is unfinished and tried again, one phrase each.
func (a *App) Unfinished() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.unfinishedWords()
}

// IsNewError reports whether err differs from the last error that it was called with. nil is
// always new, and resets it.
func (a *App) IsNewError(err error) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err == nil {
		a.unfinished.lastAudited = ""
		return true
	}
	if a.unfinished.lastAudited == err.Error() {
		return false
	}
	a.unfinished.lastAudited = err.Error()
	return true
}

// NoteUntracked records whether the files are not followed because their layer is held up.
func (a *App) NoteUntracked(held bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.unfinished.untracked = held
}

// NoteDown records whether the supervised command has yet to be started.
func (a *App) NoteDown(down bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.unfinished.down = down
}

// BeginRetries reports whether the caller must run the retries: something is unfinished and no
// other goroutine retries. They run until EndRetries returns true. atOnce reports whether the
// first try need not wait.
func (a *App) BeginRetries() (begun, atOnce bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	owed, atOnce := a.hasUnfinished()
	if a.unfinished.retrying || a.ownerless != nil || !owed {
		return false, false
	}
	a.unfinished.retrying = true
	return true, atOnce
}

// RetryNow returns a channel that receives a value when the next try should start at once.
func (a *App) RetryNow() <-chan struct{} { return a.unfinished.poke }

// NoteLeftovers records what the drivers could not drop.
func (a *App) NoteLeftovers(words []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.unfinished.left, a.unfinished.unchecked = words, false
}

// ToStart reports what must be started: the supervised command (down), the app after an operation
// that could not start it (owed), and the tracker (lags).
func (a *App) ToStart() (down, owed, lags bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.unfinished.down, a.unfinished.owed, a.followerOutdated()
}
