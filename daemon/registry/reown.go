package registry

import (
	"context"

	"mulligan/daemon/accounts"
	"mulligan/daemon/app"
	"mulligan/errs"
	"mulligan/ipc"
)

// reown gives the app to the account that now has its uid: root declares that the owner is the
// same. The uid cannot change, since the app's checkpoints hold files of that uid.
func (svc *Service) reown(ctx context.Context, who ipc.Caller, a *app.App, name string) error {
	if !svc.owners.Administers(who) || svc.opt.User {
		return errs.New(errs.Denied, "", "only root, at the host's daemon, changes the owner of an app").WithHint("ask an administrator")
	}
	acc, err := accounts.Lookup(name)
	if err != nil {
		return err
	}
	if _, guest := accounts.GuestOf(a.Rec()); guest || acc.UID != a.Rec().OwnerUID {
		return errs.New(errs.Denied, "", "the app belongs to uid %d, but %.64s has uid %d", a.Rec().OwnerUID, name, acc.UID).
			WithHint("remove it and register it anew: its checkpoints hold files of that uid")
	}
	if name, err = accounts.AccountName(acc.UID); err != nil {
		return err
	}
	release, err := svc.apps.Hold(ctx, a, "change app", who, app.Alone)
	if err != nil {
		return err
	}
	defer release()
	next := *a.Setup()
	next.Rec.Owner = name
	if other := svc.apps.Named(name, next.Rec.OwnerUID, next.Rec.Slug); other != nil && other != a {
		return errs.New(errs.Conflict, "", "%s has another app %s", name, next.Rec.Slug).WithHint("remove one of them")
	}
	if err := svc.store.PutApp(ctx, next.Rec); err != nil {
		return err
	}
	a.SetSetup(&next)
	return nil
}
