package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"mulligan/daemon/events"
	"mulligan/daemon/layer"
	"mulligan/daemon/records"
	"mulligan/daemon/store"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/snap"
	"mulligan/systemd"
)

// createPlan is what a create leaves behind for recovery: whether the unit
// must be started again, and one of the snapshots that it makes. These are garbage until
// the checkpoint is described, and have disposals until it is recorded.
type createPlan struct {
	Running bool   `json:"running"`
	Makes   string `json:"makes,omitempty"`
}

const (
	kindCreate   = "create"
	kindRollback = "rollback"
	kindRevert   = "revert" // its plan is a rollback's
)

// Create takes a checkpoint of the app called ref.
func (d *Daemon) Create(ctx context.Context, who ipc.Caller, ref string, req ipc.CreateRequest) (ipc.Checkpoint, error) {
	const op = "create checkpoint"
	a, err := d.find(who, ref)
	if err != nil {
		return ipc.Checkpoint{}, err
	}
	if err := checkCreate(&req, a.rec()); err != nil {
		return ipc.Checkpoint{}, err
	}
	if err := d.checkQuota(ctx, who); err != nil {
		return ipc.Checkpoint{}, errs.Wrap(errs.Failed, op, err)
	}
	ctx = context.WithoutCancel(ctx) // a stopped app must be started again, whoever still listens
	release, err := d.acquire(ctx, a, op, who)
	if err != nil {
		return ipc.Checkpoint{}, err
	}
	defer release()

	cp, err := d.create(ctx, a, req)
	d.WriteAudit(ctx, a.rec(), who, "create", string(cp.ID), "", err, nil)
	if cp.ID == "" {
		return ipc.Checkpoint{}, errs.Wrap(errs.Failed, op, err)
	}
	d.Publish(a.rec().ID, "checkpoint", cp.Checkpoint)
	d.pruneAfter(ctx, a, who, cp.ID)
	if err != nil { // the checkpoint stands, the app does not
		return cp.Checkpoint, errs.Wrap(errs.Failed, op, err)
	}
	a.dropSizes()
	return d.show(ctx, a, cp)
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

// create captures and records a checkpoint. An error with a checkpoint means
// that the checkpoint stands and the unit did not start again.
func (d *Daemon) create(ctx context.Context, a *app, req ipc.CreateRequest) (store.Checkpoint, error) {
	op := ipc.OperationID(records.NewID("op-"))
	layers := a.layers()
	ids, made := announced(a, layers)
	now, err := a.status(ctx)
	if err != nil {
		return store.Checkpoint{}, a.setup().OfGuest(ctx, err)
	}
	var was store.Checkpoint
	d.note(ctx, a, now, &was)
	stopped, still, err := d.quiesce(ctx, a, op, now, req.Quiesce, made)
	if err != nil {
		return store.Checkpoint{}, errs.Also(err, d.callOff(ctx, a, op, stopped))
	}
	cp, err := d.captureAs(ctx, a, layers, ids, taking{still: still, memory: req.WithMemory})
	startErr := d.startAgain(ctx, a, stopped)
	if err != nil {
		return store.Checkpoint{}, errs.Also(errs.Also(err, startErr), d.end(ctx, a, op))
	}
	cp.Running, cp.Healthy = was.Running, was.Healthy
	cp.Warnings = append(cp.Warnings, repositoryWarnings(a.rec())...)
	cp.Trigger, cp.Pinned = req.Trigger, req.Pinned
	cp.Notes, cp.DeployID = optional(req.Notes), optional(req.DeployID)
	if err := d.record(ctx, a, &cp, op); err != nil {
		return store.Checkpoint{}, errs.Also(errs.Also(err, startErr), d.drop(ctx, a, cp.Snapshots))
	}
	return cp, startErr
}

// stillness is what of an app does not run while it is captured.
type stillness struct {
	all  bool // nothing runs
	host bool // nothing but a guest does, whose own agent can hold it still
}

// quiesce stops the app for a capture, having done beforehand what can be done
// while it runs. It writes the operation down before it stops anything, with what it is
// going to make. again says whether the app must be started afterwards: one that
// somebody is stopping is not.
func (d *Daemon) quiesce(ctx context.Context, a *app, op ipc.OperationID, now systemd.Status, how ipc.Quiesce, made []store.Disposal) (again bool, still stillness, err error) {
	host, err := statusOf(ctx, a.hostPart())
	if err != nil {
		return false, still, err
	}
	running, onHost := !now.Down(), !host.Down()
	all := how == ipc.QuiesceStop || a.rec().Domain == "" // and not only what runs on the host
	stop := how != ipc.QuiesceNone && (onHost || all && running)
	if err := d.fits(ctx, a); err != nil {
		return false, still, err
	}
	if stop {
		if err := warm(ctx, a.layers()); err != nil {
			return false, still, err
		}
	}
	again = stop && now.Intent() == systemd.Up
	plan, err := json.Marshal(createPlan{Running: again, Makes: made[0].ID})
	if err != nil {
		return false, still, err
	}
	if err := d.store.PutOperation(ctx, store.Operation{ID: op, AppID: a.rec().ID, Kind: kindCreate, Plan: plan}, d.opt.Now(), made...); err != nil {
		return false, still, err
	}
	switch {
	case stop && all:
		err = d.stopUnit(ctx, a)
	case stop:
		err = d.pauseHost(ctx, a)
	}
	still.all = a.unit() != nil && (!running || stop && all)
	still.host = a.rec().Domain != "" && (!onHost || stop)
	return again, still, err
}

// warm lets drivers do what they can before the app is stopped. A state that
// won't hold still while the app runs may well do so once it is stopped.
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

// callOff ends an operation that changed nothing but may have stopped the unit,
// or tried to. One that would not stop may not start either: that is not waited for
// longer than the stop was.
func (d *Daemon) callOff(ctx context.Context, a *app, op ipc.OperationID, running bool) error {
	short, cancel := context.WithTimeout(ctx, d.stopLimit(a))
	defer cancel()
	err := d.startAgain(short, a, running)
	return errs.Also(err, d.end(ctx, a, op))
}

// end strikes an operation off. One that stays is seen to by pursue.
func (d *Daemon) end(ctx context.Context, a *app, op ipc.OperationID) error {
	err := d.store.EndOperation(ctx, op)
	if err != nil {
		a.unsettle(err)
	}
	return err
}

// announced returns fresh ids for the snapshots of some layers, and the disposals of
// these snapshots. The caller must write the disposals down before the captures begin, so that the
// next start drops what a capture that was cut short has left. PutCheckpoint strikes the disposals
// of its snapshots off.
func announced(a *app, layers []layer.Layer) (ids []snap.SnapshotID, made []store.Disposal) {
	for _, l := range layers {
		id := records.NewID(l.Prefix())
		ids = append(ids, snap.SnapshotID(id))
		made = append(made, store.Disposal{Kind: store.DisposeSnapshot, ID: id, AppID: a.rec().ID, Layer: l.Name, Cause: "a capture began"})
	}
	return ids, made
}

// capture takes a snapshot of each layer under a fresh checkpoint. When one
// fails, those already taken are dropped.
func (d *Daemon) capture(ctx context.Context, a *app, layers []layer.Layer, how taking) (store.Checkpoint, error) {
	ids, made := announced(a, layers)
	if err := d.store.PutDisposals(ctx, made...); err != nil {
		return store.Checkpoint{}, err
	}
	return d.captureAs(ctx, a, layers, ids, how)
}

// captureAs is capture under ids that are announced.
func (d *Daemon) captureAs(ctx context.Context, a *app, layers []layer.Layer, ids []snap.SnapshotID, how taking) (store.Checkpoint, error) {
	var cp store.Checkpoint
	still := how.still
	cp.ID, cp.AppID, cp.Quiesced = ipc.CheckpointID(records.NewID("cp-")), a.rec().ID, still.all
	for i, l := range layers {
		s, warnings, err := d.captureLayerAs(ctx, l, ids[i], how)
		if err != nil {
			return store.Checkpoint{}, errs.Also(&layer.Error{Layer: l, Err: err}, d.drop(ctx, a, cp.Snapshots))
		}
		cp.Snapshots = append(cp.Snapshots, s)
		warnings = append(warnings, a.foretold(l, s.ID)...)
		if l.Name == snap.Disk {
			cp.Quiesced = (still.all || still.host) && s.Quiesced
		}
		for _, w := range warnings {
			cp.Warnings = append(cp.Warnings, string(l.Name)+": "+w)
		}
	}
	cp.Ref = headOf(a.rec())
	return cp, nil
}

// captureLayer takes a snapshot of one layer.
func (d *Daemon) captureLayer(ctx context.Context, a *app, l layer.Layer, how taking) (store.Snapshot, []string, error) {
	ids, made := announced(a, []layer.Layer{l})
	if err := d.store.PutDisposals(ctx, made...); err != nil {
		return store.Snapshot{}, nil, err
	}
	return d.captureLayerAs(ctx, l, ids[0], how)
}

func (d *Daemon) captureLayerAs(ctx context.Context, l layer.Layer, id snap.SnapshotID, how taking) (store.Snapshot, []string, error) {
	if err := d.opt.Failpoint.At("capture " + string(l.Name)); err != nil {
		return store.Snapshot{}, nil, err
	}
	take := l.Driver.Capture
	if m, ok := l.Driver.(snap.MemoryCapturer); ok && how.memory {
		take = m.CaptureMemory
	}
	began := time.Now()
	req := snap.CaptureRequest{ID: id, Quiesced: how.still.all, Revive: how.revive}
	s, err := take(ctx, req)
	if err != nil && how.salvage && layer.Unreadable(err) {
		s, err = salvage(ctx, l, req, err)
	}
	d.Captures.WithLabelValues(l.Family, events.ResultOf(err)).Observe(events.Since(began))
	if err != nil { // what it may have left is dropped at the next start
		return store.Snapshot{}, nil, err
	}
	return store.Snapshot{
		Layer: l.Name, ID: s.ID, Driver: s.Driver, Hash: s.Hash, Position: s.Position, Quiesced: s.Quiesced, Raw: s.Raw,
	}, s.Warnings, nil
}

// record stamps a captured checkpoint and puts it into the store; with an
// operation, that ends.
func (d *Daemon) record(ctx context.Context, a *app, cp *store.Checkpoint, op ipc.OperationID) error {
	now := d.opt.Now().UTC()
	cp.CreatedAt = now
	if after, err := time.ParseDuration(a.rec().Retention.ExpireAfter); err == nil && after > 0 {
		at := now.Add(after)
		cp.ExpiresAt = &at
	}
	if err := d.marks(ctx, a, cp); err != nil {
		return err
	}
	if err := d.opt.Failpoint.At("record checkpoint"); err != nil {
		return err
	}
	if err := d.store.PutCheckpoint(ctx, *cp, op); err != nil {
		return err
	}
	a.rehearsalDue()
	return nil
}

// drop deletes snapshots that no checkpoint holds: what has a disposal. Those of a layer that is
// held up wait for its sweep.
func (d *Daemon) drop(ctx context.Context, a *app, snaps []store.Snapshot) error {
	var all []error
	for _, s := range snaps {
		l, ok := a.layer(s.Layer)
		if _, held := l.Driver.(*layer.Held); !ok || held {
			continue
		}
		err := l.Driver.Delete(ctx, s.ID)
		if err == nil {
			d.store.WasDisposed(store.Disposal{Kind: store.DisposeSnapshot, ID: string(s.ID)})
		}
		all = append(all, err)
	}
	if len(snaps) > 0 {
		d.store.WakeCollector()
	}
	return errors.Join(all...)
}

func optional(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}
