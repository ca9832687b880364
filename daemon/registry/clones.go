package registry

import (
	"context"
	"os"

	"mulligan/daemon/app"
	"mulligan/daemon/layer"
	"mulligan/daemon/store"
	"mulligan/errs"
	"mulligan/ipc"
)

// OpenClone registers an app with this id that is to be made from a remote, in an empty folder. Nothing starts the app or follows its
// files until CloneMade. If OpenClone fails, the app is not registered, and its folder in the daemon's state may be left.
func (svc *Service) OpenClone(ctx context.Context, who ipc.Caller, id ipc.AppID, spec ipc.App) (*app.App, error) {
	rec, err := svc.admit(ctx, who, spec)
	if err != nil {
		return nil, err
	}
	switch old, err := svc.store.App(ctx, rec.ID); errs.KindOf(err) {
	case errs.NotFound:
	case "":
		return nil, errs.New(errs.Conflict, "", "%q was the workspace of %s, whose checkpoints are kept", rec.Workspace, old.Slug).WithHint("choose another folder")
	default:
		return nil, err
	}
	rec.ID = id
	a := app.New(rec)
	if err := svc.apps.Claim(a); err != nil {
		return nil, err
	}
	defer a.Release()
	if err := svc.openClone(ctx, a, rec); err != nil {
		svc.apps.CloseDrivers(a)
		svc.apps.Unregister(a)
		return nil, err
	}
	return a, nil
}

func (svc *Service) openClone(ctx context.Context, a *app.App, rec store.App) error {
	err := os.MkdirAll(svc.binder.StateDir(rec.ID), 0o700)
	if err == nil {
		_, err = svc.binder.ChooseModes(ctx, &rec, store.App{})
	}
	a.Now.Store(&layer.Setup{Rec: rec})
	if err == nil {
		err = svc.upkeep.Recover(ctx, a)
	}
	if err == nil {
		err = a.Now.Load().Unreached()
	}
	if err == nil {
		err = svc.store.PutApp(ctx, rec)
	}
	return err
}

// CloneMade has the files of an app that was made from a remote watched, if it asks for that.
func (svc *Service) CloneMade(ctx context.Context, a *app.App) { svc.turns.StartTracker(ctx, a) }
