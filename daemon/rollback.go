package daemon

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"mulligan/daemon/accounts"
	"mulligan/daemon/events"
	"mulligan/daemon/layer"
	"mulligan/daemon/records"
	"mulligan/daemon/store"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/snap"
	"mulligan/systemd"
)

// phase is how far a rollback got: what recovery goes by.
type phase string

// The phases. The step from preparing to switching is the commit point: a
// crash before it leads back, a crash after it leads forward.
const (
	preparing phase = "preparing" // no layer has been changed
	switching phase = "switching" // some layers may have been
	undoing   phase = "undoing"   // something failed: every layer goes back
	undone    phase = "undone"    // all layers are back, the app may be up
	switched  phase = "switched"  // all layers are at the target, the app may be up
)

// rollbackPlan is the durable plan of a rollback.
type rollbackPlan struct {
	Phase  phase            `json:"phase"`
	Target ipc.CheckpointID `json:"target"`
	Safety ipc.CheckpointID `json:"safety"`
	// Running: the unit was up before, or going to be; putting the app back starts it.
	Running bool `json:"running"`
	// Limping: it was not well up, so that one which does not start when it is put back
	// is as it was.
	Limping bool `json:"limping,omitempty"`
	// Start: the rollback starts the app at its end. WhyDown says why not. Without
	// either, as in older plans, Running decides.
	Start   bool         `json:"start,omitempty"`
	WhyDown string       `json:"why_down,omitempty"`
	Layers  []snap.Layer `json:"layers"`
	Verify  bool         `json:"verify"`
	Aimed   bool         `json:"aimed,omitempty"`  // it is an undo or a redo
	Scoped  bool         `json:"scoped,omitempty"` // it is of a part of the app
	Turn    ipc.TurnID   `json:"turn,omitempty"`   // an agent's that begins with it
	Paths   bool         `json:"paths,omitempty"`  // it is of some paths of the files
	// Without are the layers that were asked to stay as they are. Behind are these and
	// those in scope that the target holds nothing of.
	Without []string  `json:"without,omitempty"`
	Behind  []string  `json:"behind,omitempty"`
	Actor   string    `json:"actor"`
	Reason  string    `json:"reason"`
	Begun   time.Time `json:"begun"`
	// Revert is what a revert undoes, in words; "" for a rollback. It has no target,
	// and leaves the unit alone.
	Revert string `json:"revert,omitempty"`
}

// rollback is one under way.
type rollback struct {
	d      *Daemon
	a      *app
	op     ipc.OperationID
	req    ipc.RollbackRequest
	plan   rollbackPlan
	target store.Checkpoint
	safety store.Checkpoint
	before systemd.Status // of the unit
	parts  []part
	scope  []string // paths, when only some are asked for
	stages []ipc.Stage
	notify func(ipc.Stage)
	back   *takeBack // of a revert

	warnings  []string
	recovered bool
	ails      bool // the app does not start, and mayAil
	unseen    bool // whether the domain runs could not be told, and a warning says so
	// putBackWords say what an undo did, a line per layer.
	putBackWords []string
	again        bool // an undo was begun before, by this daemon or one that died
}

// part is one layer of a rollback.
type part struct {
	layer.Layer
	target snap.SnapshotID
	base   snap.SnapshotID
	sw     snap.Switch
	proof  *snap.Proof
	list   []snap.Change
	total  int
	// touched: its commit was begun, by this process or, as far as this one knows, by
	// another.
	touched bool
}

// maxChanges is how many changes a receipt lists.
const maxChanges = 100

// Rollback takes the app called ref to a checkpoint, or to where ipc.Undo or ipc.Redo
// lead. When it ran and failed,
// the result says how far it got and comes together with the error. onStage is
// called as each stage starts and ends.
func (d *Daemon) Rollback(ctx context.Context, who ipc.Caller, ref string, id ipc.CheckpointID, req ipc.RollbackRequest, onStage func(ipc.Stage)) (ipc.RollbackResult, error) {
	op := "roll back"
	if id == ipc.Undo || id == ipc.Redo {
		op = string(id)
	}
	a, err := d.find(who, ref)
	if err != nil {
		return ipc.RollbackResult{}, err
	}
	ctx = context.WithoutCancel(ctx) // a rollback that has begun is the daemon's
	d.store.GiveBallast()
	if err := d.discard(ctx, who, a, id, req); err != nil {
		return ipc.RollbackResult{}, errs.Wrap(errs.Failed, op, err)
	}
	trackerOf(a).catchUp(ctx)
	release, err := d.acquire(ctx, a, op, who)
	if err != nil {
		return ipc.RollbackResult{}, err
	}
	defer release()
	aimed, err := d.aim(ctx, a, id, &req)
	var r *rollback
	if err == nil {
		r, err = d.newRollback(ctx, a, aimed, req, aimed != id)
		id = aimed
	}
	if err != nil {
		if !req.DryRun {
			d.WriteAudit(ctx, a.rec(), who, "rollback", string(id), req.Reason, err, nil)
		}
		return ipc.RollbackResult{}, errs.Wrap(errs.Failed, op, err)
	}
	r.notify, r.plan.Actor = onStage, accounts.Actor(who)
	if r.plan.Turn, err = r.opens(ctx); err == nil {
		err = r.remakeWorkspace(ctx)
	}
	if err == nil {
		err = r.alone(ctx)
	}
	if err == nil {
		err = r.orDiscard(ctx, r.allTurns(ctx))
	}
	if err == nil {
		err = r.spareOthers(ctx)
	}
	if err != nil {
		d.WriteAudit(ctx, a.rec(), who, "rollback", string(id), req.Reason, err, nil)
		return ipc.RollbackResult{}, errs.Wrap(errs.Failed, op, err)
	}
	if req.DryRun {
		return r.preview(ctx)
	}
	unmute := trackerOf(a).mute(ctx)
	err = errs.Wrap(errs.Failed, op, r.run(ctx))
	unmute(ctx)
	if err == nil {
		r.word(ctx)
	}
	res := r.receipt(ctx, err)
	d.WriteAudit(ctx, a.rec(), who, "rollback", string(id), req.Reason, err, res)
	res.EvidenceAnchors = append(res.EvidenceAnchors, d.AuditNumber(ctx, a.rec().ID)...)
	d.Publish(a.rec().ID, "rollback", res)
	if r.safety.ID != "" { // else there is none more than before
		d.pruneAfter(ctx, a, who, r.target.ID, r.safety.ID)
	}
	return res, err
}

// newRollback checks everything that can be checked before anything is done. aimed says
// that it is an undo or a redo, whose scope is what it is.
func (d *Daemon) newRollback(ctx context.Context, a *app, id ipc.CheckpointID, req ipc.RollbackRequest, aimed bool) (*rollback, error) {
	switch req.OnUnhealthy {
	case "", ipc.UnhealthyKeep, ipc.UnhealthyUndo:
	default:
		return nil, errs.New(errs.Invalid, "", "unknown on_unhealthy %.64q", string(req.OnUnhealthy)).WithHint("use keep or undo")
	}
	target, err := d.store.Checkpoint(ctx, a.rec().ID, id)
	if err != nil {
		return nil, err
	}
	now := d.opt.Now()
	if target.ExpiresAt != nil && target.ExpiresAt.Before(now) && !target.Pinned {
		return nil, errs.New(errs.Expired, "", "%s expired at %s", id, target.ExpiresAt.Format(time.RFC3339)).
			WithHint("mulligan pin %s keeps it, so that you can still go back to it; without that, the next prune deletes it", id)
	}
	r := &rollback{d: d, a: a, op: ipc.OperationID(records.NewID("op-")), req: req, target: target}
	r.plan = rollbackPlan{
		Phase: preparing, Target: id, Begun: now.UTC(), Reason: req.Reason,
		Verify: req.VerifyRestore == nil || *req.VerifyRestore, Aimed: aimed, Scoped: len(req.Scope) > 0,
	}
	if req.Start != nil && a.unit() == nil {
		return nil, errs.New(errs.Invalid, "", "%s has no unit or command to start", a.rec().Slug).WithHint("leave start out")
	}
	if err := r.selectParts(); err != nil {
		return nil, err
	}
	if err := r.checkScope(ctx, aimed); err != nil {
		return nil, err
	}
	r.plan.Paths = len(r.scope) > 0
	if target.CalledOff && !target.Quiesced {
		r.warn("%s is the safety checkpoint of a rollback that was called off: it was made while the app ran, and its layers may be of different moments", id)
	}
	depth := snap.Quick
	if req.CheckStored {
		depth = snap.Full
	}
	for _, p := range r.parts {
		if err := p.Driver.Verify(ctx, p.target, depth); err != nil {
			return nil, r.stored(p, err)
		}
		r.plan.Layers = append(r.plan.Layers, p.Name)
	}
	if err := r.foreseen(ctx); err != nil {
		return nil, err
	}
	if !req.DryRun {
		err = r.orDiscard(ctx, d.store.HasFree(ctx, records.Reserve))
	}
	return r, err
}

// foreseen refuses what the layers can tell now that their Prepare would refuse.
func (r *rollback) foreseen(ctx context.Context) error {
	for _, p := range r.parts {
		f, ok := p.Driver.(snap.Foreseer)
		if !ok {
			continue
		}
		var paths []string
		if p.Name == snap.Files {
			paths = r.scope
		}
		if err := f.Foresee(ctx, p.target, paths); err != nil {
			return r.stored(p, err)
		}
	}
	return nil
}

// stored says of damage in what is stored where it is and what to do.
func (r *rollback) stored(p part, err error) error {
	if errs.KindOf(err) != errs.Corrupt {
		return err
	}
	return r.orWithout(&layer.Error{Layer: p.Layer, Err: &errs.Error{Kind: errs.Corrupt, Op: fmt.Sprintf("check %s of %s", p.Name, r.target.ID), Err: err,
		Hint: "nothing was changed; mulligan verify tells which checkpoints are whole"}})
}

// selectParts works out which layers take part, from the request's scope.
func (r *rollback) selectParts() error {
	wanted := map[snap.Layer]bool{}
	for _, s := range r.req.Scope {
		name, isLayer := strings.CutPrefix(s, "layer:")
		switch {
		case !isLayer && s == "":
			return errs.New(errs.Invalid, "", "an empty path in scope").WithHint("name paths below the workspace, or layer:NAME")
		case !isLayer:
			r.scope = append(r.scope, s)
			wanted[snap.Files] = true
		case !r.markWanted(wanted, name):
			return errs.New(errs.Invalid, "", "%s has no layer %.64q", r.a.rec().Slug, name).WithHint("its layers are %s", r.layerNames())
		}
	}
	if slices.Contains(r.req.Scope, "layer:"+string(snap.Files)) {
		r.scope = nil // all of it
	}
	left, err := r.withoutLayers()
	if err != nil {
		return err
	}
	for _, l := range r.a.layers() {
		if len(r.req.Scope) > 0 && !wanted[l.Name] {
			continue
		}
		s, ok := r.target.Snapshot(l.Name)
		switch {
		case left[l.Name]:
			r.warn("%s stays as it is, as requested: it may not agree with what is restored", l.Name)
			r.plan.Without = append(r.plan.Without, string(l.Name))
		case !ok:
			r.warn("%s does not hold %s, which stays as it is", r.target.ID, l.Name)
		}
		if left[l.Name] || !ok {
			r.plan.Behind = append(r.plan.Behind, string(l.Name))
			continue
		}
		r.parts = append(r.parts, part{Layer: l, target: s.ID})
	}
	for _, s := range r.target.Snapshots {
		if _, ok := r.a.layer(s.Layer); !ok {
			r.warn("the app no longer has %s, which %s holds", s.Layer, r.target.ID)
		}
	}
	if len(r.parts) == 0 {
		return errs.New(errs.Conflict, "", "%s holds nothing that could be restored", r.target.ID).WithHint("choose another checkpoint, or a wider scope")
	}
	if len(r.req.Scope) > 0 && len(r.parts)+len(r.plan.Behind) < len(r.a.layers()) {
		r.warn("only %s restored: layers outside the scope stay as they are and may not agree", r.partNames())
	}
	return nil
}

// markWanted marks the layers that a layer's name in a scope stands for: "db"
// is every database, and a database may be called by its own name.
func (r *rollback) markWanted(wanted map[snap.Layer]bool, name string) (found bool) {
	for _, l := range r.a.layers() {
		if string(l.Name) == name || l.IsDB() && (name == "db" || snap.DB(name) == l.Name) {
			wanted[l.Name], found = true, true
		}
	}
	return found
}

func (r *rollback) layerNames() string {
	var names []string
	for _, l := range r.a.layers() {
		names = append(names, string(l.Name))
	}
	return strings.Join(names, ", ")
}

func (r *rollback) partNames() string {
	var names []string
	for _, p := range r.parts {
		names = append(names, string(p.Name))
	}
	return strings.Join(names, ", ")
}

func (r *rollback) warn(format string, args ...any) {
	r.warnings = append(r.warnings, fmt.Sprintf(format, args...))
}

// run goes through the six stages. Its error is the first stage's that failed,
// after the app was put back where it was.
func (r *rollback) run(ctx context.Context) error {
	err := r.stage(ctx, ipc.StageSafety, r.safetyCheckpoint)
	if err != nil {
		return errs.Also(r.orDiscard(ctx, err), r.abandon(ctx))
	}
	err = r.stagesInTurn(ctx, []stageOf{
		{ipc.StageStop, r.stop}, {ipc.StageVM, r.switchFiles}, {ipc.StageDB, r.switchDBs}, {ipc.StageStart, r.start},
	})
	if err != nil {
		return errs.Also(err, r.putBack(ctx))
	}
	if err := r.stage(ctx, ipc.StageHealthy, r.healthy); err != nil {
		if r.req.OnUnhealthy == ipc.UnhealthyUndo {
			return errs.Also(err, r.putBack(ctx))
		}
		r.done(ctx)
		return err
	}
	r.done(ctx)
	return nil
}

// done ends a rollback that reached its target. Leftovers that cannot be dropped
// now are no failure of it: pursue sees to them.
func (r *rollback) done(ctx context.Context) {
	if err := r.finishForward(ctx); err != nil {
		r.a.unsettle(errs.Wrap(errs.Failed, "drop what was kept for an undo", err))
		r.warn("the data kept for an undo could not be deleted yet: %v", err)
	}
}

// finishForward is finish for a rollback whose layers are all at the target: its safety
// checkpoint is a state to go forward to from now on.
func (r *rollback) finishForward(ctx context.Context) (err error) {
	if r.safety, err = r.d.store.Checkpoint(ctx, r.a.rec().ID, r.safety.ID); err != nil { // somebody may have pinned it
		return err
	}
	if r.safety.UndoNext, err = r.next(ctx); err != nil {
		return err
	}
	if r.plan.Revert == "" {
		if r.safety.StayedBehind, err = r.behind(ctx); err != nil {
			return err
		}
	}
	r.safety.CalledOff = false
	r.safety.Quiesced = r.safety.Quiesced || r.stops() && r.stopsAll() && len(r.parts) == len(r.safety.Snapshots) && !r.tornDisk()
	if err := r.d.store.PutCheckpoint(ctx, r.safety, ""); err != nil {
		return err
	}
	r.d.noteBehind(ctx, r.a)
	trackerOf(r.a).noteUndone(ctx)
	return r.finish(ctx)
}

// tornDisk reports whether the safety checkpoint has a guest's disks as after a power cut.
func (r *rollback) tornDisk() bool {
	s, ok := r.safety.Snapshot(snap.Disk)
	return ok && !s.Quiesced
}

// stageOf is a stage and what it does.
type stageOf struct {
	name ipc.StageName
	do   func(context.Context) (notes string, err error)
}

// stagesInTurn runs stages until one fails.
func (r *rollback) stagesInTurn(ctx context.Context, stages []stageOf) error {
	for _, s := range stages {
		if err := r.stage(ctx, s.name, s.do); err != nil {
			return err
		}
	}
	return nil
}

// errSkipped is returned by a stage that has nothing to do.
var errSkipped = errors.New("skipped")

// stage runs one stage and notes how it went.
func (r *rollback) stage(ctx context.Context, name ipc.StageName, do func(context.Context) (string, error)) error {
	s := ipc.Stage{Stage: name, Status: ipc.StageRunning, TS: r.d.opt.Now().UTC()}
	r.tell(s)
	ctx = snap.WithProgress(ctx, func(words string) {
		now := s
		now.Notes = words
		r.tell(now)
	})
	began := time.Now()
	err := r.d.opt.Failpoint.At("stage " + string(name))
	if err == nil {
		s.Notes, err = do(ctx)
	}
	s.DurationMS = time.Since(began).Milliseconds()
	s.Status = ipc.StageOK
	switch {
	case errors.Is(err, errSkipped):
		s.Status, err = ipc.StageSkipped, nil
	case err != nil:
		s.Status, s.Notes = ipc.StageFailed, err.Error()
	}
	r.d.Stages.WithLabelValues(string(name), string(s.Status)).Observe(events.Since(began))
	r.stages = append(r.stages, s)
	r.tell(s)
	return err
}

func (r *rollback) tell(s ipc.Stage) {
	if r.notify != nil {
		r.notify(s)
	}
	r.d.Publish(r.a.rec().ID, "stage", s)
}

// writePlan makes the plan durable, with a new phase.
func (r *rollback) writePlan(ctx context.Context, p phase) error {
	if err := r.d.opt.Failpoint.At("plan " + string(p)); err != nil {
		return err
	}
	r.plan.Phase = p
	plan, err := json.Marshal(r.plan)
	if err != nil {
		return err
	}
	return r.d.store.PutOperation(ctx, store.Operation{ID: r.op, AppID: r.a.rec().ID, Kind: r.kind(), Plan: plan}, r.d.opt.Now())
}

// safetyCheckpoint captures the present state while the app still runs, and
// prepares every layer beside it.
func (r *rollback) safetyCheckpoint(ctx context.Context) (string, error) {
	now, err := r.status(ctx)
	if err != nil {
		return "", err
	}
	onHost, err := statusOf(ctx, r.a.hostPart())
	if err != nil {
		return "", err
	}
	r.intend(now)
	if err := r.writePlan(ctx, preparing); err != nil {
		return "", err
	}
	running := !now.Down()
	still := stillness{all: r.a.unit() != nil && !running, host: onHost.Down()}
	cp, halted, err := r.captureBase(ctx, still, running)
	if err != nil {
		return "", err
	}
	r.d.note(ctx, r.a, now, &cp)
	cp.Trigger, cp.CalledOff = ipc.TriggerPreRollback, true // until the rollback is done
	cp.Notes = optional("safety checkpoint before " + r.words())
	cp.Warnings = append(cp.Warnings, r.lacks()...)
	r.plan.Safety = cp.ID
	err = r.writePlan(ctx, preparing)
	if err == nil {
		err = r.d.record(ctx, r.a, &cp, "")
	}
	if err != nil {
		return "", errs.Also(err, r.d.drop(ctx, r.a, cp.Snapshots))
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
	now, err := r.a.status(ctx)
	if err == nil {
		return now, nil
	}
	err = r.a.setup().OfGuest(ctx, err)
	var away *layer.Error
	switch {
	case r.stopsAll() && r.has(snap.Disk):
		return now, r.orWithout(err)
	case r.stopsAll() || !errors.As(err, &away):
		return now, err
	}
	m := r.a.unit().(*layer.Machine)
	if !r.unseen { // else it was said
		r.warn("it is not known whether the %s runs, so it is left as it is: %v", m.Vm.Name(), away.Err)
	}
	r.unseen = true
	return statusOf(ctx, m.Host)
}

// remakeWorkspace makes the workspace again if it was deleted and the files are to go back.
func (r *rollback) remakeWorkspace(ctx context.Context) error {
	if r.req.DryRun || !slices.Contains(r.plan.Layers, snap.Files) {
		return nil
	}
	made, err := r.d.remakeWorkspace(ctx, r.a.rec())
	if made {
		r.warn("%s was not there any more, and was made anew", r.a.rec().Workspace)
	}
	return err
}

// intend notes how the app is before the rollback, and how it is to be after it.
func (r *rollback) intend(now systemd.Status) {
	r.before = now
	r.plan.Running = !now.Down() && now.Intent() == systemd.Up
	r.plan.Limping = !now.Running()
	if !r.stops() {
		return
	}
	r.plan.Start, r.plan.WhyDown = startsAfter(now, r.target, r.req.Start)
	if !r.plan.Start {
		r.warn("%s %s", r.halts(), r.plan.WhyDown)
	}
}

// starts reports whether the app is started at the end.
func (r *rollback) starts() bool {
	return r.plan.Start || r.plan.WhyDown == "" && r.plan.Running
}

// stops reports whether something is stopped for the time of the switch. A revert
// changes some files, as an editor does.
func (r *rollback) stops() bool {
	return r.plan.Revert == "" && r.a.unit() != nil && (r.stopsAll() || r.a.hostPart() != nil)
}

// stopsAll reports whether that is the whole app. A guest is stopped for its
// disks only: for other layers, what runs on the host beside it is enough.
func (r *rollback) stopsAll() bool {
	m, ok := r.a.unit().(*layer.Machine)
	return !ok || m.HostStarts || slices.Contains(r.plan.Layers, snap.Disk)
}

// halt stops it.
func (r *rollback) halt(ctx context.Context) error {
	if r.stopsAll() {
		return r.d.stopUnit(ctx, r.a)
	}
	return r.d.pauseHost(ctx, r.a)
}

// halts is its name.
func (r *rollback) halts() string {
	if r.stopsAll() {
		return r.a.unit().Name()
	}
	return r.a.hostPart().Name()
}

func (r *rollback) kind() string {
	if r.plan.Revert != "" {
		return kindRevert
	}
	return kindRollback
}

// words says what this is.
func (r *rollback) words() string {
	if r.plan.Revert != "" {
		return "revert of " + r.plan.Revert
	}
	return "rollback to " + string(r.plan.Target)
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
	if r.plan.Revert != "" {
		return nil // it is for the revert alone
	}
	for _, l := range r.a.layers() {
		if !r.has(l.Name) {
			list = append(list, fmt.Sprintf("%s is not in it: the rollback left it as it was", l.Name))
		}
	}
	return list
}

// prepare prepares the parts whose base is not the safety checkpoint's present
// snapshot of their layer.
func (r *rollback) prepare(ctx context.Context, only map[snap.Layer]bool) error {
	for i := range r.parts {
		p := &r.parts[i]
		if only != nil && !only[p.Name] {
			continue
		}
		s, ok := r.safety.Snapshot(p.Name)
		if !ok {
			return errs.New(errs.Internal, "", "the safety checkpoint lacks %s", p.Name)
		}
		p.base = s.ID
		if err := r.preparePart(ctx, p); err != nil {
			return err
		}
		p.list, p.total = r.changesOf(*p, p.sw)
	}
	return nil
}

func (r *rollback) preparePart(ctx context.Context, p *part) (err error) {
	if err := r.d.opt.Failpoint.At("prepare " + string(p.Name)); err != nil {
		return err
	}
	if r.back != nil {
		return r.back.prepare(ctx, r.op, p)
	}
	req := snap.RestoreRequest{ID: snap.RestoreID(r.op), Target: p.target, Base: p.base}
	if p.Name == snap.Files && len(r.scope) > 0 {
		scoped, ok := p.Driver.(snap.ScopedPreparer)
		if !ok {
			return errs.New(errs.Unsupported, "", "%s cannot restore single paths", p.About)
		}
		p.sw, err = scoped.PrepareScoped(ctx, req, r.scope)
	} else {
		p.sw, err = p.Driver.Prepare(ctx, req)
	}
	if err != nil {
		r.a.unsettle(nil) // it may have left something where it cannot reach it now
	}
	return r.stored(*p, err)
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

// warm has the layers do ahead what would lengthen the time that the app is down,
// now that everything is prepared. It only saves time: what goes on failing is told
// when it is needed.
func (r *rollback) warm(ctx context.Context) {
	for _, p := range r.parts {
		if w, ok := p.sw.(snap.Warmer); ok {
			_ = w.Warm(ctx)
		}
	}
}

// runsOn says why the unit is not stopped.
func (r *rollback) runsOn() string {
	if r.a.unit() == nil {
		return "the app has no unit"
	}
	return "the app runs on"
}

func (r *rollback) stale(ctx context.Context) (map[snap.Layer]bool, error) {
	stale := map[snap.Layer]bool{}
	for _, p := range r.parts {
		is, err := p.sw.Stale(ctx)
		if _, kept := snap.SalvagerOf(p.Driver); err != nil && kept && layer.Unreadable(err) {
			is, err = true, nil // it could be read when it was captured
		}
		if err != nil {
			return nil, r.orWithout(&layer.Error{Layer: p.Layer, Err: err})
		}
		if is {
			stale[p.Name] = true
		}
	}
	return stale, nil
}

func layerList(set map[snap.Layer]bool) []string {
	var names []string
	for l := range set {
		names = append(names, string(l))
	}
	slices.Sort(names)
	return names
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
		l, _ := r.a.layer(s.Layer)
		n, warnings, err := r.d.captureLayer(ctx, r.a, l, taking{still: stillness{all: r.stops()}, revive: true, salvage: true})
		if err != nil {
			return errs.Also(err, r.d.drop(ctx, r.a, fresh))
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
	cp.Ref = headOf(r.a.rec())
	if err := r.d.store.PutCheckpoint(ctx, cp, ""); err != nil {
		return errs.Also(err, r.d.drop(ctx, r.a, fresh))
	}
	r.safety = cp
	if len(raw) > 0 {
		r.noteRaw(raw...)
	}
	if err := r.prepare(ctx, stale); err != nil {
		return err
	}
	return r.d.drop(ctx, r.a, old)
}

func (r *rollback) switchFiles(ctx context.Context) (string, error) { return r.switchParts(ctx, false) }
func (r *rollback) switchDBs(ctx context.Context) (string, error)   { return r.switchParts(ctx, true) }

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
		r.d.Restores.WithLabelValues(p.Family, events.ResultOf(err)).Observe(events.Since(began))
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

// check proves that the part is what it should be.
func (p *part) check(ctx context.Context) error {
	proof, err := p.sw.Check(ctx)
	if err != nil {
		return err
	}
	p.proof = &proof
	if !proof.Match {
		return errs.New(errs.Failed, "verify "+string(p.Name), "the restored state has hash %s and should have %s", proof.Post, proof.Want).
			WithHint("something else writes to it, or the disk is at fault")
	}
	return nil
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
		r.warn("the app does not start, and was not well when %s was made: %v", r.target.ID, err)
		return r.halts() + " does not start, as when the checkpoint was made", errSkipped
	}
	if s, err := r.a.status(ctx); err == nil && isPaused(s) {
		return r.halts() + " started, and paused as it was before", nil
	}
	return r.halts() + " started", nil
}

// isPaused reports whether a guest is there that does not run on.
func isPaused(s systemd.Status) bool { return s.Sub == "paused" }

// bringUp starts the app, and watches it for a moment where no health check tells.
func (r *rollback) bringUp(ctx context.Context) error {
	if err := r.d.startUnit(ctx, r.a); err != nil {
		return err
	}
	if r.a.rec().Health != nil {
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
func (r *rollback) mayAil() bool { return ailing(r.target) && r.req.OnUnhealthy != ipc.UnhealthyUndo }

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
			return errs.New(errs.Failed, "start "+r.a.unit().Name(), "it ended soon after its start: %s", cmp.Or(now.Result, now.Active)).
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
	h := r.a.rec().Health
	switch {
	case r.plan.Revert != "":
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
		if _, well := r.d.condition(ctx, r.a, systemd.Status{Active: "active"}); well == nil || !*well {
			r.warn("the app is not well, and was not when %s was made", r.target.ID)
			return "not well, as when the checkpoint was made", errSkipped
		}
		return "healthy", nil
	}
	if err := r.d.checkHealth(ctx, r.a); err != nil {
		return "", err
	}
	if s, err := r.a.unit().State(ctx); err == nil && !s.Running() {
		return "", errs.New(errs.Failed, "check health", "the health check passed, but %s is %s (%s): another process may be answering", r.a.unit().Name(), s.Active, s.Result)
	}
	return "healthy", nil
}

// abandon ends a rollback that changed nothing.
func (r *rollback) abandon(ctx context.Context) error {
	err := r.finishParts(ctx)                                     // what it leaves is swept by pursue
	short, cancel := context.WithTimeout(ctx, r.d.stopLimit(r.a)) // as in callOff
	defer cancel()
	if err == nil {
		r.dropSafety(ctx)
	}
	err = errs.Also(err, r.startAgain(short))
	return errs.Also(err, r.d.end(ctx, r.a, r.op))
}

// dropSafety drops the safety checkpoint of a rollback that changed nothing: the app is
// what it holds. One that cannot be dropped stays, and is marked as called off. One that is
// not marked is of a rollback that was done, whose records lost that, and stays too.
func (r *rollback) dropSafety(ctx context.Context) {
	if r.safety.ID == "" || !r.safety.CalledOff {
		return
	}
	entry := r.d.Entry(r.a.rec(), accounts.Self(), "delete", string(r.safety.ID), "its rollback changed nothing", nil, nil)
	if err := r.d.deleteCheckpoints(ctx, r.a, &entry, r.safety); err != nil {
		r.d.opt.Log.Warn("the safety checkpoint of a rollback that was called off stays", "app", r.a.rec().Slug, "checkpoint", r.safety.ID, "err", err)
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
		r.a.unsettle(err)
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

// back says what an undo did to the part.
func (p *part) back() string {
	switch {
	case !p.touched:
		return string(p.Name) + ": was not changed"
	case p.proof == nil:
		return string(p.Name) + ": put back, and not compared"
	case !p.proof.Match:
		return string(p.Name) + ": put back, and others have written to it"
	}
	return string(p.Name) + ": put back, and compared with the state before"
}

// startAgain starts the app that is put back, if it was up before. One that was not
// well up may stay as it was.
func (r *rollback) startAgain(ctx context.Context) error {
	err := r.d.startAgain(ctx, r.a, r.plan.Running && r.stops())
	if err != nil && r.plan.Limping {
		r.warn("the app was not well up before, and does not start: %v", err)
		return nil
	}
	return err
}

// foreign reports whether an undo that was tried before may end although a part
// is not what it was: what the rollback changed is back, so it must be others who
// wrote, and nothing that is tried again would change that. The safety checkpoint
// still holds what there was.
func (r *rollback) foreign(p *part) bool {
	if !r.again || p.proof == nil || p.proof.Match {
		return false
	}
	r.d.opt.Log.Warn("a rollback is undone, and others have written meanwhile", "app", r.a.rec().Slug, "layer", string(p.Name), "before", r.safety.ID)
	r.warnings = append(r.warnings, fmt.Sprintf("Others have written to %s meanwhile. Its state before that is in %s.", p.Name, r.safety.ID))
	return true
}

// finish drops what was kept for an undo, and the plan.
func (r *rollback) finish(ctx context.Context) error {
	if err := r.finishParts(ctx); err != nil {
		return err
	}
	if err := r.d.end(ctx, r.a, r.op); err != nil {
		return err
	}
	r.d.store.WasDisposed(store.Disposal{Kind: store.DisposeRestore, ID: string(r.op)})
	return nil
}

func (r *rollback) finishParts(ctx context.Context) error {
	for _, p := range r.parts {
		if p.sw == nil {
			continue
		}
		if err := r.d.opt.Failpoint.At("finish " + string(p.Name)); err != nil {
			return err
		}
		if err := p.sw.Finish(ctx); err != nil {
			r.a.unsettle(err)
			return err
		}
	}
	return nil
}
