package daemon

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"mulligan/daemon/records"
	"mulligan/daemon/store"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/snap"
)

// The first checkpoint of a database, and the first one after its schema changed, is
// rehearsed: the daemon restores it beside the live database, compares the two, and drops
// what it made. What cannot be restored is known then, and not in the hour of need.

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

// rehearseAll rehearses what is due, one database at a time, until the daemon closes.
func (d *Daemon) rehearseAll(ctx context.Context) {
	tick := time.NewTicker(d.opt.UpkeepEvery)
	defer tick.Stop()
	for {
		for _, a := range d.all() {
			if err := d.rehearse(ctx, a); err != nil && ctx.Err() == nil {
				d.opt.Log.Warn("a rehearsal is tried again", "app", a.rec().Slug, "err", err)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// rehearse rehearses what is due of an app that nobody works on.
func (d *Daemon) rehearse(ctx context.Context, a *app) error {
	ctx, end := a.beginRehearsal(ctx)
	if ctx == nil {
		return nil
	}
	defer end()
	done, err := d.rehearseDue(ctx, a)
	end() // what follows needs the app
	for _, o := range done {
		if e := d.noteRehearsal(context.WithoutCancel(ctx), a, o); err == nil {
			err = e
		}
	}
	a.restRehearsals(err)
	d.pursue(a)
	return err
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

// outcome is what came of the rehearsal of one snapshot.
type outcome struct {
	cp    ipc.CheckpointID
	layer snap.Layer
	store.Rehearsal
}

// rehearseDue rehearses the newest snapshot of each database whose schema was not rehearsed
// yet. An error is one that another try may not meet.
func (d *Daemon) rehearseDue(ctx context.Context, a *app) (done []outcome, err error) {
	for _, l := range a.layers() {
		r, ok := l.driver.(snap.Rehearser)
		if !ok {
			continue
		}
		cps, err := d.store.Checkpoints(ctx, a.rec().ID)
		if err != nil {
			return done, err
		}
		cp, s, ok := newestOf(cps, l.name)
		if !ok {
			continue
		}
		shape, err := r.Shape(s.ID)
		if err != nil || shape == "" || a.knows(cps, l.name, s, shape) {
			continue // what cannot be read is told by verify
		}
		if ok, err := d.smallEnough(ctx, l); err != nil || !ok {
			if err != nil {
				return done, err
			}
			a.learn(l.name, rehearsed{shape: shape})
			continue
		}
		err = r.Rehearse(ctx, snap.RestoreID(records.NewID("rehearse-")), s.ID)
		if passes(ctx, err) {
			return done, err
		}
		o := outcome{cp: cp.ID, layer: l.name, Rehearsal: store.Rehearsal{At: d.opt.Now().UTC(), Shape: shape}}
		if err != nil {
			o.Problem = withHint(err)
		}
		done = append(done, o)
	}
	return done, nil
}

// newestOf finds the newest checkpoint that has the layer.
func newestOf(cps []store.Checkpoint, name snap.Layer) (store.Checkpoint, store.Snapshot, bool) {
	for _, cp := range cps {
		if s, ok := cp.Snapshot(name); ok && cp.Damaged == "" && !s.Raw {
			return cp, s, true
		}
	}
	return store.Checkpoint{}, store.Snapshot{}, false
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

// smallEnough reports whether a database may be rehearsed for its size.
func (d *Daemon) smallEnough(ctx context.Context, l layer) (bool, error) {
	w, ok := l.driver.(snap.SizeEstimator)
	if !ok {
		return true, nil
	}
	if err := d.opt.Failpoint.At("estimate the size of " + string(l.name) + " for a rehearsal"); err != nil {
		return false, err
	}
	size, err := w.EstimateSize(ctx)
	return size <= d.opt.RehearseMax, err
}

// passes reports whether a rehearsal ended for a reason that says nothing of the snapshot.
func passes(ctx context.Context, err error) bool {
	kind := errs.KindOf(err)
	return err != nil && (ctx.Err() != nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) ||
		kind == errs.Unavailable || kind == errs.Busy || kind == errs.NotFound)
}

// noteRehearsal writes an outcome down. A checkpoint that is gone meanwhile needs none.
func (d *Daemon) noteRehearsal(ctx context.Context, a *app, o outcome) error {
	release, err := d.acquireBrief(ctx, a, "note a rehearsal")
	if err != nil {
		return err
	}
	defer release()
	cp, err := d.store.Checkpoint(ctx, a.rec().ID, o.cp)
	if errs.KindOf(err) == errs.NotFound {
		return nil
	}
	if err != nil {
		return err
	}
	for i := range cp.Snapshots {
		if cp.Snapshots[i].Layer == o.layer {
			cp.Snapshots[i].Rehearsal = &o.Rehearsal
		}
	}
	if err := d.opt.Failpoint.At("record rehearsal"); err != nil {
		return err
	}
	if err := d.store.PutCheckpoint(ctx, cp, ""); err != nil {
		return err
	}
	a.learn(o.layer, rehearsed{o.Shape, o.Problem})
	if o.Problem != "" {
		d.opt.Log.Warn("a checkpoint cannot be restored", "app", a.rec().Slug, "checkpoint", o.cp, "layer", o.layer, "err", o.Problem)
	}
	d.publish(a.rec().ID, "checkpoint", public(cp))
	return nil
}

// rehearsalDue has what was captured now looked at.
func (a *app) rehearsalDue() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.rehearsals.due = true
}

// foretold warns of a snapshot just made whose schema could not be restored in a rehearsal.
func (a *app) foretold(l layer, id snap.SnapshotID) []string {
	a.mu.Lock()
	known := a.rehearsals.known[l.name]
	a.mu.Unlock()
	r, ok := l.driver.(snap.Rehearser)
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
		if k := a.rehearsals.known[l.name]; k.problem != "" {
			list = append(list, fmt.Sprintf("%s: %s", l.name, cannotBeRestored(k.problem)))
		}
	}
	return list
}

func cannotBeRestored(problem string) string {
	return "A rehearsal could not restore it, so a rollback could not: " + problem
}
