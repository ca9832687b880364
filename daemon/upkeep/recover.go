package upkeep

import (
	"context"
	"slices"

	"mulligan/daemon/accounts"
	"mulligan/daemon/app"
	"mulligan/daemon/layer"
	"mulligan/daemon/store"
	"mulligan/errs"
	"mulligan/snap"
)

// Recover makes an app ready for operations: it opens the drivers, sweeps what dead processes
// left, and finishes or undoes interrupted operations. It is quick if there is nothing to do. The
// caller must have acquired the app.
func (svc *Service) Recover(ctx context.Context, a *app.App) error {
	if a.Ready() {
		return nil
	}
	if err := svc.apps.Open(ctx, a); err != nil {
		return err
	}
	err := svc.sweepAndRecover(ctx, a)
	svc.checkpoints.NoteBehind(ctx, a)
	a.NoteRecoveryResult(err)
	return err
}

func (svc *Service) sweepAndRecover(ctx context.Context, a *app.App) error {
	all, err := svc.store.Operations(ctx)
	if err != nil {
		return err
	}
	var left []store.Operation
	for _, op := range all {
		if op.AppID == a.Rec().ID {
			left = append(left, op)
		}
	}
	if err := svc.sweep(ctx, a, left); err != nil {
		return err
	}
	for _, op := range left {
		if op.Kind == app.KindStart { // rise starts it: an app that cannot be started yet can be captured and rolled back
			a.NoteOwed()
			continue
		}
		word, err := svc.recoverOperation(ctx, a, op)
		if a.IsNewError(err) { // the same error may come back for hours
			svc.events.WriteAudit(ctx, a.Rec(), accounts.Self(), "recover", string(op.ID), "", err, map[string]string{"outcome": word})
		}
		if err != nil {
			return errs.Wrap(errs.Failed, "recover "+op.Kind, err)
		}
		svc.opt.Log.Info("recovered", "app", a.Rec().Slug, "operation", op.ID, "kind", op.Kind, "outcome", word)
		a.AddRecovery(word)
	}
	return nil
}

// sweep drops what disposals name, unless a checkpoint, an operation or an open turn refers to it. If the driver
// of a layer cannot sweep, that layer is held up; the other layers work.
func (svc *Service) sweep(ctx context.Context, a *app.App, left []store.Operation) error {
	a.AwaitRehearsal()
	all, err := svc.store.Disposals(ctx)
	if err != nil {
		return err
	}
	held, err := svc.checkpoints.HeldBy(ctx, a, left)
	if err != nil {
		return err
	}
	captured := svc.turns.Captured(a)
	gone := map[snap.Layer]*snap.Gone{}
	for _, l := range a.Layers() {
		gone[l.Name] = &snap.Gone{}
	}
	var done []store.Disposal
	for _, o := range all {
		layer := gone[o.Layer]
		switch {
		case o.AppID != a.Rec().ID, captured[o.ID]:
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
			continue // the app does not have this layer at present
		}
		done = append(done, o)
	}
	var drivers []snap.Driver
	for _, l := range a.Layers() {
		drivers = append(drivers, layer.SweepLayer(ctx, l.Driver, *gone[l.Name]))
	}
	if err := ctx.Err(); err != nil {
		return errs.Wrap(errs.Unavailable, "sweep", err)
	}
	a.SetDrivers(drivers)
	done = slices.DeleteFunc(done, func(o store.Disposal) bool { // disposals of a held-up layer stay
		return slices.ContainsFunc(a.Layers(), func(l layer.Layer) bool {
			_, held := l.Driver.(*layer.Held)
			return held && (o.Kind == store.DisposeRestore || o.Layer == l.Name)
		})
	})
	svc.store.WakeCollector()
	return svc.store.EndDisposals(ctx, done...)
}

// recoverOperation finishes or undoes an operation that a crash interrupted, and returns which of
// the two in a word.
func (svc *Service) recoverOperation(ctx context.Context, a *app.App, op store.Operation) (string, error) {
	recover, ok := svc.recoverers[op.Kind]
	if !ok {
		return "", errs.New(errs.Unsupported, "", "unknown operation %q", op.Kind).WithHint("a newer mulligan wrote it: use that one")
	}
	return recover(ctx, a, op)
}
