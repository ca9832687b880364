package rollback

import (
	"context"

	"mulligan/daemon/accounts"
	"mulligan/daemon/store"
	"mulligan/errs"
)

// abandon ends a rollback that changed nothing.
func (r *rollback) abandon(ctx context.Context) error {
	err := r.finishParts(ctx)                                          // what it leaves is swept by pursue
	short, cancel := context.WithTimeout(ctx, r.d.apps.StopLimit(r.a)) // as in callOff
	defer cancel()
	if err == nil {
		r.dropSafety(ctx)
	}
	err = errs.Also(err, r.startAgain(short))
	return errs.Also(err, r.d.checkpoints.End(ctx, r.a, r.op))
}

// dropSafety drops the safety checkpoint of a rollback that changed nothing: the app is
// what it holds. One that cannot be dropped stays, and is marked as called off. One that is
// not marked is of a rollback that was done, whose records lost that, and stays too.
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

// putBack makes every layer the safety checkpoint's again and starts the app.
// While it fails the plan stays, and pursue tries again.
func (r *rollback) putBack(ctx context.Context) error {
	if r.plan.Phase == preparing { // no layer was touched
		err := r.abandon(ctx)
		r.recovered = err == nil
		return err
	}
	if err := errs.Wrap(errs.Failed, "put the app back", r.undo(ctx)); err != nil {
		r.a.RequestRecovery(err)
		return err
	}
	r.recovered = true
	return nil
}

// undo is what both a failed rollback and the recovery of one run.
func (r *rollback) undo(ctx context.Context) error {
	if err := r.writePlan(ctx, undoing); err != nil {
		return err
	}
	if r.stops() {
		if err := r.halt(ctx); err != nil {
			return err
		}
	}
	var failed error
	for i := len(r.parts) - 1; i >= 0; i-- { // one that fails keeps no other from its state
		failed = errs.Also(failed, r.undoPart(ctx, &r.parts[i]))
	}
	if failed != nil {
		return failed
	}
	startErr := r.startAgain(ctx)
	if startErr == nil {
		if err := r.writePlan(ctx, undone); err != nil { // else the app would be stopped to undo it again
			return err
		}
	}
	return errs.Also(startErr, r.finish(ctx))
}

// undoPart makes one layer the safety checkpoint's again.
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
		if err := p.check(ctx); err != nil && !r.foreign(p) {
			return err
		}
	}
	r.putBackWords = append(r.putBackWords, p.back())
	return nil
}

// startAgain starts the app that is put back, if it was up before. One that was not
// well up may stay as it was.
func (r *rollback) startAgain(ctx context.Context) error {
	err := r.d.apps.StartAgain(ctx, r.a, r.plan.Running && r.stops())
	if err != nil && r.plan.Limping {
		r.warnings.add("the app was not well up before, and does not start: %v", err)
		return nil
	}
	return err
}

// finish drops what was kept for an undo, and the plan.
func (r *rollback) finish(ctx context.Context) error {
	if err := r.finishParts(ctx); err != nil {
		return err
	}
	if err := r.d.checkpoints.End(ctx, r.a, r.op); err != nil {
		return err
	}
	r.d.store.WasDisposed(store.Disposal{Kind: store.DisposeRestore, ID: string(r.op)})
	return nil
}
