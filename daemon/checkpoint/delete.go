package checkpoint

import (
	"context"
	"errors"

	"mulligan/daemon/app"
	"mulligan/daemon/events"
	"mulligan/daemon/layer"
	"mulligan/daemon/store"
	"mulligan/errs"
	"mulligan/ipc"
)

// Delete deletes a checkpoint. If it is pinned, the error is errs.Pinned.
func (svc *Service) Delete(ctx context.Context, who ipc.Caller, ref string, id ipc.CheckpointID) error {
	const op = "delete checkpoint"
	a, _, err := svc.FindCheckpoint(ctx, who, ref, id)
	if err != nil {
		return err
	}
	ctx = context.WithoutCancel(ctx)
	release, err := svc.apps.Acquire(ctx, a, op, who)
	if err != nil {
		return err
	}
	defer release()
	svc.store.GiveToDelete()
	cp, err := svc.store.Checkpoint(ctx, a.Rec().ID, id)
	if err == nil {
		entry := svc.events.Entry(a.Rec(), who, "delete", string(id), "", nil, nil)
		err = svc.DeleteCheckpoints(ctx, a, &entry, cp)
	}
	if err != nil {
		svc.events.WriteAudit(ctx, a.Rec(), who, "delete", string(id), "", err, nil)
	}
	return errs.Wrap(errs.Failed, op, err)
}

// DeleteCheckpoints deletes the records of checkpoints, then their snapshots. The transaction that
// deletes the records also stores disposals and the audit entry, so that the next start drops the
// snapshots after a crash.
func (svc *Service) DeleteCheckpoints(ctx context.Context, a *app.App, entry *ipc.AuditEntry, cps ...store.Checkpoint) error {
	var ids []ipc.CheckpointID
	var snaps []store.Snapshot
	for _, cp := range cps {
		ids = append(ids, cp.ID)
		snaps = append(snaps, cp.Snapshots...)
	}
	if err := svc.store.DeleteCheckpoints(ctx, entry, ids...); err != nil {
		return err
	}
	svc.events.Operations.WithLabelValues(entry.Action, events.ResultOf(nil)).Inc()
	a.DropSizes()
	if len(ids) > 0 {
		svc.events.Publish(a.Rec().ID, "deleted", ids)
	}
	if err := svc.opt.Failpoint.At("drop snapshots"); err != nil {
		return err
	}
	for _, id := range ids {
		svc.store.WasDisposed(store.Disposal{Kind: store.DisposeCheckpoint, ID: string(id), AppID: a.Rec().ID})
	}
	return svc.Drop(ctx, a, snaps)
}

// Drop deletes snapshots that no checkpoint refers to and that have disposals. The snapshots of a
// held-up layer stay until its next sweep.
func (svc *Service) Drop(ctx context.Context, a *app.App, snaps []store.Snapshot) error {
	var all []error
	for _, s := range snaps {
		l, ok := a.Layer(s.Layer)
		if _, held := l.Driver.(*layer.Held); !ok || held {
			continue
		}
		err := l.Driver.Delete(ctx, s.ID)
		if err == nil {
			svc.store.WasDisposed(store.Disposal{Kind: store.DisposeSnapshot, ID: string(s.ID)})
		}
		all = append(all, err)
	}
	if len(snaps) > 0 {
		svc.store.WakeCollector()
	}
	return errors.Join(all...)
}
