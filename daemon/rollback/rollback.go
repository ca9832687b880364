package rollback

import (
	"context"
	"errors"
	"slices"
	"time"

	"mulligan/daemon/accounts"
	"mulligan/daemon/app"
	"mulligan/daemon/records"
	"mulligan/daemon/store"
	"mulligan/daemon/turns"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/snap"
)

// rollback is one rollback or revert under way. It goes through the stages, and goes back if one fails;
// its pieces do most of the work. Not safe for concurrent use: the app's lock guards it.
type rollback struct {
	d      *Service
	a      *app.App
	op     ipc.OperationID
	req    ipc.RollbackRequest
	plan   rollbackPlan
	target store.Checkpoint
	safety store.Checkpoint
	parts  *parts
	paths  []string // the scope, when it is some of the files; of a revert, what it may change
	stages *stageRunner
	hints  *hints
	unit   *unit
	goal   goal
	// discarded has the paths of the files that were deleted for good, for this rollback.
	discarded map[string]bool

	warnings  *warnings
	recovered bool
	unwell    bool // the app does not start, which mayBeUnwell allows
	// putBackNotes say what an undo did, a line per layer.
	putBackNotes []string
	again        bool // an undo was begun before, by this daemon or one that died
}

// Rollback takes the app called ref to a checkpoint, or to where ipc.Undo or ipc.Redo lead. If a stage
// fails, Rollback returns the error and a result that says how far the rollback got. onStage is called
// as each stage starts and ends.
func (d *Service) Rollback(ctx context.Context, who ipc.Caller, ref string, id ipc.CheckpointID, req ipc.RollbackRequest, onStage func(ipc.Stage)) (ipc.RollbackResult, error) {
	op := "roll back"
	if id == ipc.Undo || id == ipc.Redo {
		op = string(id)
	}
	a, err := d.apps.Find(who, ref)
	if err != nil {
		return ipc.RollbackResult{}, err
	}
	ctx = context.WithoutCancel(ctx) // a client that leaves does not stop a rollback
	d.store.GiveBallast()
	gone, err := d.discard(ctx, who, a, id, req)
	if err != nil {
		return ipc.RollbackResult{}, errs.Wrap(errs.Failed, op, err)
	}
	turns.TrackerOf(a).CatchUp(ctx)
	acquire := d.apps.Acquire
	if req.DryRun {
		acquire = d.apps.AcquireToLook
	}
	release, err := acquire(ctx, a, op, who)
	if err != nil {
		return ipc.RollbackResult{}, err
	}
	defer release()
	aimed, err := d.resolveTarget(ctx, a, id, &req)
	var r *rollback
	if err == nil {
		r, err = d.newRollback(ctx, a, aimed, req, aimed != id)
		id = aimed
	}
	if err != nil {
		if !req.DryRun {
			d.events.WriteAudit(ctx, a.Rec(), who, "rollback", string(id), req.Reason, err, nil)
		}
		return ipc.RollbackResult{}, errs.Wrap(errs.Failed, op, err)
	}
	r.stages.notify, r.plan.Actor, r.discarded = onStage, accounts.Actor(who), gone
	if err := r.admit(ctx); err != nil {
		d.events.WriteAudit(ctx, a.Rec(), who, "rollback", string(id), req.Reason, err, nil)
		return ipc.RollbackResult{}, errs.Wrap(errs.Failed, op, err)
	}
	if req.DryRun {
		return r.preview(ctx)
	}
	return r.perform(ctx, who, op, id)
}

// Begin starts an app whose layers are all as in a checkpoint, and asks whether it is well, as the last stages of a rollback do.
func (d *Service) Begin(ctx context.Context, a *app.App, target store.Checkpoint) error {
	const op = "start the app"
	release, err := d.apps.AcquireBrief(ctx, a, op)
	if err != nil {
		return err
	}
	defer release()
	g := &toCheckpoint{}
	r := d.newOperation(a, "", ipc.RollbackRequest{}, g)
	g.r, r.target, r.plan.Target, r.plan.Start = r, target, target.ID, true
	if r.unit.stops() { // a guest whose disks are left alone is none of this
		_, err = r.bringUp(ctx)
	}
	if err == nil {
		_, err = r.healthy(ctx)
	}
	if errors.Is(err, errSkipped) {
		return nil
	}
	return errs.Wrap(errs.Failed, op, err)
}

// admit refuses a rollback that would undo more than it is about. Before that, it recreates a workspace
// that was deleted.
func (r *rollback) admit(ctx context.Context) (err error) {
	if r.plan.Turn, err = r.turnThatBegins(ctx); err != nil {
		return err
	}
	if err := r.remakeWorkspace(ctx); err != nil {
		return err
	}
	if err := r.others().spareSessions(ctx); err != nil {
		return err
	}
	if err := r.requireTurnCheckpoint(ctx); err != nil {
		return r.hints.orDiscard(ctx, err)
	}
	return r.others().spareUnannounced(ctx)
}

// perform runs the rollback, tells everybody how it went, and prunes. op names what was asked for in an
// error, and id what the audit trail calls its target.
func (r *rollback) perform(ctx context.Context, who ipc.Caller, op string, id ipc.CheckpointID) (ipc.RollbackResult, error) {
	d, app := r.d, r.a.Rec()
	unmute := turns.TrackerOf(r.a).Mute(ctx)
	err := errs.Wrap(errs.Failed, op, r.run(ctx))
	unmute(ctx)
	if f := app.Fork; err == nil && (f == nil || !f.Making) { // nobody reads the receipt of a fork that is being made
		r.parts.rewordDatabases(ctx)
	}
	res := r.receipt(ctx, err)
	d.events.WriteAudit(ctx, r.a.Rec(), who, "rollback", string(id), r.req.Reason, err, res)
	d.checkpoints.Entitle(ctx, r.a, res.RestoredTo, res.SafetyCheckpoint)
	res.EvidenceAnchors = append(res.EvidenceAnchors, d.events.AuditNumber(ctx, app.ID)...)
	d.events.Publish(app.ID, "rollback", res)
	if r.safety.ID != "" { // without one, there are no more checkpoints than before
		d.checkpoints.PruneAfter(ctx, r.a, who, r.target.ID, r.safety.ID)
	}
	return res, err
}

// newOperation returns an operation of which nothing is known yet but what it is to reach. The
// caller gives g the operation, and the operation its plan.
func (d *Service) newOperation(a *app.App, op ipc.OperationID, req ipc.RollbackRequest, g goal) *rollback {
	r := &rollback{
		d: d, a: a, op: op, req: req, goal: g, warnings: &warnings{},
		parts:  &parts{a: a, goal: g, opt: d.opt, events: d.events},
		stages: &stageRunner{app: a.Rec().ID, opt: d.opt, events: d.events},
	}
	r.hints = &hints{a: a, req: req, goal: g, plan: &r.plan, target: &r.target, parts: r.parts}
	r.unit = &unit{a: a, apps: d.apps, goal: g, plan: &r.plan, parts: r.parts, hints: r.hints, warnings: r.warnings, steady: d.opt.Steady}
	return r
}

// newRollback returns a rollback to id, after checking everything that can be checked before anything is
// done. aimed says that it is an undo or a redo, whose scope follows from what is undone.
func (d *Service) newRollback(ctx context.Context, a *app.App, id ipc.CheckpointID, req ipc.RollbackRequest, aimed bool) (*rollback, error) {
	switch req.OnUnhealthy {
	case "", ipc.UnhealthyKeep, ipc.UnhealthyUndo:
	default:
		return nil, errs.New(errs.Invalid, "", "unknown on_unhealthy %.64q", string(req.OnUnhealthy)).WithHint("use keep or undo")
	}
	target, err := d.store.Checkpoint(ctx, a.Rec().ID, id)
	if err != nil {
		return nil, err
	}
	now := d.opt.Now()
	if target.ExpiresAt != nil && target.ExpiresAt.Before(now) && !target.Pinned {
		return nil, errs.New(errs.Expired, "", "%s expired at %s", id, target.ExpiresAt.Format(time.RFC3339)).
			WithHint("`mulligan pin %s` keeps it, so that you can still go back to it; without that, the next prune deletes it", id)
	}
	g := &toCheckpoint{}
	r := d.newOperation(a, ipc.OperationID(records.NewID("op-")), req, g)
	g.r, r.target = r, target
	if aimed && req.Turns > 0 {
		r.hints.owing = turns.TrackerOf(a).Owing(ctx)
	}
	r.plan = rollbackPlan{
		Phase: preparing, Target: id, Begun: now.UTC(), Reason: req.Reason,
		Verify: req.VerifyRestore == nil || *req.VerifyRestore, UndoRedo: aimed, Scoped: len(req.Scope) > 0,
	}
	if req.Start != nil && a.Unit() == nil {
		return nil, errs.New(errs.Invalid, "", "%s has no unit or command to start", a.Rec().Slug).WithHint("leave start out")
	}
	if err := r.choose(ctx, aimed); err != nil {
		return nil, err
	}
	if target.CalledOff && !target.Quiesced {
		r.warnings.add("%s is the safety checkpoint of a rollback that was called off: it was made while the app ran, and its layers may be of different moments", id)
	}
	depth := snap.Quick
	if req.CheckStored {
		depth = snap.Full
	}
	for _, p := range r.parts.list {
		// What can foretell whether it will refuse looks for the stored data that it needs, of which a checkpoint may have much more.
		if _, foretells := p.Driver.(snap.Prechecker); !foretells || depth == snap.Full {
			if err := p.Driver.Verify(ctx, p.target, depth); err != nil {
				return nil, r.hints.ofStored(p, err)
			}
		}
		r.plan.Layers = append(r.plan.Layers, p.Name)
	}
	if err := r.unit.ready(ctx, req.Start); err != nil {
		return nil, err
	}
	if err := r.precheck(ctx); err != nil {
		return nil, err
	}
	if !req.DryRun {
		err = r.hints.orDiscard(ctx, d.store.HasFree(ctx, records.Reserve))
	}
	return r, err
}

// choose works out the layers and paths of the scope. With follows, the scope was not asked for but
// follows from what is undone.
func (r *rollback) choose(ctx context.Context, follows bool) (err error) {
	s := scope{a: r.a, asked: r.req.Scope, omit: r.req.Without, target: r.target, warnings: r.warnings}
	if r.parts.list, err = s.choose(); err != nil {
		return err
	}
	if err := s.check(ctx, follows); err != nil {
		return err
	}
	r.paths, r.plan.Paths, r.plan.Without, r.plan.Behind = s.paths, len(s.paths) > 0, s.without, s.behind
	return nil
}

// others returns what looks for other people's writes that the rollback would undo.
func (r *rollback) others() *others {
	o := &others{
		d: r.d, a: r.a, tracker: turns.TrackerOf(r.a), req: r.req, target: r.target, paths: r.paths,
		hasFiles: r.parts.has(snap.Files), warnings: r.warnings, discarded: r.discarded,
	}
	if r.plan.UndoRedo {
		o.undoes = r.req.Turns
	}
	return o
}

// run goes through the six stages. If a stage fails, run puts the app back where it was and returns the
// stage's error.
func (r *rollback) run(ctx context.Context) error {
	err := r.stages.run(ctx, ipc.StageSafety, r.safetyCheckpoint)
	if err != nil {
		return errs.Also(r.hints.orDiscard(ctx, err), errs.Also(r.abandon(ctx)))
	}
	err = r.stages.runAll(ctx, []stage{
		{ipc.StageStop, r.stop}, {ipc.StageVM, r.switchFiles}, {ipc.StageDB, r.switchDBs}, {ipc.StageStart, r.start},
	})
	if err != nil {
		return errs.Also(err, r.putBack(ctx))
	}
	if err := r.stages.run(ctx, ipc.StageHealthy, r.healthy); err != nil {
		if r.req.OnUnhealthy == ipc.UnhealthyUndo {
			return errs.Also(err, r.putBack(ctx))
		}
		r.done(ctx)
		return err
	}
	r.done(ctx)
	return nil
}

// done ends a rollback that reached its target. Leftovers that cannot be dropped now are no failure of
// the rollback: the daemon's recovery drops them later.
func (r *rollback) done(ctx context.Context) {
	if err := r.finishForward(ctx); err != nil {
		r.a.RequestRecovery(errs.Wrap(errs.Failed, "drop what was kept for an undo", err))
		r.warnings.add("the data kept for an undo could not be deleted yet: %v", err)
	}
}

// finishForward is finish for a rollback whose layers are all at the target. From then on, redo may go
// to its safety checkpoint, and nothing that came before the rollback starts the app.
func (r *rollback) finishForward(ctx context.Context) (err error) {
	if r.safety, err = r.d.store.Checkpoint(ctx, r.a.Rec().ID, r.safety.ID); err != nil { // somebody may have pinned it
		return err
	}
	if r.safety.UndoNext, err = r.goal.undoNext(ctx); err != nil {
		return err
	}
	if r.safety.StayedBehind, err = r.goal.behind(ctx); err != nil {
		return err
	}
	r.safety.CalledOff = false
	r.safety.Quiesced = r.safety.Quiesced || r.unit.stops() && r.unit.stopsAll() && len(r.parts.list) == len(r.safety.Snapshots) && !r.tornDisk()
	if err := r.d.store.PutCheckpoint(ctx, r.safety, ""); err != nil {
		return err
	}
	if err := r.unit.settle(ctx); err != nil {
		return err
	}
	r.d.checkpoints.NoteBehind(ctx, r.a)
	turns.TrackerOf(r.a).NoteUndone(ctx)
	return r.finish(ctx)
}

// tornDisk reports whether the safety checkpoint has a guest's disks as a power cut would leave them.
func (r *rollback) tornDisk() bool {
	s, ok := r.safety.Snapshot(snap.Disk)
	return ok && !s.Quiesced
}

// remakeWorkspace creates the workspace if it was deleted and the files take part.
func (r *rollback) remakeWorkspace(ctx context.Context) error {
	if r.req.DryRun || !slices.Contains(r.plan.Layers, snap.Files) {
		return nil
	}
	made, err := r.d.apps.RemakeWorkspace(ctx, r.a)
	if made {
		r.warnings.add("%s was not there any more, and was made anew", r.a.Rec().Workspace)
	}
	return err
}

// precheck refuses what the drivers can tell now that their Prepare would refuse.
func (r *rollback) precheck(ctx context.Context) error {
	for _, p := range r.parts.list {
		checker, ok := p.Driver.(snap.Prechecker)
		if !ok {
			continue
		}
		var paths []string
		if p.Name == snap.Files {
			paths = r.paths
		}
		err := checker.Precheck(ctx, p.target, paths)
		switch {
		case err == nil:
		case r.req.DryRun && len(r.req.Discard) > 0 && records.NoRoom(err): // what is deleted for good makes room; the rollback itself looks again
		case p.Name == snap.Files:
			return r.hints.ofStored(p, r.hints.orDiscard(ctx, err))
		default:
			return r.hints.ofStored(p, err)
		}
	}
	return nil
}
