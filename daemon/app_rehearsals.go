package daemon

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
	known map[snap.Layer]rehearsed
}

// rehearsed is what is known of a database's present schema.
type rehearsed struct {
	shape   string
	problem string // why it could not be restored; "": it could, or it is too large to try
}

// beginRehearsal gives the context of a rehearsal, which the next operation cancels, or nil
// where nothing is due or somebody has the app. The caller must call end, once at least.
func (a *app) beginRehearsal(ctx context.Context) (inner context.Context, end func()) {
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
func (a *app) cutRehearsal() {
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

// awaitRehearsal waits until a rehearsal that was cut short has ended: its driver may be
// neither swept nor closed before. The caller holds the app.
func (a *app) awaitRehearsal() {
	a.mu.Lock()
	under, ended := a.rehearsals.cut != nil, a.rehearsals.ended
	a.mu.Unlock()
	if under {
		<-ended
	}
}

// restRehearsals has what failed for a reason that passes tried again, later and later. Once
// nothing failed any more, the server is there: what rehearsals before left on it is swept.
func (a *app) restRehearsals(err error) {
	a.mu.Lock()
	r := &a.rehearsals
	dirty := r.dirty
	r.dirty = err != nil
	if err == nil {
		r.wait = 0
		a.mu.Unlock()
		if dirty {
			a.unsettle(nil)
		}
		return
	}
	defer a.mu.Unlock()
	r.due, r.wait = true, min(max(2*r.wait, rehearseAgain), rehearseMost)
	r.after = time.Now().Add(r.wait)
	a.rest.unlooked = a.rest.unlooked || a.leaves()
}

// knows reports whether s need not be rehearsed: it was, or one of the same shape was and
// could be restored.
func (a *app) knows(cps []store.Checkpoint, name snap.Layer, s store.Snapshot, shape string) bool {
	if s.Rehearsal != nil && s.Rehearsal.Shape == shape {
		a.learn(name, rehearsed{shape, s.Rehearsal.Problem})
		return true
	}
	for _, cp := range cps {
		if o, ok := cp.Snapshot(name); ok && o.Rehearsal != nil && o.Rehearsal.Shape == shape && o.Rehearsal.Problem == "" {
			a.learn(name, rehearsed{shape: shape})
			return true
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	k, ok := a.rehearsals.known[name]
	return ok && k == rehearsed{shape: shape}
}

func (a *app) learn(name snap.Layer, k rehearsed) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.rehearsals.known == nil {
		a.rehearsals.known = map[snap.Layer]rehearsed{}
	}
	a.rehearsals.known[name] = k
}

// rehearsalDue has what was captured now looked at.
func (a *app) rehearsalDue() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.rehearsals.due = true
}

// foretold warns of a snapshot just made whose schema could not be restored in a rehearsal.
func (a *app) foretold(l layer.Layer, id snap.SnapshotID) []string {
	a.mu.Lock()
	known := a.rehearsals.known[l.Name]
	a.mu.Unlock()
	r, ok := l.Driver.(snap.Rehearser)
	if !ok || known.problem == "" {
		return nil
	}
	if shape, err := r.Shape(id); err != nil || shape != known.shape {
		return nil
	}
	return []string{cannotBeRestored(known.problem)}
}

// rehearsalProblems says which databases could not be restored. The caller holds a.mu.
func (a *app) rehearsalProblems() (list []string) {
	for _, l := range a.layers() {
		if k := a.rehearsals.known[l.Name]; k.problem != "" {
			list = append(list, fmt.Sprintf("%s: %s", l.Name, cannotBeRestored(k.problem)))
		}
	}
	return list
}

func cannotBeRestored(problem string) string {
	return "A rehearsal could not restore it, so a rollback could not: " + problem
}
