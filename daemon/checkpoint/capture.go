package checkpoint

import (
	"context"
	"fmt"
	"slices"
	"time"

	"mulligan/daemon/app"
	"mulligan/daemon/events"
	"mulligan/daemon/layer"
	"mulligan/daemon/records"
	"mulligan/daemon/store"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/snap"
)

// Stillness says which parts of an app are stopped during a capture.
type Stillness struct {
	All  bool // the whole app is stopped
	Host bool // only the guest runs; its guest agent can freeze its filesystems
}

// Announced returns fresh ids for the snapshots of some layers, and the disposals of these
// snapshots. The caller must store the disposals before the captures begin, so that the next start
// drops the garbage of an interrupted capture. PutCheckpoint removes the disposals of its
// snapshots.
func Announced(a *app.App, layers []layer.Layer) (ids []snap.SnapshotID, made []store.Disposal) {
	for _, l := range layers {
		id := records.NewID(l.Prefix())
		ids = append(ids, snap.SnapshotID(id))
		made = append(made, store.Disposal{Kind: store.DisposeSnapshot, ID: id, AppID: a.Rec().ID, Layer: l.Name, Cause: "a capture began"})
	}
	return ids, made
}

// Capture takes a snapshot of each layer and returns them as a new checkpoint, which is not stored
// yet. If a layer fails, Capture drops the snapshots already taken.
func (svc *Service) Capture(ctx context.Context, a *app.App, layers []layer.Layer, how How) (store.Checkpoint, error) {
	ids, made := Announced(a, layers)
	if err := svc.store.PutDisposals(ctx, made...); err != nil {
		return store.Checkpoint{}, err
	}
	return svc.captureAs(ctx, a, layers, ids, how)
}

// captureAs is Capture with ids that were announced.
func (svc *Service) captureAs(ctx context.Context, a *app.App, layers []layer.Layer, ids []snap.SnapshotID, how How) (store.Checkpoint, error) {
	var cp store.Checkpoint
	still := how.Still
	cp.ID, cp.AppID, cp.Quiesced = ipc.CheckpointID(records.NewID("cp-")), a.Rec().ID, still.All
	for i, l := range layers {
		s, warnings, err := svc.CaptureLayerAs(ctx, l, ids[i], how)
		if err != nil {
			return store.Checkpoint{}, errs.Also(&layer.Error{Layer: l, Err: err}, svc.Drop(ctx, a, cp.Snapshots))
		}
		cp.Snapshots = append(cp.Snapshots, s)
		warnings = append(warnings, a.RehearsalWarnings(l, s.ID)...)
		if l.Name == snap.Disk {
			cp.Quiesced = (still.All || still.Host) && s.Quiesced
		}
		for _, w := range warnings {
			cp.Warnings = append(cp.Warnings, string(l.Name)+": "+w)
		}
	}
	cp.Ref = app.HeadOf(a.Rec())
	return cp, nil
}

// CaptureLayer takes a snapshot of one layer.
func (svc *Service) CaptureLayer(ctx context.Context, a *app.App, l layer.Layer, how How) (store.Snapshot, []string, error) {
	ids, made := Announced(a, []layer.Layer{l})
	if err := svc.store.PutDisposals(ctx, made...); err != nil {
		return store.Snapshot{}, nil, err
	}
	return svc.CaptureLayerAs(ctx, l, ids[0], how)
}

func (svc *Service) CaptureLayerAs(ctx context.Context, l layer.Layer, id snap.SnapshotID, how How) (store.Snapshot, []string, error) {
	if err := svc.opt.Failpoint.At("capture " + string(l.Name)); err != nil {
		return store.Snapshot{}, nil, err
	}
	take := l.Driver.Capture
	if m, ok := l.Driver.(snap.MemoryCapturer); ok && how.memory {
		take = m.CaptureMemory
	}
	snap.Begin(ctx, "capturing "+string(l.Name))
	began := time.Now()
	req := snap.CaptureRequest{ID: id, Quiesced: how.Still.All, Revive: how.Revive}
	if l.Name == snap.Files {
		req.Paths = how.Paths
	}
	s, err := take(ctx, req)
	if err != nil && how.Salvage && layer.Unreadable(err) {
		s, err = salvage(ctx, l, req, err)
	}
	svc.events.Captures.WithLabelValues(l.Family, events.ResultOf(err)).Observe(events.Since(began))
	if err != nil { // the next start drops the garbage of the failed capture
		return store.Snapshot{}, nil, err
	}
	return store.Snapshot{
		Layer: l.Name, ID: s.ID, Driver: s.Driver, Hash: s.Hash, Position: s.Position, Quiesced: s.Quiesced, Raw: s.Raw,
	}, s.Warnings, nil
}

// Record completes a captured checkpoint and stores it. If op is not empty, the same transaction
// ends that operation.
func (svc *Service) Record(ctx context.Context, a *app.App, cp *store.Checkpoint, op ipc.OperationID) error {
	now := svc.opt.Now().UTC()
	cp.CreatedAt = now
	if after, err := time.ParseDuration(a.Rec().Retention.ExpireAfter); err == nil && after > 0 {
		at := now.Add(after)
		cp.ExpiresAt = &at
	}
	if err := svc.marks(ctx, a, cp); err != nil {
		return err
	}
	if err := svc.opt.Failpoint.At("record checkpoint"); err != nil {
		return err
	}
	if err := svc.store.PutCheckpoint(ctx, *cp, op); err != nil {
		return err
	}
	a.RehearsalDue()
	if svc.Recorded != nil {
		svc.Recorded()
	}
	return nil
}

// How says how layers are captured.
type How struct {
	Still   Stillness
	memory  bool     // the memory of the domain is captured too
	Revive  bool     // a server that is down may be started
	Salvage bool     // the raw bytes of a layer that cannot be read are kept
	Paths   []string // what a restore needs of the files, as in snap.CaptureRequest
}

// salvage keeps the raw bytes of a layer whose capture failed with why. The snapshot has a warning
// that says so.
func salvage(ctx context.Context, l layer.Layer, req snap.CaptureRequest, why error) (snap.Snapshot, error) {
	s, ok := snap.SalvagerOf(l.Driver)
	if !ok {
		return snap.Snapshot{}, why
	}
	kept, err := s.Salvage(ctx, req)
	if err != nil {
		return snap.Snapshot{}, errs.Also(why, err)
	}
	kept.Raw = true
	kept.Warnings = append(kept.Warnings, fmt.Sprintf("its state could not be read (%v), so its raw bytes were kept", why))
	return kept, nil
}

// Ailing reports whether the app was unhealthy when the checkpoint was made.
func Ailing(cp store.Checkpoint) bool { return cp.Healthy != nil && !*cp.Healthy }

// Ruined reports whether the checkpoint holds a layer that could not be read.
func Ruined(cp store.Checkpoint) bool {
	return slices.ContainsFunc(cp.Snapshots, func(s store.Snapshot) bool { return s.Raw })
}
