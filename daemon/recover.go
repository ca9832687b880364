package daemon

import (
	"context"
	"encoding/json"
	"math"
	"slices"
	"strings"

	"mulligan/daemon/accounts"
	"mulligan/daemon/layer"
	"mulligan/daemon/store"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/snap"
)

// settle makes an app fit to be worked on: its drivers open, leftovers of dead
// processes swept, operations that were cut short finished or undone. It is
// quick when there is nothing to do. The caller is the only one who changes
// the app.
func (d *Daemon) settle(ctx context.Context, a *app) error {
	if a.ready() {
		return nil
	}
	if err := d.open(ctx, a); err != nil {
		return err
	}
	err := d.sweepAndRecover(ctx, a)
	d.noteBehind(ctx, a)
	a.noteSettled(err)
	return err
}

func (d *Daemon) sweepAndRecover(ctx context.Context, a *app) error {
	all, err := d.store.Operations(ctx)
	if err != nil {
		return err
	}
	var left []store.Operation
	for _, op := range all {
		if op.AppID == a.rec().ID {
			left = append(left, op)
		}
	}
	if err := d.sweep(ctx, a, left); err != nil {
		return err
	}
	for _, op := range left {
		word, err := d.recoverOperation(ctx, a, op)
		if a.news(err) { // it may be the same for hours
			d.WriteAudit(ctx, a.rec(), accounts.Self(), "recover", string(op.ID), "", err, map[string]string{"outcome": word})
		}
		if err != nil {
			return errs.Wrap(errs.Failed, "recover "+op.Kind, err)
		}
		d.opt.Log.Info("recovered", "app", a.rec().Slug, "operation", op.ID, "kind", op.Kind, "outcome", word)
		a.noteRecovered(word)
	}
	return nil
}

// sweep drops what a disposal names, and no checkpoint or operation holds. A layer whose
// driver cannot do that is held up, and the others are not.
func (d *Daemon) sweep(ctx context.Context, a *app, left []store.Operation) error {
	a.awaitRehearsal()
	all, err := d.store.Disposals(ctx)
	if err != nil {
		return err
	}
	held, err := d.heldBy(ctx, a, left)
	if err != nil {
		return err
	}
	gone := map[snap.Layer]*snap.Gone{}
	for _, l := range a.layers() {
		gone[l.Name] = &snap.Gone{}
	}
	var done []store.Disposal
	for _, o := range all {
		layer := gone[o.Layer]
		switch {
		case o.AppID != a.rec().ID:
			continue
		case held[o.ID] && o.Kind == store.DisposeRestore:
			continue
		case held[o.ID]:
		case o.Kind == store.DisposeRestore:
			for _, g := range gone {
				g.Restores = append(g.Restores, snap.RestoreID(o.ID))
			}
		case o.Kind == store.DisposeSnapshot && layer != nil:
			layer.Snapshots = append(layer.Snapshots, snap.SnapshotID(o.ID))
		default:
			continue // of a layer that the app does not have at present
		}
		done = append(done, o)
	}
	var drivers []snap.Driver
	for _, l := range a.layers() {
		drivers = append(drivers, layer.SweepLayer(ctx, l.Driver, *gone[l.Name]))
	}
	if err := ctx.Err(); err != nil {
		return errs.Wrap(errs.Unavailable, "sweep", err)
	}
	a.setDrivers(drivers)
	done = slices.DeleteFunc(done, func(o store.Disposal) bool { // those of a layer that is held up wait
		return slices.ContainsFunc(a.layers(), func(l layer.Layer) bool {
			_, held := l.Driver.(*layer.Held)
			return held && (o.Kind == store.DisposeRestore || o.Layer == l.Name)
		})
	})
	d.store.WakeCollector()
	return d.store.EndDisposals(ctx, done...)
}

// heldBy are the ids of the snapshots that an app's checkpoints hold, and of its
// operations under way.
func (d *Daemon) heldBy(ctx context.Context, a *app, left []store.Operation) (map[string]bool, error) {
	cps, err := d.store.Checkpoints(ctx, a.rec().ID)
	if err != nil {
		return nil, err
	}
	held := map[string]bool{}
	for _, cp := range cps {
		for _, s := range cp.Snapshots {
			held[string(s.ID)] = true
		}
	}
	for _, op := range left {
		held[string(op.ID)] = true
	}
	return held, nil
}

// recoverOperation finishes or undoes what a crash cut short, and says which.
func (d *Daemon) recoverOperation(ctx context.Context, a *app, op store.Operation) (string, error) {
	switch op.Kind {
	case kindCreate:
		var plan createPlan
		if err := json.Unmarshal(op.Plan, &plan); err != nil {
			return "", errs.Wrap(errs.Corrupt, "", err)
		}
		if err := d.startAgain(ctx, a, plan.Running); err != nil {
			return "", err
		}
		held, err := d.heldBy(ctx, a, nil)
		if err != nil {
			return "", err
		}
		word := "a checkpoint that was cut short was dropped"
		if held[plan.Makes] { // it was described, and so it was made
			word = "a checkpoint that was cut short was finished"
		}
		return word, d.store.EndOperation(ctx, op.ID)
	case kindRollback, kindRevert:
		return d.recoverRollback(ctx, a, op)
	}
	return "", errs.New(errs.Unsupported, "", "unknown operation %q", op.Kind).WithHint("a newer mulligan wrote it: use that one")
}

func (d *Daemon) recoverRollback(ctx context.Context, a *app, op store.Operation) (string, error) {
	r := &rollback{d: d, a: a, op: op.ID}
	if err := json.Unmarshal(op.Plan, &r.plan); err != nil {
		return "", errs.Wrap(errs.Corrupt, "", err)
	}
	r.again = r.plan.Phase == undoing
	err := r.resume(ctx)
	if r.forgotten(err) {
		word := "a " + r.words() + " had ended, but the records did not say so"
		if err := d.startAgain(ctx, a, r.plan.Running && r.stops()); err != nil {
			return "", err
		}
		return word, d.store.EndOperation(ctx, op.ID)
	}
	if err != nil {
		return "", err
	}
	switch r.plan.Phase {
	case preparing:
		return "a " + r.words() + " was called off before it changed anything", r.abandon(ctx)
	case switched:
		return r.recoverSwitched(ctx)
	case undone:
		return "a " + r.words() + " was undone", r.finish(ctx)
	case switching:
		err := r.goForward(ctx)
		if err == nil {
			r.auditRecovered(ctx, nil)
			return "a " + r.words() + " was finished", nil
		}
		d.opt.Log.Warn("a "+op.Kind+" could not be finished and is undone", "app", a.rec().Slug, "err", err)
		fallthrough
	case undoing:
		err := r.undo(ctx)
		return strings.Join(append([]string{"a " + r.words() + " was undone"}, r.warnings...), ". "), err
	}
	return "", errs.New(errs.Unsupported, "", "unknown phase %q", r.plan.Phase)
}

// forgotten reports whether the operation had ended, and the records lost that change:
// its plan says that layers are being switched, and no driver has a switch of it. err is
// the error that resume returned.
func (r *rollback) forgotten(err error) bool {
	if err != nil && errs.KindOf(err) != errs.NotFound || r.plan.Phase != switching && r.plan.Phase != undoing {
		return false
	}
	return !slices.ContainsFunc(r.parts, func(p part) bool { return p.sw != nil })
}

// maxListed is how many changes of a layer are listed: of a revert, every path.
func (r *rollback) maxListed() int {
	if r.plan.Revert != "" {
		return math.MaxInt
	}
	return maxChanges
}

// auditRecovered writes down what was finished.
func (r *rollback) auditRecovered(ctx context.Context, err error) {
	if r.plan.Revert == "" {
		r.d.WriteAudit(ctx, r.a.rec(), accounts.Self(), kindRollback, string(r.plan.Target), r.plan.Reason, err, r.receipt(ctx, err))
		return
	}
	safety := r.d.showOrBare(ctx, r.a, r.safety)
	res := ipc.RevertResult{SafetyCheckpoint: &safety, RestoredPaths: []string{}}
	for _, c := range r.parts[0].list {
		res.RestoredPaths = append(res.RestoredPaths, c.Path)
	}
	r.d.WriteAudit(ctx, r.a.rec(), accounts.Self(), kindRevert, r.plan.Revert, r.plan.Reason, err, res)
}

// resume picks up the checkpoints and the switches of the plan.
func (r *rollback) resume(ctx context.Context) (err error) {
	var missing error
	if r.plan.Revert == "" {
		if r.target, err = r.d.store.Checkpoint(ctx, r.a.rec().ID, r.plan.Target); err != nil {
			missing = err
		}
	}
	if r.plan.Safety != "" {
		r.safety, err = r.d.store.Checkpoint(ctx, r.a.rec().ID, r.plan.Safety)
		if err != nil && (r.plan.Phase != preparing || errs.KindOf(err) != errs.NotFound) {
			missing = err // else it was not recorded yet, or dropped already
		}
	}
	for _, name := range r.plan.Layers {
		l, ok := r.a.layer(name)
		if !ok {
			return errs.New(errs.Conflict, "", "the app has no layer %s any more", name)
		}
		p := part{Layer: l}
		if s, ok := r.target.Snapshot(name); ok {
			p.target = s.ID
		}
		sw, err := l.Driver.Resume(ctx, snap.RestoreID(r.op))
		if err != nil && errs.KindOf(err) != errs.NotFound {
			return err
		}
		if err == nil {
			p.sw, p.touched = sw, r.plan.Phase != preparing
			p.list, p.total = r.changesOf(p, sw)
		}
		r.parts = append(r.parts, p)
	}
	return missing
}

// goForward finishes a rollback whose commit point was passed.
func (r *rollback) goForward(ctx context.Context) error {
	stages := []stageOf{
		{ipc.StageSafety, func(context.Context) (string, error) { return "id=" + string(r.safety.ID), nil }},
		{ipc.StageStop, r.stopAgain}, {ipc.StageVM, r.switchFiles}, {ipc.StageDB, r.switchDBs},
		{ipc.StageStart, r.start},
	}
	if err := r.stagesInTurn(ctx, stages); err != nil {
		return err
	}
	return r.finishForward(ctx)
}

// recoverSwitched ends a rollback whose layers are all at the target. The app may
// have been running since: where it won't start, the rollback is undone only if
// nothing was written that would go with it.
func (r *rollback) recoverSwitched(ctx context.Context) (string, error) {
	startErr := r.stage(ctx, ipc.StageStart, r.start)
	if startErr != nil && r.unwritten(ctx) {
		return "a " + r.words() + " was undone: " + startErr.Error(), r.undo(ctx)
	}
	if err := r.finishForward(ctx); err != nil {
		return "", err
	}
	r.auditRecovered(ctx, startErr)
	if startErr != nil {
		return "a " + r.words() + " was finished, and the app could not be started: " + startErr.Error(), nil
	}
	return "a " + r.words() + " was finished", nil
}

// unwritten reports whether every layer is surely as the rollback left it.
func (r *rollback) unwritten(ctx context.Context) bool {
	for _, p := range r.parts {
		if p.sw == nil {
			return false
		}
		if proof, err := p.sw.Check(ctx); err != nil || !proof.Match {
			return false
		}
	}
	return true
}

// stopAgain stops the unit, which the host's boot may have started.
func (r *rollback) stopAgain(ctx context.Context) (string, error) {
	for _, p := range r.parts {
		if p.sw == nil {
			return "", errs.New(errs.Corrupt, "", "the preparation of %s is gone", p.Name)
		}
	}
	if !r.stops() {
		return r.runsOn(), errSkipped
	}
	now, err := r.status(ctx)
	if err != nil {
		return "", err
	}
	r.before = now
	if err := r.halt(ctx); err != nil {
		return "", err
	}
	return r.stopped()
}
