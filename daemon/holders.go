package daemon

import (
	"context"
	"time"

	"mulligan/daemon/accounts"
	"mulligan/daemon/app"
	"mulligan/errs"
	"mulligan/ipc"
)

// watchOwners looks every few seconds whether the apps' owners are who they were,
// until the daemon closes.
func (d *Daemon) watchOwners(ctx context.Context) {
	tick := time.NewTicker(d.opt.UpkeepEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for _, a := range d.All() {
			d.watchOwner(ctx, a)
		}
	}
}

// watchOwner stops what the daemon supervises for an app whose owner's uid or name
// went to another, and starts it again where they belong together again.
func (d *Daemon) watchOwner(ctx context.Context, a *app.App) {
	was := a.OwnerTrouble()
	err := a.NoteOwner(d.CheckOwner(a.Rec()))
	if err != nil && was == nil {
		d.opt.Log.Error("an app's owner is not who it was", "app", a.Rec().Slug, "err", err)
	}
	switch {
	case err == nil && a.Asleep.Load():
		err = d.rouse(ctx, a)
	case errs.KindOf(err) == errs.Denied && !a.Asleep.Load() && len(a.Rec().Run) > 0 && a.HostPart() != nil:
		a.Asleep.Store(true)
		err = d.StopCommand(ctx, a)
	default:
		d.pursue(a)
		return
	}
	if err != nil && ctx.Err() == nil {
		d.opt.Log.Error("app could not be started or stopped", "app", a.Rec().Slug, "err", err)
	}
}

// rouse starts what was not started, or stopped, since the app's owner was not who it was.
func (d *Daemon) rouse(ctx context.Context, a *app.App) error {
	release, err := d.AcquireBrief(ctx, a, "start")
	if err != nil {
		return err
	}
	defer release()
	a.Asleep.Store(false)
	d.stopTracker(a)
	defer d.startTracker(ctx, a)
	return d.StartCommand(ctx, a, true)
}

// reown makes the app that of the account that has its uid now: root says that it
// is the same owner's. Another uid it can't become, since what its checkpoints
// hold belongs to the one that it has.
func (d *Daemon) reown(ctx context.Context, who ipc.Caller, a *app.App, name string) error {
	if !d.Administers(who) || d.opt.User {
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
	release, err := d.Hold(ctx, a, "change app", who, false)
	if err != nil {
		return err
	}
	defer release()
	next := *a.Setup()
	next.Rec.Owner = name
	if other := d.Named(name, next.Rec.OwnerUID, next.Rec.Slug); other != nil && other != a {
		return errs.New(errs.Conflict, "", "%s has another app %s", name, next.Rec.Slug).WithHint("remove one of them")
	}
	if err := d.store.PutApp(ctx, next.Rec); err != nil {
		return err
	}
	a.SetSetup(&next)
	return nil
}
