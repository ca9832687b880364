package checkpoint

import (
	"context"
	"encoding/json"
	"errors"
	"slices"

	"mulligan/daemon/app"
	"mulligan/daemon/layer"
	"mulligan/daemon/records"
	"mulligan/daemon/store"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/snap"
	"mulligan/systemd"
)

// createPlan is what the recovery of a create must know: whether the unit must be started again,
// and the id of one snapshot that the create makes. The snapshots are garbage until the checkpoint
// is described in the content store, and have disposals until it is recorded in the database.
type createPlan struct {
	Running bool   `json:"running"`
	Makes   string `json:"makes,omitempty"`
}

// KindCreate is the kind of the operation in the records.
const KindCreate = "create"

// Create takes a checkpoint of the app called ref. The checkpoint lacks the layers in without.
func (svc *Service) Create(ctx context.Context, who ipc.Caller, ref string, req ipc.CreateRequest, without ...string) (ipc.Checkpoint, error) {
	const op = "create checkpoint"
	a, err := svc.apps.Find(who, ref)
	if err != nil {
		return ipc.Checkpoint{}, err
	}
	if err := checkCreate(&req, a.Rec()); err != nil {
		return ipc.Checkpoint{}, err
	}
	if err := svc.checkQuota(ctx, who); err != nil {
		return ipc.Checkpoint{}, errs.Wrap(errs.Failed, op, err)
	}
	ctx = context.WithoutCancel(ctx) // a client that left must not keep a stopped app from being started again
	release, err := svc.apps.Acquire(ctx, a, op, who)
	if err != nil {
		return ipc.Checkpoint{}, err
	}
	defer release()

	cp, err := svc.create(ctx, a, req, without)
	svc.events.WriteAudit(ctx, a.Rec(), who, "create", string(cp.ID), "", err, nil)
	if cp.ID == "" {
		return ipc.Checkpoint{}, errs.Wrap(errs.Failed, op, err)
	}
	svc.events.Publish(a.Rec().ID, "checkpoint", cp.Checkpoint)
	svc.PruneAfter(ctx, a, who, cp.ID)
	if err != nil { // the checkpoint is made, but the app did not start again
		return cp.Checkpoint, errs.Wrap(errs.Failed, op, err)
	}
	a.DropSizes()
	return svc.show(ctx, a, cp)
}

func checkCreate(req *ipc.CreateRequest, rec store.App) error {
	const op = "create checkpoint"
	if req.Trigger == "" {
		req.Trigger = ipc.TriggerManual
	}
	if !slices.Contains([]ipc.Trigger{ipc.TriggerManual, ipc.TriggerDeploy, ipc.TriggerAgent}, req.Trigger) {
		return errs.New(errs.Invalid, op, "unknown trigger %.64q", string(req.Trigger)).WithHint("use manual, deploy or agent")
	}
	switch req.Quiesce {
	case "", ipc.QuiesceStop, ipc.QuiesceNone:
	default:
		return errs.New(errs.Invalid, op, "unknown quiesce %.64q", string(req.Quiesce)).WithHint("use stop or none")
	}
	switch {
	case req.WithMemory && rec.Domain == "":
		return errs.New(errs.Invalid, op, "%s has no domain whose memory could be kept", rec.Slug).WithHint("leave with_memory out")
	case req.WithMemory && req.Quiesce == ipc.QuiesceStop:
		return errs.New(errs.Invalid, op, "a domain that is stopped has no memory to keep").WithHint("use with_memory or quiesce=stop, not both")
	}
	const most = 4096
	if len(req.Notes) > most || len(req.DeployID) > most {
		return errs.New(errs.Invalid, op, "notes and deploy_id hold at most %d bytes", most)
	}
	return nil
}

// create captures and records a checkpoint. If it returns both a checkpoint and an error, the
// checkpoint is recorded and the unit did not start again.
func (svc *Service) create(ctx context.Context, a *app.App, req ipc.CreateRequest, without []string) (store.Checkpoint, error) {
	op := ipc.OperationID(records.NewID("op-"))
	layers := slices.DeleteFunc(slices.Clone(a.Layers()), func(l layer.Layer) bool { return slices.Contains(without, string(l.Name)) })
	ids, made := Announced(a, layers)
	now, err := a.Status(ctx)
	if err != nil {
		return store.Checkpoint{}, a.Setup().OfGuest(ctx, err)
	}
	var was store.Checkpoint
	svc.apps.Note(ctx, a, now, &was)
	stopped, still, err := svc.quiesce(ctx, a, op, now, req.Quiesce, made)
	if err != nil {
		return store.Checkpoint{}, errs.Also(err, svc.callOff(ctx, a, op, stopped))
	}
	cp, err := svc.captureAs(ctx, a, layers, ids, How{Still: still, memory: req.WithMemory})
	startErr := svc.apps.StartAgain(ctx, a, stopped)
	if err != nil {
		return store.Checkpoint{}, errs.Also(errs.Also(err, startErr), svc.End(ctx, a, op))
	}
	cp.Running, cp.Healthy = was.Running, was.Healthy
	cp.Warnings = append(cp.Warnings, app.RepositoryWarnings(a.Rec())...)
	cp.Trigger, cp.Pinned = req.Trigger, req.Pinned
	cp.Notes, cp.DeployID = Optional(req.Notes), Optional(req.DeployID)
	if err := svc.Record(ctx, a, &cp, op); err != nil {
		return store.Checkpoint{}, errs.Also(errs.Also(err, startErr), svc.Drop(ctx, a, cp.Snapshots))
	}
	return cp, startErr
}

// quiesce stops the app for a capture, after the drivers did what they can while it runs. Before
// it stops anything, it stores the operation and the disposals of the snapshots to be made. again
// reports whether the app must be started afterwards; an app that somebody else is stopping stays
// down.
func (svc *Service) quiesce(ctx context.Context, a *app.App, op ipc.OperationID, now systemd.Status, how ipc.Quiesce, made []store.Disposal) (again bool, still Stillness, err error) {
	host, err := app.StatusOf(ctx, a.HostPart())
	if err != nil {
		return false, still, err
	}
	running, onHost := !now.Down(), !host.Down()
	all := how == ipc.QuiesceStop || a.Rec().Domain == "" // otherwise only the part on the host stops
	stop := how != ipc.QuiesceNone && (onHost || all && running)
	if err := svc.fits(ctx, a); err != nil {
		return false, still, err
	}
	if stop {
		if err := warm(ctx, a.Layers()); err != nil {
			return false, still, err
		}
	}
	again = stop && now.Intent() == systemd.Up
	plan, err := json.Marshal(createPlan{Running: again, Makes: made[0].ID})
	if err != nil {
		return false, still, err
	}
	if err := svc.store.PutOperation(ctx, store.Operation{ID: op, AppID: a.Rec().ID, Kind: KindCreate, Plan: plan}, svc.opt.Now(), made...); err != nil {
		return false, still, err
	}
	switch {
	case stop && all:
		err = svc.apps.StopUnit(ctx, a)
	case stop:
		err = svc.apps.PauseHost(ctx, a)
	}
	still.All = a.Unit() != nil && (!running || stop && all)
	still.Host = a.Rec().Domain != "" && (!onHost || stop)
	return again, still, err
}

// warm lets the drivers work ahead while the app still runs. A state that keeps changing is no
// error: once the app is stopped, it will not change.
func warm(ctx context.Context, layers []layer.Layer) error {
	for _, l := range layers {
		w, ok := l.Driver.(snap.Warmer)
		if !ok {
			continue
		}
		if err := w.Warm(ctx); err != nil && !errors.Is(err, snap.ErrChanged) {
			return err
		}
	}
	return nil
}

// callOff ends an operation that changed nothing except that it may have stopped the unit, or
// tried to. A unit that did not stop may not start either, so callOff waits no longer for the
// start than for the stop.
func (svc *Service) callOff(ctx context.Context, a *app.App, op ipc.OperationID, running bool) error {
	short, cancel := context.WithTimeout(ctx, svc.apps.StopLimit(a))
	defer cancel()
	err := svc.apps.StartAgain(short, a, running)
	return errs.Also(err, svc.End(ctx, a, op))
}

// End removes an operation from the store. If that fails, a retry in the background does it.
func (svc *Service) End(ctx context.Context, a *app.App, op ipc.OperationID) error {
	err := svc.store.EndOperation(ctx, op)
	if err != nil {
		a.RequestRecovery(err)
	}
	return err
}

func Optional(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// HeldBy returns the ids of the snapshots that the app's checkpoints and its operations under way
// refer to.
func (svc *Service) HeldBy(ctx context.Context, a *app.App, left []store.Operation) (map[string]bool, error) {
	cps, err := svc.store.Checkpoints(ctx, a.Rec().ID)
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

// RecoverCreate ends a create that a crash interrupted: it starts the app again, and drops the
// snapshots if the checkpoint was not described in the content store. An app that does not start does
// not keep it from its end: going back to a checkpoint may be what makes the app start.
func (svc *Service) RecoverCreate(ctx context.Context, a *app.App, op store.Operation) (string, error) {
	var plan createPlan
	if err := json.Unmarshal(op.Plan, &plan); err != nil {
		return "", errs.Wrap(errs.Corrupt, "", err)
	}
	notStarted := svc.apps.StartAgain(ctx, a, plan.Running)
	held, err := svc.HeldBy(ctx, a, nil)
	if err != nil {
		return "", err
	}
	word := "a checkpoint that was cut short was dropped"
	if held[plan.Makes] { // the checkpoint was described, so it is complete
		word = "a checkpoint that was cut short was finished"
	}
	return app.Recovered(word, notStarted), svc.store.EndOperation(ctx, op.ID)
}
