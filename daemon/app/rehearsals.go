package app

import (
	"context"
	"fmt"
	"sync"
	"time"

	"mulligan/daemon/layer"
	"mulligan/daemon/store"
	"mulligan/snap"
)

// The waits before a rehearsal that was cut short is begun again: each is twice the one before.
const (
	rehearseAgain = 5 * time.Second
	rehearseMost  = time.Hour
)

// rehearsals is what an app's rehearsals are at. It is guarded by app.mu.
type rehearsals struct {
	due   bool          // a checkpoint was made, or the daemon started, since all was looked at
	cut   func()        // ends the one that is under way; nil: none is
	ended chan struct{} // closed when it has ended
	dirty bool          // one was cut short, and what it made may be left on the server
	after time.Time     // when it may be tried again
	wait  time.Duration
	known map[snap.Layer]Rehearsed
}

// Rehearsed is what is known of a database's present schema.
type Rehearsed struct {
	Shape   string
	Problem string // why it could not be restored; "": it could, or it is too large to try
}

// BeginRehearsal gives the context of a rehearsal, which the next operation cancels, or nil
// where nothing is due or somebody has the app. The caller must call end, once at least.
func (a *App) BeginRehearsal(ctx context.Context) (inner context.Context, end func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	r := &a.rehearsals
	if !r.due || a.holder != "" || !a.settled || a.broken != nil || a.ownerless != nil || time.Now().Before(r.after) {
		return nil, nil
	}
	inner, cut := context.WithCancel(ctx)
	ended := make(chan struct{})
	r.due, r.cut, r.ended = false, cut, ended
	var once sync.Once
	return inner, func() {
		once.Do(func() {
			cut()
			a.mu.Lock()
			defer a.mu.Unlock()
			r.cut = nil
			close(ended)
		})
	}
}

// clearUpGrace is how long an operation waits for a rehearsal that it cut short. One that
// still waits for its server then, as for a frozen one, goes on clearing up beside the operation.
const clearUpGrace = time.Second

// cutRehearsal ends the rehearsal that is under way, and gives it a moment to clear up. The
// caller holds the app, so that no other begins.
func (a *App) cutRehearsal() {
	a.mu.Lock()
	cut, ended := a.rehearsals.cut, a.rehearsals.ended
	a.mu.Unlock()
	if cut == nil {
		return
	}
	cut()
	select {
	case <-ended:
	case <-time.After(clearUpGrace):
	}
}

// AwaitRehearsal waits until a rehearsal that was cut short has ended: its driver may be
// neither swept nor closed before. The caller holds the app.
func (a *App) AwaitRehearsal() {
	a.mu.Lock()
	under, ended := a.rehearsals.cut != nil, a.rehearsals.ended
	a.mu.Unlock()
	if under {
		<-ended
	}
}

// RestRehearsals has what failed for a reason that passes tried again, later and later. Once
// nothing failed any more, the server is there: what rehearsals before left on it is swept.
func (a *App) RestRehearsals(err error) {
	a.mu.Lock()
	r := &a.rehearsals
	dirty := r.dirty
	r.dirty = err != nil
	if err == nil {
		r.wait = 0
		a.mu.Unlock()
		if dirty {
			a.Unsettle(nil)
		}
		return
	}
	defer a.mu.Unlock()
	r.due, r.wait = true, min(max(2*r.wait, rehearseAgain), rehearseMost)
	r.after = time.Now().Add(r.wait)
	a.rest.unlooked = a.rest.unlooked || a.leaves()
}

// Knows reports whether s need not be rehearsed: it was, or one of the same shape was and
// could be restored.
func (a *App) Knows(cps []store.Checkpoint, name snap.Layer, s store.Snapshot, shape string) bool {
	if s.Rehearsal != nil && s.Rehearsal.Shape == shape {
		a.Learn(name, Rehearsed{shape, s.Rehearsal.Problem})
		return true
	}
	for _, cp := range cps {
		if o, ok := cp.Snapshot(name); ok && o.Rehearsal != nil && o.Rehearsal.Shape == shape && o.Rehearsal.Problem == "" {
			a.Learn(name, Rehearsed{Shape: shape})
			return true
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	k, ok := a.rehearsals.known[name]
	return ok && k == Rehearsed{Shape: shape}
}

func (a *App) Learn(name snap.Layer, k Rehearsed) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.rehearsals.known == nil {
		a.rehearsals.known = map[snap.Layer]Rehearsed{}
	}
	a.rehearsals.known[name] = k
}

// RehearsalDue has what was captured now looked at.
func (a *App) RehearsalDue() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.rehearsals.due = true
}

// Foretold warns of a snapshot just made whose schema could not be restored in a rehearsal.
func (a *App) Foretold(l layer.Layer, id snap.SnapshotID) []string {
	a.mu.Lock()
	known := a.rehearsals.known[l.Name]
	a.mu.Unlock()
	r, ok := l.Driver.(snap.Rehearser)
	if !ok || known.Problem == "" {
		return nil
	}
	if shape, err := r.Shape(id); err != nil || shape != known.Shape {
		return nil
	}
	return []string{CannotBeRestored(known.Problem)}
}

// rehearsalProblems says which databases could not be restored. The caller holds a.mu.
func (a *App) rehearsalProblems() (list []string) {
	for _, l := range a.Layers() {
		if k := a.rehearsals.known[l.Name]; k.Problem != "" {
			list = append(list, fmt.Sprintf("%s: %s", l.Name, CannotBeRestored(k.Problem)))
		}
	}
	return list
}

func CannotBeRestored(problem string) string {
	return "A rehearsal could not restore it, so a rollback could not: " + problem
}
