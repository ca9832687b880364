package app

import (
	"slices"

	"mulligan/daemon/layer"
	"mulligan/errs"
	"mulligan/snap"
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
func (a *App) owed() (owed, atOnce bool) {
	held := len(a.Now.Load().HeldWords()) > 0
	atOnce = a.broken == nil && len(a.rest.left) == 0 && !held
	return held || !a.settled || a.broken != nil || a.rest.down || a.rest.owed || a.rest.unlooked || len(a.rest.left) > 0 || a.lags(), atOnce
}

// lags reports whether the app's tracker follows by a driver that was replaced since, or
// was not started because the files layer was held up. The caller holds a.mu.
func (a *App) lags() bool {
	l, ok := a.Layer(snap.Files)
	if _, held := l.Driver.(*layer.Held); !ok || held {
		return false
	}
	return a.rest.untracked || a.Follower != nil && a.Follower.Driver() != l.Driver
}

// leaves reports whether a driver of the app may leave something behind.
func (a *App) leaves() bool {
	return slices.ContainsFunc(a.Layers(), func(l layer.Layer) bool {
		_, ok := l.Driver.(snap.LeftoverDropper)
		return ok
	})
}

// RestFinished ends the pursuit where nothing is unfinished, where the app is no longer
// registered, or where its owner is not who it was: that is watchOwner's.
func (a *App) RestFinished() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	owed, _ := a.owed()
	a.rest.pursued = owed && a.ownerless == nil && !a.gone
	return !a.rest.pursued
}

// Try notes that a try is under way, until the func that it returns is called.
func (a *App) Try() (end func()) {
	set := func(trying bool) {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.rest.trying = trying
	}
	set(true)
	return func() { set(false) }
}

// ForgetRest leaves nothing to be finished of an app that was removed.
func (a *App) ForgetRest() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.settled, a.broken, a.Follower = true, nil, nil
	a.rest = unfinished{pursued: a.rest.pursued, poke: a.rest.poke}
}

// Unsettle has what an operation leaves seen to as soon as it ends: by pursue, or by the
// next operation. why is what is wrong, for the app's problems; nil where nothing may be.
func (a *App) Unsettle(why error) {
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
func (a *App) oweStart(err error) {
	if errs.KindOf(err) != errs.Unavailable {
		return
	}
	a.Unsettle(err)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.rest.owed = true
}

// unfinishedWords says what is unfinished and tried again. The caller holds a.mu.
func (a *App) unfinishedWords() (list []string) {
	const again = "; mulligand tries again by itself, until it works"
	if a.broken != nil {
		list = append(list, errs.Words(a.broken)+again)
	} else if a.rest.down && len(a.rest.left) == 0 {
		list = append(list, "the app is not started yet; mulligand keeps trying")
	}
	for _, w := range append(a.Now.Load().HeldWords(), a.rest.left...) {
		list = append(list, w+again)
	}
	return list
}

// UnfinishedBusiness is unfinishedWords for a caller without a.mu.
func (a *App) UnfinishedBusiness() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.unfinishedWords()
}

// News reports whether the error is another than the last that was told; nil always is.
func (a *App) News(err error) bool {
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

// NoteUntracked notes whether the files are not followed because their layer is held up.
func (a *App) NoteUntracked(held bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.rest.untracked = held
}

// NoteDown notes that what runs whenever the daemon does has not been started.
func (a *App) NoteDown() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.rest.down = true
}

// BeginPursuit reports whether something is unfinished and nobody is at it, and whether the first
// try need not wait. The caller then is at it, until restFinished.
func (a *App) BeginPursuit() (begun, atOnce bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	owed, atOnce := a.owed()
	if a.rest.pursued || a.ownerless != nil || !owed {
		return false, false
	}
	a.rest.pursued = true
	return true, atOnce
}

// Poked passes on that what is unfinished should be tried again now.
func (a *App) Poked() <-chan struct{} { return a.rest.poke }

// NoteLeft notes what is left of earlier operations, now that the drivers were asked.
func (a *App) NoteLeft(words []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.rest.left, a.rest.unlooked = words, false
}

// ToStart says what is to be started: what runs whenever the daemon does, the app after an
// operation that could not start it, and the follower.
func (a *App) ToStart() (down, owed, lags bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.rest.down, a.rest.owed, a.lags()
}

// NoteStart notes what still is to be started.
func (a *App) NoteStart(down, owed bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.rest.down, a.rest.owed = down, owed
}
