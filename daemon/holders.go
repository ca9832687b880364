package daemon

import (
	"context"
	"errors"
	"os/user"
	"strconv"
	"time"

	"mulligan/daemon/store"
	"mulligan/errs"
	"mulligan/ipc"
)

// Holders. A uid is given to another account now and then (usermod -u; userdel and
// useradd), and what the daemon keeps for the one is none of the other's. An app
// records both the uid of its owner and the name that this uid had. Whenever the
// two don't belong together, the app is there for root only, and nothing of it
// runs, until root says whose it is. The same holds while nobody can tell, since
// the service that knows the names doesn't answer.

// accountName is the name that a uid has now: its digits where it has no account.
func accountName(uid int) (string, error) {
	id := strconv.Itoa(uid)
	u, err := user.LookupId(id)
	var none user.UnknownUserIdError
	switch {
	case err == nil:
		return u.Username, nil
	case errors.As(err, &none):
		return id, nil
	}
	return "", errs.New(errs.Unavailable, "look up user", "the user database does not say whose uid %d is: %v", uid, err).
		WithHint("see that the host's user database answers (getent passwd %d), and try again", uid)
}

// stillHolds makes sure that uid still is whose it was when it was noted with that
// name. It is errs.Denied where the uid or the name has gone to another, and
// errs.Unavailable where it may come back by itself.
func stillHolds(name string, uid int) error {
	now, err := accountName(uid)
	if err != nil {
		return err
	}
	if now == name {
		return nil
	}
	if now != strconv.Itoa(uid) {
		return errs.New(errs.Denied, "", "owner %s had uid %d, and now %s has it", name, uid, now)
	}
	if acc, err := lookup(name); err == nil && acc.uid != uid {
		return errs.New(errs.Denied, "", "owner %s had uid %d, and now has uid %d", name, uid, acc.uid)
	}
	return errs.New(errs.Unavailable, "", "owner %s had uid %d, and now no account has it", name, uid)
}

// checkOwner makes sure that an app's owner is who it was when it was registered.
func (d *Daemon) checkOwner(rec store.App) error {
	if d.opt.User {
		return nil // all apps are the daemon's own user's
	}
	if _, guest := guestOf(rec); guest {
		if d.opt.Guests == nil {
			return nil // nobody comes as a guest, and nothing runs as one
		}
		acc, err := d.guestAccount()
		if err == nil && acc.uid != rec.OwnerUID {
			err = errs.New(errs.Denied, "", "guests' apps had uid %d, and now have uid %d", rec.OwnerUID, acc.uid).
				WithHint("set [guests] user in mulligand.toml back, or remove the app: mulligan app remove %s", rec.ID)
		}
		return err
	}
	err := stillHolds(rec.Owner, rec.OwnerUID)
	if e := (*errs.Error)(nil); errors.As(err, &e) && e.Hint == "" {
		e.Hint = "if the uid still belongs to the same person: mulligan app set --app " + string(rec.ID) + " owner=NAME, as root; " +
			"else give the uid back (usermod -u), or remove the app: mulligan app remove " + string(rec.ID)
	}
	return err
}

// sight returns what tells which apps the caller may know of. It may have to ask
// the host's user database: it must not be called with d.mu held.
func (d *Daemon) sight(who ipc.Caller) func(*app) bool {
	all := d.administers(who)
	name := ""
	if !all {
		name, _ = d.callerName(who) // "" owns nothing
	}
	return func(a *app) bool {
		rec := a.rec()
		if !who.MayTouch(rec.ID) {
			return false
		}
		return all || name != "" && rec.Owner == name && rec.OwnerUID == who.UID
	}
}

// callerName is how a caller is named as an app's owner.
func (d *Daemon) callerName(who ipc.Caller) (string, error) {
	switch {
	case who.Guest != "":
		return guestPrefix + who.Guest, nil
	case d.opt.User:
		return userName(who.UID), nil
	}
	return accountName(who.UID)
}

// checkCaller refuses a caller whose token, or page's session, was made for
// somebody who had the uid before.
func (d *Daemon) checkCaller(who ipc.Caller) error {
	if d.opt.User || who.Name == "" || stillHolds(who.Name, who.UID) == nil {
		return nil
	}
	return errs.New(errs.Unauthenticated, "serve", "the account that this was made for is no longer there").
		WithHint("make another token (mulligan token add), or open the page again (mulligan ui)")
}

// watchOwners looks every few seconds whether the apps' owners are who they were,
// until the daemon closes.
func (d *Daemon) watchOwners() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() { <-d.done; cancel() }()
	tick := time.NewTicker(d.opt.UpkeepEvery)
	defer tick.Stop()
	for {
		select {
		case <-d.done:
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
	a.mu.Lock()
	was := a.ownerless
	a.mu.Unlock()
	err := a.noteOwner(d.checkOwner(a.rec()))
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
	if !d.administers(who) || d.opt.User {
		return errs.New(errs.Denied, "", "only root, at the host's daemon, changes the owner of an app").WithHint("ask an administrator")
	}
	acc, err := lookup(name)
	if err != nil {
		return err
	}
	if _, guest := guestOf(a.rec()); guest || acc.uid != a.rec().OwnerUID {
		return errs.New(errs.Denied, "", "the app belongs to uid %d, but %.64s has uid %d", a.rec().OwnerUID, name, acc.uid).
			WithHint("remove it and register it anew: its checkpoints hold files of that uid")
	}
	if name, err = accountName(acc.uid); err != nil {
		return err
	}
	release, err := d.hold(ctx, a, "change app", who, false)
	if err != nil {
		return err
	}
	defer release()
	next := *a.now.Load()
	next.rec.Owner = name
	if other := d.named(name, next.rec.OwnerUID, next.rec.Slug); other != nil && other != a {
		return errs.New(errs.Conflict, "", "%s has another app %s", name, next.rec.Slug).WithHint("remove one of them")
	}
	if err := d.store.PutApp(ctx, next.rec); err != nil {
		return err
	}
	a.now.Store(&next)
	return nil
}
