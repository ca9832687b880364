package rollback

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"mulligan/daemon/app"
	"mulligan/daemon/checkpoint"
	"mulligan/daemon/store"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/snap"
	"mulligan/systemd"
)

// safetyCheckpoint captures the present state while the app still runs, and
// prepares every layer beside it.
func (r *rollback) safetyCheckpoint(ctx context.Context) (string, error) {
	now, err := r.unit.status(ctx)
	if err != nil {
		return "", err
	}
	onHost, err := app.StatusOf(ctx, r.a.HostPart())
	if err != nil {
		return "", err
	}
	r.unit.intend(now, r.target, r.req.Start)
	if err := r.writePlan(ctx, preparing); err != nil {
		return "", err
	}
	running := !now.Down()
	still := checkpoint.Stillness{All: r.a.Unit() != nil && !running, Host: onHost.Down()}
	cp, halted, err := r.captureBase(ctx, still, running)
	if err != nil {
		return "", err
	}
	r.d.apps.Note(ctx, r.a, now, &cp)
	cp.Trigger, cp.CalledOff = ipc.TriggerPreRollback, true // until the rollback is done
	cp.Notes = checkpoint.Optional("safety checkpoint before " + r.goal.words())
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
	r.noteRaw()
	if err := r.parts.prepare(ctx, r.safety, nil); err != nil {
		return "", err
	}
	if running && !halted && r.unit.stops() {
		r.parts.warm(ctx)
	}
	return "id=" + string(cp.ID), nil
}

// maxTopUps bounds how often a safety checkpoint is brought up to date with
// writes that came while the app was being stopped.
const maxTopUps = 3

// stop stops the unit, and makes the safety checkpoint hold what was written
// until then: nothing that the app did may be lost. Then comes the commit point.
func (r *rollback) stop(ctx context.Context) (string, error) {
	if r.unit.stops() {
		if err := r.unit.halt(ctx); err != nil {
			return "", err
		}
	}
	topped := 0
	for {
		stale, err := r.parts.stale(ctx)
		if err != nil {
			return "", r.hints.orWithout(err)
		}
		if len(stale) == 0 {
			break
		}
		if topped++; topped > maxTopUps {
			return "", snap.Changed("stop the app", strings.Join(layerList(stale), ", "))
		}
		if err := r.topUp(ctx, stale); err != nil {
			return "", err
		}
	}
	if err := r.writePlan(ctx, switching); err != nil {
		return "", err
	}
	note, err := r.unit.stopped()
	if topped > 0 {
		note, err = note+"; the safety checkpoint was brought up to date", nil
	}
	return note, err
}

// topUp replaces the safety checkpoint's snapshots of some layers with fresh
// ones, and prepares these layers again.
func (r *rollback) topUp(ctx context.Context, stale map[snap.Layer]bool) error {
	cp := r.safety
	cp.Snapshots = slices.Clone(cp.Snapshots)
	var old, fresh []store.Snapshot
	var raw []snap.Layer
	for i, s := range cp.Snapshots {
		if !stale[s.Layer] {
			continue
		}
		l, _ := r.a.Layer(s.Layer)
		n, warnings, err := r.d.checkpoints.CaptureLayer(ctx, r.a, l, checkpoint.How{Still: checkpoint.Stillness{All: r.unit.stops()}, Revive: true, Salvage: true})
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
		r.noteRaw(raw...)
	}
	if err := r.parts.prepare(ctx, r.safety, stale); err != nil {
		return err
	}
	return r.d.checkpoints.Drop(ctx, r.a, old)
}

func (r *rollback) switchFiles(ctx context.Context) (string, error) {
	return r.parts.commit(ctx, false, r.plan.Verify)
}

func (r *rollback) switchDBs(ctx context.Context) (string, error) {
	return r.parts.commit(ctx, true, r.plan.Verify)
}

// start brings the app up, if it is meant to be up.
func (r *rollback) start(ctx context.Context) (string, error) {
	if err := r.writePlan(ctx, switched); err != nil {
		return "", err
	}
	switch {
	case !r.unit.stops():
		return r.unit.runsOn(), errSkipped
	case !r.unit.starts():
		return r.unit.haltedName() + " " + cmp.Or(r.plan.WhyDown, "was not running before"), errSkipped
	}
	if err := r.unit.bringUp(ctx); err != nil {
		if !r.mayAil() {
			return "", r.hints.orNoStart(err)
		}
		r.ails = true
		r.warnings.add("the app does not start, and was not well when %s was made: %v", r.target.ID, err)
		return r.unit.haltedName() + " does not start, as when the checkpoint was made", errSkipped
	}
	if s, err := r.a.Status(ctx); err == nil && isPaused(s) {
		return r.unit.haltedName() + " started, and paused as it was before", nil
	}
	return r.unit.haltedName() + " started", nil
}

// mayAil reports whether an app that does not start, or is not well, is what was asked
// for: the checkpoint is of such an app.
func (r *rollback) mayAil() bool {
	return checkpoint.Ailing(r.target) && r.req.OnUnhealthy != ipc.UnhealthyUndo
}

// healthy asks the app whether it works.
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
	case r.ails:
		return "the app does not start", errSkipped
	case r.mayAil():
		if _, well := r.d.apps.Condition(ctx, r.a, systemd.Status{Active: "active"}); well == nil || !*well {
			r.warnings.add("the app is not well, and was not when %s was made", r.target.ID)
			return "not well, as when the checkpoint was made", errSkipped
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
