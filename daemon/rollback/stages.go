package rollback

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"

	"mulligan/daemon/app"
	"mulligan/daemon/checkpoint"
	"mulligan/daemon/store"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/snap"
	"mulligan/systemd"
)

// safetyCheckpoint captures the live state while the app still runs, and prepares every layer beside
// its live state.
func (r *rollback) safetyCheckpoint(ctx context.Context) (string, error) {
	now, onHost, err := r.unit.states(ctx)
	if err != nil {
		return "", err
	}
	r.unit.intend(now, r.target, r.req.Start)
	if err := r.writePlan(ctx, preparing); err != nil {
		return "", err
	}
	// An app that hangs answers late, and must not hold up its rescue: it is asked while it is captured.
	var was store.Checkpoint
	var asked sync.WaitGroup
	ask, stop := context.WithCancel(ctx)
	asked.Go(func() { r.d.apps.Note(ask, r.a, now, &was) })
	defer asked.Wait()
	defer stop()
	running := !now.Down()
	still := checkpoint.Stillness{All: r.a.Unit() != nil && !running, Host: onHost.Down()}
	cp, halted, err := r.captureBase(ctx, still, running)
	if err != nil {
		return "", err
	}
	asked.Wait()
	cp.Running, cp.Healthy = was.Running, was.Healthy
	cp.Trigger, cp.CalledOff = ipc.TriggerPreRollback, true // until the rollback is done
	cp.Notes, cp.RollbackTo = checkpoint.Optional("safety checkpoint before "+r.goal.words()), r.plan.Target
	cp.Warnings = append(cp.Warnings, r.goal.lacks()...)
	r.plan.Safety = cp.ID
	err = r.writePlan(ctx, preparing)
	if err == nil {
		err = r.d.checkpoints.Record(ctx, r.a, &cp, "")
	}
	if err != nil {
		return "", errs.Also(err, r.d.checkpoints.Drop(ctx, r.a, cp.Snapshots))
	}
	r.safety = cp
	r.warnOfRaw()
	if err := r.parts.prepare(ctx, r.safety, nil); err != nil {
		return "", err
	}
	if running && !halted && r.unit.stops() {
		r.parts.warm(ctx)
	}
	return "id=" + string(cp.ID), nil
}

// maxRecaptures bounds how often a safety checkpoint is brought up to date with writes that came while
// the app was being stopped.
const maxRecaptures = 3

// stop stops what runs of the app, and adds to the safety checkpoint what the app wrote until then, so
// that nothing is lost. Its last step is the commit point.
func (r *rollback) stop(ctx context.Context) (string, error) {
	if r.unit.stops() {
		if err := r.unit.halt(ctx); err != nil {
			return "", err
		}
	}
	recaptured := 0
	for {
		stale, err := r.parts.stale(ctx)
		if err != nil {
			return "", r.hints.orWithout(err)
		}
		if len(stale) == 0 {
			break
		}
		if recaptured++; recaptured > maxRecaptures {
			return "", snap.Changed("stop the app", strings.Join(layerList(stale), ", "))
		}
		if err := r.recapture(ctx, stale); err != nil {
			return "", err
		}
	}
	if err := r.writePlan(ctx, switching); err != nil {
		return "", err
	}
	note, err := r.unit.stopped()
	if recaptured > 0 {
		note, err = note+"; the safety checkpoint was brought up to date", nil
	}
	return note, err
}

// recapture replaces the safety checkpoint's snapshots of the layers in stale with new ones, and
// prepares these layers again.
func (r *rollback) recapture(ctx context.Context, stale map[snap.Layer]bool) error {
	cp := r.safety
	cp.Snapshots = slices.Clone(cp.Snapshots)
	var old, fresh []store.Snapshot
	var raw []snap.Layer
	for i, s := range cp.Snapshots {
		if !stale[s.Layer] {
			continue
		}
		l, _ := r.a.Layer(s.Layer)
		n, warnings, err := r.d.checkpoints.CaptureLayer(ctx, r.a, l, checkpoint.How{Still: checkpoint.Stillness{All: r.unit.stops()}, Revive: true, Salvage: true, Paths: r.paths})
		if err != nil {
			return errs.Also(err, r.d.checkpoints.Drop(ctx, r.a, fresh))
		}
		if n.Raw && !s.Raw {
			for _, w := range warnings {
				cp.Warnings = append(cp.Warnings, string(l.Name)+": "+w)
			}
			raw = append(raw, l.Name)
		}
		old, fresh = append(old, s), append(fresh, n)
		cp.Snapshots[i] = n
	}
	cp.Ref = app.HeadOf(r.a.Rec())
	if err := r.d.store.PutCheckpoint(ctx, cp, ""); err != nil {
		return errs.Also(err, r.d.checkpoints.Drop(ctx, r.a, fresh))
	}
	r.safety = cp
	if len(raw) > 0 {
		r.warnOfRaw(raw...)
	}
	if err := r.parts.prepare(ctx, r.safety, stale); err != nil {
		return err
	}
	return r.d.checkpoints.Drop(ctx, r.a, old)
}

func (r *rollback) switchFiles(ctx context.Context) (string, error) {
	return r.commit(ctx, false)
}

func (r *rollback) switchDBs(ctx context.Context) (string, error) {
	note, err := r.commit(ctx, true)
	if err == nil {
		err = r.hints.orWithout(r.commitRest(ctx))
	}
	return note, err
}

// commitRest commits the files again, after the databases, if a folder had to stay for the files of a database, and the target does not have these. Where
// others have written to the files meanwhile, the folder stays: the files were committed and compared before that.
func (r *rollback) commitRest(ctx context.Context) error {
	p := r.parts.find(snap.Files)
	if p == nil {
		return nil
	}
	if left, err := p.left(ctx); err != nil || !left {
		return err
	}
	proof := p.proof
	_, err := r.parts.commitPart(ctx, p, r.plan.Verify)
	if errors.Is(err, snap.ErrChanged) || p.proof != nil && !p.proof.Match {
		r.warnings.add("the files were not restored again after the databases, and the folder of a database may have stayed: %v", err)
		p.proof, err = proof, nil
	}
	return err
}

func (r *rollback) commit(ctx context.Context, dbs bool) (string, error) {
	note, err := r.parts.commit(ctx, dbs, r.plan.Verify)
	return note, r.hints.orWithout(err)
}

// start starts the app, if the plan says so.
func (r *rollback) start(ctx context.Context) (string, error) {
	if err := r.writePlan(ctx, switched); err != nil {
		return "", err
	}
	switch {
	case !r.unit.stops():
		return r.unit.runsOn(), errSkipped
	case !r.unit.starts():
		if err := r.d.apps.StayDown(ctx, r.a); err != nil {
			r.warnings.add("the containers stay without their restart policies until they are started: %v", err)
		}
		return r.unit.haltedName() + " " + cmp.Or(r.plan.WhyDown, "was not running before"), errSkipped
	}
	return r.bringUp(ctx)
}

// bringUp starts the app.
func (r *rollback) bringUp(ctx context.Context) (string, error) {
	if err := r.unit.bringUp(ctx); err != nil {
		if !r.mayBeUnwell() {
			return "", r.hints.orNoStart(err)
		}
		r.unwell = true
		r.warnings.add("the app does not start; when %s was made, %s: %v", r.target.ID, r.unwellThen(), err)
		return r.unit.haltedName() + " does not start; when the checkpoint was made, " + r.unwellThen(), errSkipped
	}
	if s, err := r.a.Status(ctx); err == nil && isPaused(s) {
		return r.unit.haltedName() + " started, and paused as it was before", nil
	}
	return r.unit.haltedName() + " started", nil
}

// mayBeUnwell reports whether the target is a checkpoint of an app that did not start, was not well, or has a layer that could not be read.
// Then an app in this state is what was asked for.
func (r *rollback) mayBeUnwell() bool {
	return (checkpoint.Ailing(r.target) || checkpoint.Ruined(r.target)) && r.req.OnUnhealthy != ipc.UnhealthyUndo
}

// unwellThen says why the app may be unwell at the target.
func (r *rollback) unwellThen() string {
	if checkpoint.Ailing(r.target) {
		return "it was not well"
	}
	return "a layer of it could not be read"
}

// healthy runs the app's health check.
func (r *rollback) healthy(ctx context.Context) (string, error) {
	h := r.a.Rec().Health
	switch {
	case !r.goal.stopsApp():
		return r.unit.runsOn(), errSkipped
	case h == nil:
		return "no health check is configured", errSkipped
	case r.unit.stops() && !r.unit.starts():
		return "the app was not started", errSkipped
	case isPaused(r.unit.before):
		return "the guest is paused", errSkipped
	case !r.unit.stops() && !r.plan.Running:
		return "the app was not running before", errSkipped
	case r.unwell:
		return "the app does not start", errSkipped
	case r.mayBeUnwell():
		if _, well := r.d.apps.Condition(ctx, r.a, systemd.Status{Active: "active"}); well == nil || !*well {
			r.warnings.add("the app is not well; when %s was made, %s", r.target.ID, r.unwellThen())
			return "not well; when the checkpoint was made, " + r.unwellThen(), errSkipped
		}
		return "healthy", nil
	}
	if err := r.d.apps.CheckHealth(ctx, r.a); err != nil {
		return "", err
	}
	if s, err := r.a.Unit().State(ctx); err == nil && !s.Running() {
		return "", errs.New(errs.Failed, "check health", "the health check passed, but %s is %s (%s): another process may be answering", r.a.Unit().Name(), s.Active, s.Result)
	}
	return "healthy", nil
}
