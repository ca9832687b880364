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

// The wait before a cancelled rehearsal is tried again doubles, from rehearseAgain to rehearseMost.
const (
	rehearseAgain = 5 * time.Second
	rehearseMost  = time.Hour
)

// rehearsals is the state of an app's rehearsals. App.mu guards it.
type rehearsals struct {
	due   bool          // a checkpoint was made, or the daemon started, since the last complete pass
	cut   func()        // cancels the rehearsal under way; nil if there is none
	ended chan struct{} // closed when that rehearsal has ended
	dirty bool          // a rehearsal was cancelled and may have left objects on the server
	after time.Time     // the earliest time of the next try
	wait  time.Duration
	known map[snap.Layer]Rehearsed
}

// Rehearsed is the result of rehearsals for a database's present schema.
type Rehearsed struct {
	Shape   string
	Problem string // why a snapshot could not be restored; "" if it could, or if it is too large to try
}

// BeginRehearsal returns a context for a rehearsal, which the next operation cancels. It returns
// nil if no rehearsal is due or an operation has the app. The caller must call end, at least once.
func (a *App) BeginRehearsal(ctx context.Context) (inner context.Context, end func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	r := &a.rehearsals
	if !r.due || a.activity != "" || !a.recovered || a.broken != nil || a.ownerless != nil || time.Now().Before(r.after) {
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

// clearUpGrace is how long an operation waits for the rehearsal that it cancelled. A rehearsal
// that takes longer, for example because its server is frozen, cleans up while the operation runs.
const clearUpGrace = time.Second

// cutRehearsal cancels the rehearsal under way and waits up to clearUpGrace for its end. The
// caller must have acquired the app, so that no other rehearsal begins.
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

// AwaitRehearsal waits until a cancelled rehearsal has ended. A driver must not be swept or closed
// before that. The caller must have acquired the app.
func (a *App) AwaitRehearsal() {
	a.mu.Lock()
	under, ended := a.rehearsals.cut != nil, a.rehearsals.ended
	a.mu.Unlock()
	if under {
		<-ended
	}
}

// DelayRehearsals schedules the next try of rehearsals that failed with err, after a growing wait.
// If err is nil after a failure, the server answers again: the app is recovered once more, which
// sweeps what failed rehearsals left on it.
func (a *App) DelayRehearsals(err error) {
	a.mu.Lock()
	r := &a.rehearsals
	dirty := r.dirty
	r.dirty = err != nil
	if err == nil {
		r.wait = 0
		a.mu.Unlock()
		if dirty {
			a.RequestRecovery(nil)
		}
		return
	}
	defer a.mu.Unlock()
	r.due, r.wait = true, min(max(2*r.wait, rehearseAgain), rehearseMost)
	r.after = time.Now().Add(r.wait)
	a.unfinished.unchecked = a.unfinished.unchecked || a.mayLeave()
}

// CoveredByRehearsal reports whether s needs no rehearsal: s was rehearsed, or a snapshot of the
// same shape was restored in one.
func (a *App) CoveredByRehearsal(cps []store.Checkpoint, name snap.Layer, s store.Snapshot, shape string) bool {
	if s.Rehearsal != nil && s.Rehearsal.Shape == shape {
		a.NoteRehearsed(name, Rehearsed{shape, s.Rehearsal.Problem})
		return true
	}
	for _, cp := range cps {
		if o, ok := cp.Snapshot(name); ok && o.Rehearsal != nil && o.Rehearsal.Shape == shape && o.Rehearsal.Problem == "" {
			a.NoteRehearsed(name, Rehearsed{Shape: shape})
			return true
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	k, ok := a.rehearsals.known[name]
	return ok && k == Rehearsed{Shape: shape}
}

func (a *App) NoteRehearsed(name snap.Layer, k Rehearsed) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.rehearsals.known == nil {
		a.rehearsals.known = map[snap.Layer]Rehearsed{}
	}
	a.rehearsals.known[name] = k
}

// RehearsalDue requests a rehearsal, because a checkpoint was made.
func (a *App) RehearsalDue() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.rehearsals.due = true
}

// RehearsalWarnings returns a warning if a snapshot of the same shape as id could not be restored
// in a rehearsal.
func (a *App) RehearsalWarnings(l layer.Layer, id snap.SnapshotID) []string {
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

// rehearsalProblems returns the databases whose rehearsal failed. The caller must hold a.mu.
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
