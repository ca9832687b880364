package rollback

import (
	"context"
	"slices"

	"mulligan/daemon/accounts"
	"mulligan/daemon/store"
	"mulligan/errs"
	"mulligan/snap"
)

// abandon ends a rollback that changed nothing. notStarted is why the app could not be started again: the rollback has ended all the same.
func (r *rollback) abandon(ctx context.Context) (notStarted, err error) {
	err = r.parts.finish(ctx)                                          // recovery sweeps what this leaves
	short, cancel := context.WithTimeout(ctx, r.d.apps.StopLimit(r.a)) // a start that hangs does not block the end for ever
	defer cancel()
	if err == nil {
		r.dropSafety(ctx)
	}
	notStarted = r.unit.startAgain(short)
	return notStarted, errs.Also(err, r.d.checkpoints.End(ctx, r.a, r.op))
}

// dropSafety drops the safety checkpoint of a rollback that changed nothing, because the app is what it
// holds. A safety checkpoint that cannot be dropped stays, marked as called off. One without that mark
// belongs to a rollback that was done, although the records lost its end, and stays too.
func (r *rollback) dropSafety(ctx context.Context) {
	if r.safety.ID == "" || !r.safety.CalledOff {
		return
	}
	entry := r.d.events.Entry(r.a.Rec(), accounts.Self(), "delete", string(r.safety.ID), "its rollback changed nothing", nil, nil)
	if err := r.d.checkpoints.DeleteCheckpoints(ctx, r.a, &entry, r.safety); err != nil {
		r.d.opt.Log.Warn("the safety checkpoint of a rollback that was called off stays", "app", r.a.Rec().Slug, "checkpoint", r.safety.ID, "err", err)
		return
	}
	r.safety = store.Checkpoint{}
}

// putBack makes every layer the safety checkpoint's again and starts the app. If putBack fails, the
// plan stays, and the daemon's recovery tries again.
func (r *rollback) putBack(ctx context.Context) error {
	if r.plan.Phase == preparing { // no layer was touched
		err := errs.Also(r.abandon(ctx))
		r.recovered = err == nil
		return err
	}
	if err := errs.Wrap(errs.Failed, "put the app back", errs.Also(r.undo(ctx))); err != nil {
		r.a.RequestRecovery(err)
		return err
	}
	r.recovered = true
	return nil
}

// undo switches every layer back and starts the app. A rollback that failed runs it, and the recovery
// of one. notStarted is why the app could not be started: the undo may have ended all the same.
func (r *rollback) undo(ctx context.Context) (notStarted, err error) {
	if err := r.writePlan(ctx, undoing); err != nil {
		return nil, err
	}
	if r.unit.stops() {
		if err := r.unit.haltRest(ctx); err != nil {
			return nil, err
		}
	}
	left, err := r.undoParts(ctx, r.parts.list)
	if len(left) < len(r.parts.list) { // a database's folder may be a file until the files are back
		_, err = r.undoParts(ctx, left)
	}
	if err == nil {
		err = r.undoRest(ctx)
	}
	if err != nil {
		return nil, err
	}
	notStarted = r.unit.startAgain(ctx)
	if notStarted == nil {
		if err := r.writePlan(ctx, undone); err != nil { // else the app would be stopped to undo it again
			return nil, err
		}
	}
	return notStarted, r.finish(ctx)
}

// undoParts switches layers back to the safety checkpoint's state, the last one first. A layer that fails does not stop the others: undoParts
// returns those that failed, and their errors.
func (r *rollback) undoParts(ctx context.Context, list []*part) (left []*part, failed error) {
	for _, p := range slices.Backward(list) {
		if err := r.undoPart(ctx, p); err != nil {
			left, failed = append(left, p), errs.Also(failed, err)
		}
	}
	slices.Reverse(left)
	return left, failed
}

// undoRest switches the files back again, after the databases, if a folder had to stay for the files of a database that are gone now.
func (r *rollback) undoRest(ctx context.Context) error {
	p := r.parts.find(snap.Files)
	if p == nil {
		return nil
	}
	if left, err := p.left(ctx); err != nil || !left {
		return err
	}
	return r.undoPart(ctx, p)
}

// undoPart switches one layer back to the safety checkpoint's state.
func (r *rollback) undoPart(ctx context.Context, p *part) error {
	if p.sw == nil {
		return nil
	}
	if err := r.d.opt.Failpoint.At("undo " + string(p.Name)); err != nil {
		return err
	}
	if err := p.sw.Undo(ctx); err != nil {
		return err
	}
	if r.plan.Verify {
		if err := p.check(ctx); err != nil && !r.othersWrote(p) {
			return err
		}
	}
	if note := p.undoNote(); !slices.Contains(r.putBackNotes, note) { // the files may be undone twice
		r.putBackNotes = append(r.putBackNotes, note)
	}
	return nil
}

// finish drops what was kept for an undo, and deletes the plan.
func (r *rollback) finish(ctx context.Context) error {
	if err := r.parts.finish(ctx); err != nil {
		return err
	}
	if err := r.d.checkpoints.End(ctx, r.a, r.op); err != nil {
		return err
	}
	r.d.store.WasDisposed(store.Disposal{Kind: store.DisposeRestore, ID: string(r.op)})
	return nil
}

// othersWrote reports whether an undo that was tried before may end although a part is not what it was.
// What the rollback changed is back, so that others must have written, and another try would change
// nothing. The safety checkpoint still holds the state before.
func (r *rollback) othersWrote(p *part) bool {
	if !r.again || p.proof == nil || p.proof.Match {
		return false
	}
	r.d.opt.Log.Warn("a rollback is undone, and others have written meanwhile", "app", r.a.Rec().Slug, "layer", string(p.Name), "before", r.safety.ID)
	r.warnings.add("Others have written to %s meanwhile. Its state before that is in %s.", p.Name, r.safety.ID)
	return true
}
