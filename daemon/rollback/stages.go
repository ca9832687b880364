package rollback

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"mulligan/daemon/app"
	"mulligan/daemon/checkpoint"
	"mulligan/daemon/events"
	"mulligan/daemon/layer"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/snap"
	"mulligan/systemd"
)

// safetyCheckpoint captures the present state while the app still runs, and
// prepares every layer beside it.
func (r *rollback) safetyCheckpoint(ctx context.Context) (string, error) {
	now, err := r.status(ctx)
	if err != nil {
		return "", err
	}
	onHost, err := app.StatusOf(ctx, r.a.HostPart())
	if err != nil {
		return "", err
	}
	r.intend(now)
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
	if err := r.prepare(ctx, nil); err != nil {
		return "", err
	}
	if running && !halted && r.stops() {
		r.warm(ctx)
	}
	return "id=" + string(cp.ID), nil
}

// status looks at the app's unit. A domain that the rollback leaves alone may be out of
// reach: then the status is that of the app's part on the host.
func (r *rollback) status(ctx context.Context) (systemd.Status, error) {
	now, err := r.a.Status(ctx)
	if err == nil {
		return now, nil
	}
	err = r.a.Setup().OfGuest(ctx, err)
	var away *layer.Error
	switch {
	case r.stopsAll() && r.has(snap.Disk):
		return now, r.orWithout(err)
	case r.stopsAll() || !errors.As(err, &away):
		return now, err
	}
	m := r.a.Unit().(*layer.Machine)
	if !r.unseen { // else it was said
		r.warnings.add("it is not known whether the %s runs, so it is left as it is: %v", m.Vm.Name(), away.Err)
	}
	r.unseen = true
	return app.StatusOf(ctx, m.Host)
}

// stops reports whether something is stopped for the time of the switch. A revert
// changes some files, as an editor does.
func (r *rollback) stops() bool {
	return r.goal.stopsApp() && r.a.Unit() != nil && (r.stopsAll() || r.a.HostPart() != nil)
}

// stopsAll reports whether that is the whole app. A guest is stopped for its
// disks only: for other layers, what runs on the host beside it is enough.
func (r *rollback) stopsAll() bool {
	m, ok := r.a.Unit().(*layer.Machine)
	return !ok || m.HostStarts || slices.Contains(r.plan.Layers, snap.Disk)
}

// halt stops it.
func (r *rollback) halt(ctx context.Context) error {
	if r.stopsAll() {
		return r.d.apps.StopUnit(ctx, r.a)
	}
	return r.d.apps.PauseHost(ctx, r.a)
}

// halts is its name.
func (r *rollback) halts() string {
	if r.stopsAll() {
		return r.a.Unit().Name()
	}
	return r.a.HostPart().Name()
}

// safetyLayers are the layers that the safety checkpoint holds: those that are switched.
// The others stay as they are, and are not looked at.
func (r *rollback) safetyLayers() (list []layer.Layer) {
	for _, p := range r.parts {
		list = append(list, p.Layer)
	}
	return list
}

// lacks says which layers the safety checkpoint holds nothing of.
func (r *rollback) lacks() (list []string) {
	for _, l := range r.a.Layers() {
		if !r.has(l.Name) {
			list = append(list, fmt.Sprintf("%s is not in it: the rollback left it as it was", l.Name))
		}
	}
	return list
}

// maxTopUps bounds how often a safety checkpoint is brought up to date with
// writes that came while the app was being stopped.
const maxTopUps = 3

// stop stops the unit, and makes the safety checkpoint hold what was written
// until then: nothing that the app did may be lost. Then comes the commit point.
func (r *rollback) stop(ctx context.Context) (string, error) {
	if r.stops() {
		if err := r.halt(ctx); err != nil {
			return "", err
		}
	}
	topped := 0
	for {
		stale, err := r.stale(ctx)
		if err != nil {
			return "", err
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
	note, err := r.stopped()
	if topped > 0 {
		note, err = note+"; the safety checkpoint was brought up to date", nil
	}
	return note, err
}

// stopped says what became of the unit; errSkipped where there was nothing to stop.
func (r *rollback) stopped() (string, error) {
	switch now := r.before; {
	case !r.stops():
		return r.runsOn(), errSkipped
	case now.Down():
		return fmt.Sprintf("%s was not running (%s)", r.halts(), standing(now)), errSkipped
	case !now.Running():
		return fmt.Sprintf("%s was not up (%s), and is held down", r.halts(), standing(now)), nil
	}
	return r.halts() + " stopped", nil
}

// runsOn says why the unit is not stopped.
func (r *rollback) runsOn() string {
	if r.a.Unit() == nil {
		return "the app has no unit"
	}
	return "the app runs on"
}

func (r *rollback) switchFiles(ctx context.Context) (string, error) { return r.switchParts(ctx, false) }

func (r *rollback) switchDBs(ctx context.Context) (string, error) { return r.switchParts(ctx, true) }

// switchParts makes the databases, or everything else, the target, and checks it.
func (r *rollback) switchParts(ctx context.Context, dbs bool) (string, error) {
	var notes []string
	for i := range r.parts {
		p := &r.parts[i]
		if p.IsDB() != dbs {
			continue
		}
		began := time.Now()
		note, err := r.switchPart(ctx, p)
		r.d.events.Restores.WithLabelValues(p.Family, events.ResultOf(err)).Observe(events.Since(began))
		if err != nil {
			return "", err
		}
		notes = append(notes, note)
	}
	if len(notes) == 0 {
		return "nothing of this kind to restore", errSkipped
	}
	return strings.Join(notes, "; "), nil
}

func (r *rollback) switchPart(ctx context.Context, p *part) (note string, err error) {
	if err := r.d.opt.Failpoint.At("commit " + string(p.Name)); err != nil {
		return "", err
	}
	p.touched = true
	if err := p.sw.Commit(ctx); err != nil {
		return "", err
	}
	note = fmt.Sprintf("%s: %d changed, snap=%s", p.Name, p.total, p.target)
	if r.plan.Verify {
		if err := p.check(ctx); err != nil {
			return "", err
		}
		note += ", verified"
		if p.proof.Shallow {
			note = strings.TrimSuffix(note, "verified") + "compared without its contents"
		}
	}
	return note, nil
}

// start brings the app up, if it is meant to be up.
func (r *rollback) start(ctx context.Context) (string, error) {
	if err := r.writePlan(ctx, switched); err != nil {
		return "", err
	}
	switch {
	case !r.stops():
		return r.runsOn(), errSkipped
	case !r.starts():
		return r.halts() + " " + cmp.Or(r.plan.WhyDown, "was not running before"), errSkipped
	}
	if err := r.bringUp(ctx); err != nil {
		if !r.mayAil() {
			return "", r.orNoStart(err)
		}
		r.ails = true
		r.warnings.add("the app does not start, and was not well when %s was made: %v", r.target.ID, err)
		return r.halts() + " does not start, as when the checkpoint was made", errSkipped
	}
	if s, err := r.a.Status(ctx); err == nil && isPaused(s) {
		return r.halts() + " started, and paused as it was before", nil
	}
	return r.halts() + " started", nil
}

// isPaused reports whether a guest is there that does not run on.
func isPaused(s systemd.Status) bool { return s.Sub == "paused" }

// bringUp starts the app, and watches it for a moment where no health check tells.
func (r *rollback) bringUp(ctx context.Context) error {
	if err := r.d.apps.StartUnit(ctx, r.a); err != nil {
		return err
	}
	if r.a.Rec().Health != nil {
		return nil
	}
	return r.staysUp(ctx)
}

// orNoStart adds to the error of an app that does not start the command that goes there
// without starting it.
func (r *rollback) orNoStart(err error) error {
	hint := "`" + r.command("--no-start") + "` goes there without starting it"
	return hinted(err, hint)
}

// mayAil reports whether an app that does not start, or is not well, is what was asked
// for: the checkpoint is of such an app.
func (r *rollback) mayAil() bool {
	return checkpoint.Ailing(r.target) && r.req.OnUnhealthy != ipc.UnhealthyUndo
}

// staysUp watches a unit that says that it has started: many a program reads
// what it can't bear only then.
func (r *rollback) staysUp(ctx context.Context) error {
	first, err := r.status(ctx)
	if err != nil {
		return err
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for over := time.After(r.d.opt.Steady); ; {
		now, err := r.status(ctx)
		if err != nil {
			return err
		}
		if !now.Running() || now.Restarts > first.Restarts {
			return errs.New(errs.Failed, "start "+r.a.Unit().Name(), "it ended soon after its start: %s", cmp.Or(now.Result, now.Active)).
				WithHint("see its output; the checkpoint may be of a state that it can't start from")
		}
		select {
		case <-tick.C:
		case <-over:
			return nil
		}
	}
}

// healthy asks the app whether it works.
func (r *rollback) healthy(ctx context.Context) (string, error) {
	h := r.a.Rec().Health
	switch {
	case !r.goal.stopsApp():
		return r.runsOn(), errSkipped
	case h == nil:
		return "no health check is configured", errSkipped
	case r.stops() && !r.starts():
		return "the app was not started", errSkipped
	case isPaused(r.before):
		return "the guest is paused", errSkipped
	case !r.stops() && !r.plan.Running:
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
