package rollback

import (
	"context"
	"encoding/json"
	"slices"
	"strings"

	"mulligan/daemon/app"
	"mulligan/daemon/store"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/snap"
)

// RecoverRollback finishes or undoes a rollback that a crash cut short, and says which.
func (d *Service) RecoverRollback(ctx context.Context, a *app.App, op store.Operation) (string, error) {
	g := &toCheckpoint{}
	g.r = d.newOperation(a, op.ID, ipc.RollbackRequest{}, g)
	return g.r.recover(ctx, op)
}

// RecoverRevert finishes or undoes a revert that a crash cut short, and says which.
func (d *Service) RecoverRevert(ctx context.Context, a *app.App, op store.Operation) (string, error) {
	g := &withoutWrites{}
	g.r = d.newOperation(a, op.ID, ipc.RollbackRequest{}, g)
	return g.r.recover(ctx, op)
}

func (r *rollback) recover(ctx context.Context, op store.Operation) (string, error) {
	if err := json.Unmarshal(op.Plan, &r.plan); err != nil {
		return "", errs.Wrap(errs.Corrupt, "", err)
	}
	r.again = r.plan.Phase == undoing
	err := r.resume(ctx)
	if r.forgotten(err) {
		notStarted := r.unit.startAgain(ctx)
		return r.ended("had ended, but the records did not say so", notStarted), r.d.store.EndOperation(ctx, op.ID)
	}
	if err != nil {
		return "", err
	}
	switch r.plan.Phase {
	case preparing:
		notStarted, err := r.abandon(ctx)
		return r.ended("was called off before it changed anything", notStarted), err
	case switched:
		return r.recoverSwitched(ctx)
	case undone:
		return r.ended("was undone", nil), r.finish(ctx)
	case switching:
		err := r.goForward(ctx)
		if err == nil {
			r.goal.audit(ctx, nil)
			return r.ended("was finished", nil), nil
		}
		r.d.opt.Log.Warn("a "+op.Kind+" could not be finished and is undone", "app", r.a.Rec().Slug, "err", err)
		fallthrough
	case undoing:
		notStarted, err := r.undo(ctx)
		return r.ended("was undone", notStarted), err
	}
	return "", errs.New(errs.Unsupported, "", "unknown phase %q", r.plan.Phase)
}

// ended says for people how a recovery ended the operation, and why the app could not be started then, if it could not.
func (r *rollback) ended(how string, notStarted error) string {
	words := app.Recovered("a "+r.goal.words()+" "+how, notStarted)
	return strings.Join(append([]string{words}, r.warnings.list...), ". ")
}

// forgotten reports whether the operation had ended and the records lost its end: the plan says that
// layers are being switched, and no driver has a switch of the operation. err is the error that resume
// returned.
func (r *rollback) forgotten(err error) bool {
	if err != nil && errs.KindOf(err) != errs.NotFound || r.plan.Phase != switching && r.plan.Phase != undoing {
		return false
	}
	return !slices.ContainsFunc(r.parts.list, func(p *part) bool { return p.sw != nil })
}

// resume reads the checkpoints that the plan names, and resumes the switches of its layers.
func (r *rollback) resume(ctx context.Context) (err error) {
	var missing error
	if err := r.goal.resume(ctx); err != nil {
		missing = err
	}
	if r.plan.Safety != "" {
		r.safety, err = r.d.store.Checkpoint(ctx, r.a.Rec().ID, r.plan.Safety)
		if err != nil && (r.plan.Phase != preparing || errs.KindOf(err) != errs.NotFound) {
			missing = err // else it was not recorded yet, or dropped already
		}
	}
	for _, name := range r.plan.Layers {
		l, ok := r.a.Layer(name)
		if !ok {
			return errs.New(errs.Conflict, "", "the app has no layer %s any more", name)
		}
		p := &part{Layer: l}
		if s, ok := r.target.Snapshot(name); ok {
			p.target = s.ID
		}
		sw, err := l.Driver.Resume(ctx, snap.RestoreID(r.op))
		if err != nil && errs.KindOf(err) != errs.NotFound {
			return err
		}
		if err == nil {
			p.sw, p.touched = sw, r.plan.Phase != preparing
			p.list, p.total = r.goal.changes(p)
		}
		r.parts.list = append(r.parts.list, p)
	}
	return missing
}

// goForward finishes a rollback whose commit point was passed.
func (r *rollback) goForward(ctx context.Context) error {
	stages := []stage{
		{ipc.StageSafety, func(context.Context) (string, error) { return "id=" + string(r.safety.ID), nil }},
		{ipc.StageStop, r.stopAgain}, {ipc.StageVM, r.switchFiles}, {ipc.StageDB, r.switchDBs},
		{ipc.StageStart, r.start},
	}
	if err := r.stages.runAll(ctx, stages); err != nil {
		return err
	}
	return r.finishForward(ctx)
}

// recoverSwitched ends a rollback whose layers are all at the target. The app may have been running
// since. If the app does not start, the rollback is undone only if nothing was written since, because
// an undo would lose it. If nobody can start it, because what starts it is down, recoverSwitched returns an error, to be called again.
func (r *rollback) recoverSwitched(ctx context.Context) (string, error) {
	startErr := r.stages.run(ctx, ipc.StageStart, r.start)
	if startErr != nil {
		if _, away := r.unit.status(ctx); errs.KindOf(away) == errs.Unavailable { // it says nothing of the app that its container engine or systemd is down
			return "", away
		}
	}
	if startErr != nil && r.parts.unwritten(ctx) {
		notStarted, err := r.undo(ctx)
		return r.ended("was undone: "+startErr.Error(), notStarted), err
	}
	if err := r.finishForward(ctx); err != nil {
		return "", err
	}
	r.goal.audit(ctx, startErr)
	return r.ended("was finished", startErr), nil
}

// stopAgain stops what runs of the app, which the host's boot may have started.
func (r *rollback) stopAgain(ctx context.Context) (string, error) {
	for _, p := range r.parts.list {
		if p.sw == nil {
			return "", errs.New(errs.Corrupt, "", "the prepared restore of %s no longer exists", p.Name)
		}
	}
	if !r.unit.stops() {
		return r.unit.runsOn(), errSkipped
	}
	now, err := r.unit.status(ctx)
	if err != nil {
		return "", err
	}
	r.unit.before = now
	if err := r.unit.haltRest(ctx); err != nil {
		return "", err
	}
	return r.unit.stopped()
}
