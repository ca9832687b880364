package upkeep

import (
	"context"
	"errors"
	"time"

	"mulligan/daemon/app"
	"mulligan/daemon/checkpoint"
	"mulligan/daemon/layer"
	"mulligan/daemon/records"
	"mulligan/daemon/store"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/snap"
)

// The first checkpoint of a database, and the first one after its schema changed, is
// rehearsed: the daemon restores it beside the live database, compares the two, and drops
// what it made. What cannot be restored is known then, and not in the hour of need.

// RehearseAll runs the rehearsals that are due, one database at a time, until ctx ends.
func (svc *Service) RehearseAll(ctx context.Context) {
	tick := time.NewTicker(svc.opt.UpkeepEvery)
	defer tick.Stop()
	for {
		for _, a := range svc.apps.All() {
			if err := svc.rehearse(ctx, a); err != nil && ctx.Err() == nil {
				svc.opt.Log.Warn("a rehearsal is tried again", "app", a.Rec().Slug, "err", err)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// rehearse runs the due rehearsals of one app, unless an operation has the app.
func (svc *Service) rehearse(ctx context.Context, a *app.App) error {
	ctx, end := a.BeginRehearsal(ctx)
	if ctx == nil {
		return nil
	}
	defer end()
	done, err := svc.rehearseDue(ctx, a)
	end() // the next steps acquire the app
	for _, o := range done {
		if e := svc.noteRehearsal(context.WithoutCancel(ctx), a, o); err == nil {
			err = e
		}
	}
	a.DelayRehearsals(err)
	svc.retryUnfinished(a)
	return err
}

// outcome is the result of the rehearsal of one snapshot.
type outcome struct {
	cp    ipc.CheckpointID
	layer snap.Layer
	store.Rehearsal
}

// rehearseDue rehearses the newest snapshot of each database whose schema was not rehearsed yet. The error is the first of those after which
// another try may succeed: a database that cannot be reached keeps no other one from its rehearsal, and what an operation cut off is still due.
func (svc *Service) rehearseDue(ctx context.Context, a *app.App) (done []outcome, err error) {
	cps, err := svc.store.Checkpoints(ctx, a.Rec().ID)
	if err != nil {
		return nil, err
	}
	for _, l := range a.Layers() {
		if cut := ctx.Err(); cut != nil {
			return done, cut
		}
		o, e := svc.rehearseLayer(ctx, a, l, cps)
		if o != nil {
			done = append(done, *o)
		}
		if err == nil {
			err = e
		}
	}
	return done, err
}

// rehearseLayer rehearses the newest snapshot of a layer if that is due. It returns an error only if another try may succeed.
func (svc *Service) rehearseLayer(ctx context.Context, a *app.App, l layer.Layer, cps []store.Checkpoint) (*outcome, error) {
	r, ok := l.Driver.(snap.Rehearser)
	if !ok {
		return nil, nil
	}
	cp, s, ok := newestOf(cps, l.Name)
	if !ok {
		return nil, nil
	}
	shape, err := r.Shape(s.ID)
	if err != nil || shape == "" || a.CoveredByRehearsal(cps, l.Name, s, shape) {
		return nil, nil // Verify reports snapshots that cannot be read
	}
	if ok, err := svc.smallEnough(ctx, l); err != nil || !ok {
		if err == nil {
			a.NoteRehearsed(l.Name, app.Rehearsed{Shape: shape})
		}
		return nil, err
	}
	err = r.Rehearse(ctx, snap.RestoreID(records.NewID("rehearse-")), s.ID)
	if passes(ctx, err) {
		return nil, err
	}
	o := &outcome{cp: cp.ID, layer: l.Name, Rehearsal: store.Rehearsal{At: svc.opt.Now().UTC(), Shape: shape}}
	if err != nil {
		o.Problem = errs.Words(err)
	}
	return o, nil
}

// newestOf returns the newest checkpoint that has the layer.
func newestOf(cps []store.Checkpoint, name snap.Layer) (store.Checkpoint, store.Snapshot, bool) {
	for _, cp := range cps {
		if s, ok := cp.Snapshot(name); ok && cp.Damaged == "" && !s.Raw {
			return cp, s, true
		}
	}
	return store.Checkpoint{}, store.Snapshot{}, false
}

// smallEnough reports whether a database is small enough to be rehearsed.
func (svc *Service) smallEnough(ctx context.Context, l layer.Layer) (bool, error) {
	w, ok := l.Driver.(snap.SizeEstimator)
	if !ok {
		return true, nil
	}
	if err := svc.opt.Failpoint.At("estimate the size of " + string(l.Name) + " for a rehearsal"); err != nil {
		return false, err
	}
	size, err := w.EstimateSize(ctx)
	return size <= svc.opt.RehearseMax, err
}

// passes reports whether a rehearsal failed for a temporary reason, which says nothing about the
// snapshot.
func passes(ctx context.Context, err error) bool {
	kind := errs.KindOf(err)
	return err != nil && (ctx.Err() != nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) ||
		kind == errs.Unavailable || kind == errs.Busy || kind == errs.NotFound)
}

// noteRehearsal records an outcome. It does nothing if the checkpoint was deleted meanwhile.
func (svc *Service) noteRehearsal(ctx context.Context, a *app.App, o outcome) error {
	release, err := svc.apps.AcquireBrief(ctx, a, "note a rehearsal")
	if err != nil {
		return err
	}
	defer release()
	cp, err := svc.store.Checkpoint(ctx, a.Rec().ID, o.cp)
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
	if err := svc.opt.Failpoint.At("record rehearsal"); err != nil {
		return err
	}
	if err := svc.store.PutCheckpoint(ctx, cp, ""); err != nil {
		return err
	}
	a.NoteRehearsed(o.layer, app.Rehearsed{Shape: o.Shape, Problem: o.Problem})
	if o.Problem != "" {
		svc.opt.Log.Warn("a checkpoint cannot be restored", "app", a.Rec().Slug, "checkpoint", o.cp, "layer", o.layer, "err", o.Problem)
	}
	svc.events.Publish(a.Rec().ID, "checkpoint", checkpoint.Public(cp))
	return nil
}
