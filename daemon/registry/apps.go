package registry

import (
	"cmp"
	"context"
	"io"
	"os"
	"reflect"
	"slices"
	"strings"

	"mulligan/appfile"
	"mulligan/daemon/accounts"
	"mulligan/daemon/app"
	"mulligan/daemon/events"
	"mulligan/daemon/layer"
	"mulligan/daemon/store"
	"mulligan/daemon/turns"
	"mulligan/errs"
	"mulligan/ipc"
)

// Apps lists the apps that the caller may see, by slug.
func (svc *Service) Apps(ctx context.Context, who ipc.Caller) []ipc.App {
	sees := svc.apps.VisibleTo(who)
	views := []ipc.App{}
	for _, a := range svc.apps.All() {
		if sees(a) {
			views = append(views, a.View(ctx))
		}
	}
	slices.SortFunc(views, func(x, y ipc.App) int {
		return cmp.Or(strings.Compare(x.Slug, y.Slug), strings.Compare(x.Owner, y.Owner))
	})
	return views
}

// App returns an app.
func (svc *Service) App(ctx context.Context, who ipc.Caller, ref string) (ipc.App, error) {
	a, err := svc.apps.Find(who, ref)
	if err != nil {
		return ipc.App{}, err
	}
	return a.View(ctx), nil
}

// AppWithGaps returns an app with its gaps: what cannot be captured or restored.
func (svc *Service) AppWithGaps(ctx context.Context, who ipc.Caller, ref string) (ipc.App, error) {
	a, err := svc.apps.Find(who, ref)
	if err != nil {
		return ipc.App{}, err
	}
	v := a.View(ctx)
	v.Gaps = a.Gaps(ctx)
	return v, nil
}

// AddApp registers an app. If the app of this workspace was removed before, the new registration gets its id and its
// checkpoints.
func (svc *Service) AddApp(ctx context.Context, who ipc.Caller, spec ipc.App) (ipc.App, error) {
	const op = "register app"
	if who.Grant != nil && len(who.Grant.Apps) > 0 {
		return ipc.App{}, errs.New(errs.Denied, op, "this token is for some apps only").WithHint("use a token that was made without --app")
	}
	rec, err := svc.admit(ctx, who, spec)
	if err != nil {
		return ipc.App{}, errs.Wrap(errs.Invalid, op, err)
	}
	a := app.New(rec)
	if err := svc.apps.Claim(a); err != nil {
		return ipc.App{}, errs.Wrap(errs.Failed, op, err)
	}
	notes, err := svc.bringUp(context.WithoutCancel(ctx), a) // a client that leaves does not stop a registration
	if err != nil {
		svc.apps.Unregister(a)
		a.Release()
		return ipc.App{}, errs.Wrap(errs.Failed, op, err)
	}
	svc.events.WriteAudit(ctx, a.Rec(), who, "register", a.Rec().Slug, "", nil, app.WithoutSecrets(a.Rec().App))
	v := noted(a.View(ctx), notes)
	v.Gaps = a.Gaps(ctx)
	return v, nil
}

// bringUp opens the drivers of a new app, records it, and starts its command if the daemon supervises it. The notes describe
// changes outside of mulligan.
func (svc *Service) bringUp(ctx context.Context, a *app.App) (notes []string, err error) {
	rec := a.Rec()
	if err := os.MkdirAll(svc.binder.StateDir(rec.ID), 0o700); err != nil {
		return nil, err
	}
	notes, err = svc.binder.ChooseModes(ctx, &rec, store.App{})
	a.Now.Store(&layer.Setup{Rec: rec})
	if err == nil {
		err = svc.upkeep.Recover(ctx, a)
	}
	if err == nil {
		err = a.Now.Load().Unreached()
	}
	if err == nil { // before the command is started, because after a crash an unrecorded command would be lost
		err = svc.store.PutApp(ctx, rec)
	}
	if err == nil && len(rec.Run) > 0 {
		if err = a.HostPart().Start(ctx); err != nil {
			err = errs.Also(err, svc.unrecord(ctx, a))
		}
	}
	if err != nil {
		_, e := svc.binder.Release(ctx, a.Now.Load(), rec, nil)
		svc.apps.CloseDrivers(a)
		return nil, errs.Also(err, e)
	}
	a.Release()
	svc.turns.StartTracker(ctx, a)
	turns.TrackerOf(a).Await(ctx)
	return notes, nil
}

// unrecord undoes the record of an app whose registration failed. It keeps the record of a removed app if that has checkpoints
// from before.
func (svc *Service) unrecord(ctx context.Context, a *app.App) error {
	id := a.Rec().ID
	cps, err := svc.store.Checkpoints(ctx, id)
	if err != nil || len(cps) > 0 {
		return errs.Also(err, svc.store.RemoveApp(ctx, id, svc.opt.Now()))
	}
	entry := svc.events.Entry(a.Rec(), accounts.Self(), "purge", a.Rec().Slug, "its registration failed", nil, nil)
	if err := svc.store.PurgeApp(ctx, id, &entry); err != nil {
		return err
	}
	svc.store.WasDisposed(store.Disposal{Kind: store.DisposeApp, ID: string(id), AppID: id})
	return nil
}

// noted returns an app with notes of changes outside of mulligan.
func noted(v ipc.App, notes []string) ipc.App {
	v.Notes = notes
	return v
}

// SetApp changes an app's registration.
func (svc *Service) SetApp(ctx context.Context, who ipc.Caller, ref string, ch ipc.AppChange) (ipc.App, error) {
	const op = "change app"
	a, err := svc.apps.Find(who, ref)
	if err != nil {
		return ipc.App{}, err
	}
	if ch.Owner != nil {
		if err := svc.reown(ctx, who, a, *ch.Owner); err != nil {
			return ipc.App{}, errs.Wrap(errs.Invalid, op, err)
		}
		svc.upkeep.WatchOwner(ctx, a)
	}
	release, err := svc.apps.Acquire(ctx, a, op, who)
	if err != nil {
		return ipc.App{}, err
	}
	rec := a.Rec()
	apply(&rec.App, ch)
	notes, err := svc.change(ctx, who, a, rec)
	if err == nil {
		svc.events.WriteAudit(ctx, a.Rec(), who, "set", rec.Slug, "", nil, app.WithoutSecrets(a.Rec().App))
	}
	release()
	if err != nil {
		return ipc.App{}, errs.Wrap(errs.Invalid, op, err)
	}
	turns.TrackerOf(a).Await(ctx)
	return noted(a.View(ctx), notes), nil
}

func apply(spec *ipc.App, ch ipc.AppChange) {
	was := *spec
	set(&spec.Unit, ch.Unit)
	set(&spec.Run, ch.Run)
	set(&spec.Engine, ch.Engine)
	set(&spec.Volumes, ch.Volumes)
	if ch.Unit != nil || ch.Engine != nil || ch.Volumes != nil {
		spec.Containers = nil // those that are there now are accepted
	}
	if spec.Unit != was.Unit && ch.Engine == nil {
		spec.Engine = "" // the one that has the new unit
	}
	set(&spec.Domain, ch.Domain)
	set(&spec.URI, ch.URI)
	set(&spec.Shutdown, ch.Shutdown)
	set(&spec.Auto, ch.Auto)
	if ch.Follow != nil {
		spec.Follow = ch.Follow
	}
	if ch.Titles != nil {
		spec.Titles = ch.Titles
	}
	set(&spec.Exclude, ch.Exclude)
	set(&spec.Retention, ch.Retention)
	set(&spec.Forking, ch.Forking)
	set(&spec.Remoting, ch.Remoting)
	if ch.Databases != nil {
		spec.Databases = app.WithSecrets(*ch.Databases, spec.Databases)
	}
	if ch.Health != nil {
		spec.Health = ch.Health
		if ch.Health.URL == "" && len(ch.Health.Command) == 0 {
			spec.Health = nil // an empty one removes the health check
		}
	}
}

func set[T any](field *T, to *T) {
	if to != nil {
		*field = *to
	}
}

// change checks a new record of an app and applies it. The notes describe changes outside of mulligan.
func (svc *Service) change(ctx context.Context, who ipc.Caller, a *app.App, rec store.App) (notes []string, err error) {
	if err := checkForkChange(a.Rec(), rec); err != nil {
		return nil, err
	}
	if err := appfile.Validate(rec.App); err != nil {
		return nil, err
	}
	if rec.Unit != a.Rec().Unit || containersChange(a.Rec().App, rec.App) {
		if err := svc.checkUnit(ctx, who, &rec); err != nil {
			return nil, err
		}
	}
	if rec.Domain != a.Rec().Domain || rec.URI != a.Rec().URI {
		if err := svc.checkDomain(who, rec.ID, rec.App); err != nil {
			return nil, err
		}
	}
	if err := svc.checkParts(ctx, who, rec.App, a.Rec().App); err != nil {
		return nil, err
	}
	rec.ByRoot = svc.namedByRoot(who, rec, a.Rec())
	ctx = context.WithoutCancel(ctx) // a client that left must not keep a stopped app from being started again
	old := a.Rec()
	notes, err = svc.binder.ChooseModes(ctx, &rec, old)
	if err == nil {
		var more []string
		more, err = svc.binder.Release(ctx, a.Now.Load(), old, rec.Databases)
		notes = append(notes, more...)
	}
	if err == nil {
		err = svc.enforce(ctx, a, rec)
	}
	if err != nil {
		_, e := svc.binder.Release(ctx, a.Now.Load(), rec, old.Databases)
		return nil, errs.Also(err, e)
	}
	return notes, nil
}

// checkForkChange refuses other databases, and another unit or domain, for a fork. Those that it has were made for it and are removed with it, as its record
// names them; and keep would find no place in the app for what is only in the fork.
func checkForkChange(old, rec store.App) error {
	same := func(x, y ipc.Database) bool {
		x.Env, y.Env = "", ""
		return layer.AsAsked(x) == layer.AsAsked(y)
	}
	what := ""
	switch {
	case old.Fork == nil:
	case !slices.EqualFunc(rec.Databases, old.Databases, same):
		what = "databases"
	case rec.Unit != old.Unit:
		what = "unit"
	case rec.Engine != old.Engine || !reflect.DeepEqual(rec.Volumes, old.Volumes):
		what = "containers"
	case rec.Domain != old.Domain || rec.URI != old.URI:
		what = "domain"
	}
	if what == "" {
		return nil
	}
	return errs.New(errs.Conflict, "", "%s is a fork, and the %s of a fork cannot be changed", old.Slug, what).
		WithHint("change the app itself, before a fork is made of it or after one was kept")
}

// enforce applies a checked record of an app. If it cannot be recorded, the app goes on as it was.
func (svc *Service) enforce(ctx context.Context, a *app.App, rec store.App) error {
	svc.turns.StopTracker(a)
	rerun := !slices.Equal(rec.Run, a.Rec().Run)
	if rerun && len(a.Rec().Run) > 0 {
		if err := svc.apps.StopCommand(ctx, a); err != nil {
			return errs.Also(err, resume(ctx, svc, a, true))
		}
	}
	svc.apps.CloseDrivers(a)
	next, err := svc.binder.SetUp(ctx, rec)
	if err == nil && (rec.Domain != a.Rec().Domain || rec.URI != a.Rec().URI) {
		if err = next.Unreached(); err != nil {
			err = errs.Also(err, next.Close())
		}
	}
	if err == nil {
		err = svc.store.PutApp(ctx, rec)
	}
	if err != nil {
		return errs.Also(err, resume(ctx, svc, a, rerun))
	}
	next.Adopt(a.Now.Load())
	next.KeepHeld(a.Now.Load())
	a.Now.Store(next)
	svc.turns.StartTracker(ctx, a)
	return svc.apps.StartCommand(ctx, a, rerun)
}

// resume has an app go on as it was after a change of it failed. A command that cannot be started yet is tried again.
func resume(ctx context.Context, svc *Service, a *app.App, rerun bool) error {
	err := svc.apps.Open(ctx, a) // opening another setup has taken over a supervised command
	svc.turns.StartTracker(ctx, a)
	failed := svc.apps.StartCommand(ctx, a, rerun)
	if failed != nil {
		a.NoteDown(true)
	}
	return errs.Also(err, failed)
}

// RemoveApp removes the registration of an app. Unless purge is set, its checkpoints stay, and are available again when the
// workspace is registered again. The workspace itself is not changed.
func (svc *Service) RemoveApp(ctx context.Context, who ipc.Caller, ref string, purge bool) error {
	const op = "remove app"
	a, err := svc.apps.Find(who, ref)
	if err != nil {
		return err
	}
	ctx = context.WithoutCancel(ctx)
	if f := a.Rec().Fork; f != nil {
		return errs.New(errs.Conflict, op, "%s is a fork", a.Rec().Slug).WithHint("`mulligan drop %s` removes it", f.Name)
	}
	if forks := svc.forksOf(a.Rec().ID); len(forks) > 0 {
		return errs.New(errs.Conflict, op, "%s has forks: %s", a.Rec().Slug, strings.Join(forks, ", ")).WithHint("drop them first: `mulligan drop --all`")
	}
	release, err := svc.apps.Acquire(ctx, a, op, who)
	if err != nil && a.NoteOwner(svc.owners.CheckOwner(a.Rec())) != nil && (!purge || a.Rec().Domain == "") {
		release, err = svc.apps.Hold(ctx, a, op, who, app.Alone) // this needs no owner of the workspace
	}
	if err != nil {
		return err
	}
	defer release()
	return errs.Wrap(errs.Failed, op, svc.remove(ctx, who, a, purge))
}

func (svc *Service) remove(ctx context.Context, who ipc.Caller, a *app.App, purge bool) (err error) {
	svc.store.GiveToDelete()
	if purge {
		if err := svc.binder.FoldDisks(ctx, a.Now.Load(), true); err != nil {
			return err
		}
	}
	if _, err := svc.binder.Release(ctx, a.Now.Load(), a.Rec(), nil); err != nil {
		return err
	}
	svc.turns.StopTracker(a)
	defer func() {
		if err != nil && a.Rec().Fork == nil && a.OwnerTrouble() == nil && svc.apps.Registered(a) {
			err = errs.Also(err, resume(ctx, svc, a, true))
		}
	}()
	if len(a.Rec().Run) > 0 && a.HostPart() != nil {
		if err := svc.apps.StopCommand(ctx, a); err != nil {
			return err
		}
		if c, ok := a.HostPart().(io.Closer); ok {
			defer c.Close()
		}
	}
	end := svc.binder.StopServers
	if purge {
		end = svc.binder.DropServers
	}
	if err := end(ctx, a.Rec()); err != nil {
		return err
	}
	if !purge {
		if err := svc.store.RemoveApp(ctx, a.Rec().ID, svc.opt.Now()); err != nil {
			return err
		}
		svc.apps.Unregister(a)
		svc.events.WriteAudit(ctx, a.Rec(), who, "remove", a.Rec().Slug, "", nil, nil)
		svc.apps.CloseDrivers(a)
		return nil
	}
	cps, err := svc.store.Checkpoints(ctx, a.Rec().ID)
	if err != nil {
		return err
	}
	entry := svc.events.Entry(a.Rec(), who, "purge", a.Rec().Slug, "", nil, nil)
	if err := svc.store.PurgeApp(ctx, a.Rec().ID, &entry); err != nil {
		return err
	}
	svc.events.Operations.WithLabelValues(entry.Action, events.ResultOf(nil)).Inc()
	svc.apps.Unregister(a)
	if svc.Purged != nil {
		svc.Purged(a.Rec().ID)
	}
	for _, cp := range cps {
		err = errs.Also(err, svc.checkpoints.Drop(ctx, a, cp.Snapshots))
	}
	folded := svc.binder.FoldDisks(ctx, a.Now.Load(), false)
	svc.apps.CloseDrivers(a)
	if err == nil {
		err = svc.opt.Failpoint.At("clear purged app")
	}
	if err == nil {
		err = svc.store.PurgeContents(a.Rec())
	}
	if err == nil {
		err = svc.binder.PurgeStores(a.Rec().ID)
	}
	if err == nil {
		err = layer.RemoveState(svc.binder.StateDir(a.Rec().ID))
	}
	if err == nil {
		err = svc.store.EndPurge(ctx, a.Rec().ID, true)
	}
	if err != nil {
		svc.store.PurgeLater(a.Rec().ID)
		err = errs.Wrap(errs.Failed, "the app is removed, and what could not be removed of its data will be tried again", err)
	}
	if folded != nil {
		err = errs.Also(errs.Wrap(errs.Failed, "the app is removed, and its domain's disks stay a chain of images", folded), err)
	}
	return err
}
