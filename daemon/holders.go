package daemon

import (
	"context"
	"time"

	"mulligan/daemon/accounts"
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
		for _, a := range d.all() {
			d.watchOwner(ctx, a)
		}
	}
}

// watchOwner stops what the daemon supervises for an app whose owner's uid or name
// went to another, and starts it again where they belong together again.
func (d *Daemon) watchOwner(ctx context.Context, a *app) {
	was := a.ownerTrouble()
	err := a.noteOwner(d.CheckOwner(a.rec()))
	if err != nil && was == nil {
		d.opt.Log.Error("an app's owner is not who it was", "app", a.rec().Slug, "err", err)
	}
	switch {
	case err == nil && a.asleep.Load():
		err = d.rouse(ctx, a)
	case errs.KindOf(err) == errs.Denied && !a.asleep.Load() && len(a.rec().Run) > 0 && a.hostPart() != nil:
		a.asleep.Store(true)
		err = d.stopCommand(ctx, a)
	default:
		d.pursue(a)
		return
	}
	if err != nil && ctx.Err() == nil {
		d.opt.Log.Error("app could not be started or stopped", "app", a.rec().Slug, "err", err)
	}
}

// rouse starts what was not started, or stopped, since the app's owner was not who it was.
func (d *Daemon) rouse(ctx context.Context, a *app) error {
	release, err := d.acquireBrief(ctx, a, "start")
	if err != nil {
		return err
	}
	defer release()
	a.asleep.Store(false)
	d.stopTracker(a)
	defer d.startTracker(ctx, a)
	return d.startCommand(ctx, a, true)
}

// reown makes the app that of the account that has its uid now: root says that it
// is the same owner's. Another uid it can't become, since what its checkpoints
// hold belongs to the one that it has.
func (d *Daemon) reown(ctx context.Context, who ipc.Caller, a *app, name string) error {
	if !d.Administers(who) || d.opt.User {
		return errs.New(errs.Denied, "", "only root, at the host's daemon, changes the owner of an app").WithHint("ask an administrator")
	}
	acc, err := accounts.Lookup(name)
	if err != nil {
		return err
	}
	if _, guest := accounts.GuestOf(a.rec()); guest || acc.UID != a.rec().OwnerUID {
		return errs.New(errs.Denied, "", "the app belongs to uid %d, but %.64s has uid %d", a.rec().OwnerUID, name, acc.UID).
			WithHint("remove it and register it anew: its checkpoints hold files of that uid")
	}
	if name, err = accounts.AccountName(acc.UID); err != nil {
		return err
	}
	release, err := d.hold(ctx, a, "change app", who, false)
	if err != nil {
		return err
	}
	defer release()
	next := *a.setup()
	next.Rec.Owner = name
	if other := d.named(name, next.Rec.OwnerUID, next.Rec.Slug); other != nil && other != a {
		return errs.New(errs.Conflict, "", "%s has another app %s", name, next.Rec.Slug).WithHint("remove one of them")
	}
	if err := d.store.PutApp(ctx, next.Rec); err != nil {
		return err
	}
	a.setSetup(&next)
	return nil
}
