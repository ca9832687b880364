package registry

import (
	"cmp"
	"context"
	"io"
	"os"
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
func (d *Service) Apps(ctx context.Context, who ipc.Caller) []ipc.App {
	sees := d.apps.Sight(who)
	views := []ipc.App{}
	for _, a := range d.apps.All() {
		if sees(a) {
			views = append(views, a.View(ctx))
		}
	}
	slices.SortFunc(views, func(x, y ipc.App) int {
		return cmp.Or(strings.Compare(x.Slug, y.Slug), strings.Compare(x.Owner, y.Owner))
	})
	return views
}

// App gives one.
func (d *Service) App(ctx context.Context, who ipc.Caller, ref string) (ipc.App, error) {
	a, err := d.apps.Find(who, ref)
	if err != nil {
		return ipc.App{}, err
	}
	return a.View(ctx), nil
}

// AppWithGaps gives one, with what of it cannot be captured or could not be given back.
func (d *Service) AppWithGaps(ctx context.Context, who ipc.Caller, ref string) (ipc.App, error) {
	a, err := d.apps.Find(who, ref)
	if err != nil {
		return ipc.App{}, err
	}
	v := a.View(ctx)
	v.Gaps = a.Gaps(ctx)
	return v, nil
}

// AddApp registers an app. A workspace whose app was removed before gets that
// app's id and checkpoints back.
func (d *Service) AddApp(ctx context.Context, who ipc.Caller, spec ipc.App) (ipc.App, error) {
	const op = "register app"
	if who.Grant != nil && len(who.Grant.Apps) > 0 {
		return ipc.App{}, errs.New(errs.Denied, op, "this token is for some apps only").WithHint("use one without --app")
	}
	rec, err := d.admit(ctx, who, spec)
	if err != nil {
		return ipc.App{}, errs.Wrap(errs.Invalid, op, err)
	}
	a := app.New(rec)
	if err := d.apps.Claim(a); err != nil {
		return ipc.App{}, errs.Wrap(errs.Failed, op, err)
	}
	notes, err := d.bringUp(ctx, a)
	if err != nil {
		d.apps.Disown(a)
		a.LetGo()
		return ipc.App{}, errs.Wrap(errs.Failed, op, err)
	}
	d.events.WriteAudit(ctx, a.Rec(), who, "register", a.Rec().Slug, "", nil, app.WithoutSecrets(a.Rec().App))
	v := noted(a.View(ctx), notes)
	v.Gaps = a.Gaps(ctx)
	return v, nil
}

// bringUp opens a new app's drivers, records it, and starts what the daemon
// supervises. The notes say what that changed elsewhere.
func (d *Service) bringUp(ctx context.Context, a *app.App) (notes []string, err error) {
	rec := a.Rec()
	if err := os.MkdirAll(d.binder.StateDir(rec.ID), 0o700); err != nil {
		return nil, err
	}
	notes, err = d.binder.ChooseModes(ctx, &rec, nil)
	a.Now.Store(&layer.Setup{Rec: rec})
	if err == nil {
		err = d.upkeep.Settle(ctx, a)
	}
	if err == nil {
		err = a.Now.Load().Unreached()
	}
	if err == nil { // before the command runs, which nobody would know of after a crash
		err = d.store.PutApp(ctx, rec)
	}
	if err == nil && len(rec.Run) > 0 {
		if err = a.HostPart().Start(ctx); err != nil {
			err = errs.Also(err, d.unrecord(context.WithoutCancel(ctx), a))
		}
	}
	if err != nil {
		_, e := d.binder.Release(ctx, a.Now.Load(), rec, nil)
		d.apps.CloseDrivers(a)
		return nil, errs.Also(err, e)
	}
	a.LetGo()
	d.turns.StartTracker(ctx, a)
	turns.TrackerOf(a).Await(ctx)
	return notes, nil
}

// unrecord takes back the record of an app that did not come up. It is kept only where
// the app has checkpoints, from before it was removed: a removed app counts for its owner.
func (d *Service) unrecord(ctx context.Context, a *app.App) error {
	id := a.Rec().ID
	cps, err := d.store.Checkpoints(ctx, id)
	if err != nil || len(cps) > 0 {
		return errs.Also(err, d.store.RemoveApp(ctx, id, d.opt.Now()))
	}
	entry := d.events.Entry(a.Rec(), accounts.Self(), "purge", a.Rec().Slug, "its registration failed", nil, nil)
	if err := d.store.PurgeApp(ctx, id, &entry); err != nil {
		return err
	}
	d.store.WasDisposed(store.Disposal{Kind: store.DisposeApp, ID: string(id), AppID: id})
	return nil
}

// noted is an app with what changing it changed elsewhere.
func noted(v ipc.App, notes []string) ipc.App {
	v.Notes = notes
	return v
}

// SetApp changes an app's registration.
func (d *Service) SetApp(ctx context.Context, who ipc.Caller, ref string, ch ipc.AppChange) (ipc.App, error) {
	const op = "change app"
	a, err := d.apps.Find(who, ref)
	if err != nil {
		return ipc.App{}, err
	}
	if ch.Owner != nil {
		if err := d.reown(ctx, who, a, *ch.Owner); err != nil {
			return ipc.App{}, errs.Wrap(errs.Invalid, op, err)
		}
		d.upkeep.WatchOwner(ctx, a)
	}
	release, err := d.apps.Acquire(ctx, a, op, who)
	if err != nil {
		return ipc.App{}, err
	}
	rec := a.Rec()
	apply(&rec.App, ch)
	notes, err := d.change(ctx, who, a, rec)
	if err == nil {
		d.events.WriteAudit(ctx, a.Rec(), who, "set", rec.Slug, "", nil, app.WithoutSecrets(a.Rec().App))
	}
	release()
	if err != nil {
		return ipc.App{}, errs.Wrap(errs.Invalid, op, err)
	}
	turns.TrackerOf(a).Await(ctx)
	return noted(a.View(ctx), notes), nil
}

func apply(spec *ipc.App, ch ipc.AppChange) {
	set(&spec.Unit, ch.Unit)
	set(&spec.Run, ch.Run)
	set(&spec.Domain, ch.Domain)
	set(&spec.URI, ch.URI)
	set(&spec.Shutdown, ch.Shutdown)
	set(&spec.Auto, ch.Auto)
	set(&spec.Exclude, ch.Exclude)
	set(&spec.Retention, ch.Retention)
	if ch.Databases != nil {
		spec.Databases = app.WithSecrets(*ch.Databases, spec.Databases)
	}
	if ch.Health != nil {
		spec.Health = ch.Health
		if ch.Health.URL == "" && len(ch.Health.Command) == 0 {
			spec.Health = nil // an empty one takes it away
		}
	}
}

func set[T any](field *T, to *T) {
	if to != nil {
		*field = *to
	}
}

// change checks a new record of an app and puts it into force. The notes say what
// that changed elsewhere.
func (d *Service) change(ctx context.Context, who ipc.Caller, a *app.App, rec store.App) (notes []string, err error) {
	if err := appfile.Validate(rec.App); err != nil {
		return nil, err
	}
	if rec.Unit != a.Rec().Unit {
		if err := d.checkUnit(ctx, who, &rec.App); err != nil {
			return nil, err
		}
	}
	if rec.Domain != a.Rec().Domain || rec.URI != a.Rec().URI {
		if err := d.checkDomain(who, rec.ID, rec.App); err != nil {
			return nil, err
		}
	}
	if err := d.checkParts(ctx, who, rec.App, a.Rec().App); err != nil {
		return nil, err
	}
	rec.ByRoot = d.namedByRoot(who, rec, a.Rec())
	old := a.Rec()
	notes, err = d.binder.ChooseModes(ctx, &rec, old.Databases)
	if err == nil {
		var more []string
		more, err = d.binder.Release(ctx, a.Now.Load(), old, rec.Databases)
		notes = append(notes, more...)
	}
	if err == nil {
		err = d.enforce(ctx, a, rec)
	}
	if err != nil {
		_, e := d.binder.Release(ctx, a.Now.Load(), rec, old.Databases)
		return nil, errs.Also(err, e)
	}
	return notes, nil
}

// enforce puts a checked record of an app into force.
func (d *Service) enforce(ctx context.Context, a *app.App, rec store.App) error {
	d.turns.StopTracker(a)
	rerun := !slices.Equal(rec.Run, a.Rec().Run)
	if rerun && len(a.Rec().Run) > 0 {
		if err := d.apps.StopCommand(ctx, a); err != nil {
			return err
		}
	}
	d.apps.CloseDrivers(a)
	next, err := d.binder.SetUp(ctx, rec)
	if err == nil && (rec.Domain != a.Rec().Domain || rec.URI != a.Rec().URI) {
		if err = next.Unreached(); err != nil {
			err = errs.Also(err, next.Close())
		}
	}
	if err == nil {
		err = d.store.PutApp(ctx, rec)
	}
	if err != nil { // opening the new one has taken a supervised command over
		err = errs.Also(err, d.apps.Open(ctx, a))
		d.turns.StartTracker(ctx, a)
		return errs.Also(err, d.apps.StartCommand(ctx, a, rerun))
	}
	next.Adopt(a.Now.Load())
	next.KeepHeld(a.Now.Load())
	a.Now.Store(next)
	d.turns.StartTracker(ctx, a)
	return d.apps.StartCommand(ctx, a, rerun)
}

// RemoveApp unregisters an app. Its checkpoints stay, and come back when the
// workspace is registered again, unless purge is set. The workspace itself is
// never touched.
func (d *Service) RemoveApp(ctx context.Context, who ipc.Caller, ref string, purge bool) error {
	const op = "remove app"
	a, err := d.apps.Find(who, ref)
	if err != nil {
		return err
	}
	ctx = context.WithoutCancel(ctx)
	if f := a.Rec().Fork; f != nil {
		return errs.New(errs.Conflict, op, "%s is a fork", a.Rec().Slug).WithHint("mulligan drop %s removes it", f.Name)
	}
	if forks := d.forksOf(a.Rec().ID); len(forks) > 0 {
		return errs.New(errs.Conflict, op, "%s has forks: %s", a.Rec().Slug, strings.Join(forks, ", ")).WithHint("drop them first: mulligan drop --all")
	}
	release, err := d.apps.Acquire(ctx, a, op, who)
	if err != nil && a.NoteOwner(d.owners.CheckOwner(a.Rec())) != nil && (!purge || a.Rec().Domain == "") {
		release, err = d.apps.Hold(ctx, a, op, who, false) // nobody has to own it for that
	}
	if err != nil {
		return err
	}
	defer release()
	return errs.Wrap(errs.Failed, op, d.remove(ctx, who, a, purge))
}

func (d *Service) remove(ctx context.Context, who ipc.Caller, a *app.App, purge bool) error {
	if purge {
		if err := d.binder.FoldDisks(ctx, a.Now.Load(), true); err != nil {
			return err
		}
	}
	if _, err := d.binder.Release(ctx, a.Now.Load(), a.Rec(), nil); err != nil {
		return err
	}
	d.turns.StopTracker(a)
	if len(a.Rec().Run) > 0 && a.HostPart() != nil {
		if err := d.apps.StopCommand(ctx, a); err != nil {
			return err
		}
		if c, ok := a.HostPart().(io.Closer); ok {
			defer c.Close()
		}
	}
	if !purge {
		if err := d.store.RemoveApp(ctx, a.Rec().ID, d.opt.Now()); err != nil {
			return err
		}
		d.apps.Disown(a)
		d.events.WriteAudit(ctx, a.Rec(), who, "remove", a.Rec().Slug, "", nil, nil)
		d.apps.CloseDrivers(a)
		return nil
	}
	cps, err := d.store.Checkpoints(ctx, a.Rec().ID)
	if err != nil {
		return err
	}
	entry := d.events.Entry(a.Rec(), who, "purge", a.Rec().Slug, "", nil, nil)
	if err := d.store.PurgeApp(ctx, a.Rec().ID, &entry); err != nil {
		return err
	}
	d.events.Operations.WithLabelValues(entry.Action, events.ResultOf(nil)).Inc()
	d.apps.Disown(a)
	d.store.WasDisposed(store.Disposal{Kind: store.DisposeApp, ID: string(a.Rec().ID), AppID: a.Rec().ID})
	for _, cp := range cps {
		d.store.WasDisposed(store.Disposal{Kind: store.DisposeCheckpoint, ID: string(cp.ID), AppID: a.Rec().ID})
		if err := d.checkpoints.Drop(ctx, a, cp.Snapshots); err != nil {
			return err
		}
	}
	folded := d.binder.FoldDisks(ctx, a.Now.Load(), false)
	d.apps.CloseDrivers(a)
	if err := d.binder.PurgeStores(a.Rec().ID); err != nil {
		return err
	}
	err = os.RemoveAll(d.binder.StateDir(a.Rec().ID))
	if folded != nil {
		err = errs.Also(errs.Wrap(errs.Failed, "the app is removed, and its domain's disks stay a chain of images", folded), err)
	}
	return err
}
