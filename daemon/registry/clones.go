package registry

import (
	"context"
	"os"

	"mulligan/daemon/app"
	"mulligan/daemon/layer"
	"mulligan/daemon/records"
	"mulligan/daemon/store"
	"mulligan/errs"
	"mulligan/ipc"
)

// OpenClone registers an app that is to be made from a remote, in an empty folder. note is called with its record before anything of it
// lasts. Nothing starts the app or follows its files until CloneMade. If OpenClone fails, nothing is left of the app but what note did.
func (svc *Service) OpenClone(ctx context.Context, who ipc.Caller, spec ipc.App, note func(store.App) error) (*app.App, error) {
	rec, err := svc.admit(ctx, who, spec)
	if err != nil {
		return nil, err
	}
	switch old, err := svc.store.App(ctx, rec.ID); errs.KindOf(err) {
	case errs.NotFound:
	case "":
		return nil, errs.New(errs.Conflict, "", "%q was the workspace of %s, whose checkpoints are kept", rec.Workspace, old.Slug).
			WithHint("choose another folder")
	default:
		return nil, err
	}
	rec.ID = ipc.AppID(records.NewID("app-"))
	a := app.New(rec)
	if err := svc.apps.Claim(a); err != nil {
		return nil, err
	}
	defer a.Release()
	if err := svc.openClone(ctx, a, rec, note); err != nil {
		svc.apps.CloseDrivers(a)
		svc.apps.Unregister(a)
		return nil, errs.Also(err, os.RemoveAll(svc.binder.StateDir(rec.ID)))
	}
	return a, nil
}

func (svc *Service) openClone(ctx context.Context, a *app.App, rec store.App, note func(store.App) error) error {
	if err := note(rec); err != nil {
		return err
	}
	err := os.MkdirAll(svc.binder.StateDir(rec.ID), 0o700)
	if err == nil {
		_, err = svc.binder.ChooseModes(ctx, &rec, nil)
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
