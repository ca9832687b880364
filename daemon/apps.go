package daemon

import (
	"cmp"
	"context"
	"io"
	"os"
	"slices"
	"strings"

	"mulligan/appfile"
	"mulligan/daemon/accounts"
	"mulligan/daemon/events"
	"mulligan/daemon/layer"
	"mulligan/daemon/store"
	"mulligan/errs"
	"mulligan/ipc"
)

// Apps lists the apps that the caller may see, by slug.
func (d *Daemon) Apps(ctx context.Context, who ipc.Caller) []ipc.App {
	sees := d.sight(who)
	views := []ipc.App{}
	for _, a := range d.all() {
		if sees(a) {
			views = append(views, a.view(ctx))
		}
	}
	slices.SortFunc(views, func(x, y ipc.App) int {
		return cmp.Or(strings.Compare(x.Slug, y.Slug), strings.Compare(x.Owner, y.Owner))
	})
	return views
}

// App gives one.
func (d *Daemon) App(ctx context.Context, who ipc.Caller, ref string) (ipc.App, error) {
	a, err := d.find(who, ref)
	if err != nil {
		return ipc.App{}, err
	}
	return a.view(ctx), nil
}

// AppWithGaps gives one, with what of it cannot be captured or could not be given back.
func (d *Daemon) AppWithGaps(ctx context.Context, who ipc.Caller, ref string) (ipc.App, error) {
	a, err := d.find(who, ref)
	if err != nil {
		return ipc.App{}, err
	}
	v := a.view(ctx)
	v.Gaps = a.gaps(ctx)
	return v, nil
}

// AddApp registers an app. A workspace whose app was removed before gets that
// app's id and checkpoints back.
func (d *Daemon) AddApp(ctx context.Context, who ipc.Caller, spec ipc.App) (ipc.App, error) {
	const op = "register app"
	if who.Grant != nil && len(who.Grant.Apps) > 0 {
		return ipc.App{}, errs.New(errs.Denied, op, "this token is for some apps only").WithHint("use one without --app")
	}
	rec, err := d.admit(ctx, who, spec)
	if err != nil {
		return ipc.App{}, errs.Wrap(errs.Invalid, op, err)
	}
	a := newApp(rec)
	if err := d.claim(a); err != nil {
		return ipc.App{}, errs.Wrap(errs.Failed, op, err)
	}
	notes, err := d.bringUp(ctx, a)
	if err != nil {
		d.disown(a)
		a.letGo()
		return ipc.App{}, errs.Wrap(errs.Failed, op, err)
	}
	d.WriteAudit(ctx, a.rec(), who, "register", a.rec().Slug, "", nil, withoutSecrets(a.rec().App))
	v := noted(a.view(ctx), notes)
	v.Gaps = a.gaps(ctx)
	return v, nil
}

// bringUp opens a new app's drivers, records it, and starts what the daemon
// supervises. The notes say what that changed elsewhere.
func (d *Daemon) bringUp(ctx context.Context, a *app) (notes []string, err error) {
	rec := a.rec()
	if err := os.MkdirAll(d.StateDir(rec.ID), 0o700); err != nil {
		return nil, err
	}
	notes, err = d.ChooseModes(ctx, &rec, nil)
	a.now.Store(&layer.Setup{Rec: rec})
	if err == nil {
		err = d.settle(ctx, a)
	}
	if err == nil {
		err = a.now.Load().Unreached()
	}
	if err == nil { // before the command runs, which nobody would know of after a crash
		err = d.store.PutApp(ctx, rec)
	}
	if err == nil && len(rec.Run) > 0 {
		if err = a.hostPart().Start(ctx); err != nil {
			err = errs.Also(err, d.unrecord(context.WithoutCancel(ctx), a))
		}
	}
	if err != nil {
		_, e := d.Release(ctx, a.now.Load(), rec, nil)
		d.closeDrivers(a)
		return nil, errs.Also(err, e)
	}
	a.letGo()
	d.startTracker(ctx, a)
	trackerOf(a).await(ctx)
	return notes, nil
}

// unrecord takes back the record of an app that did not come up. It is kept only where
// the app has checkpoints, from before it was removed: a removed app counts for its owner.
func (d *Daemon) unrecord(ctx context.Context, a *app) error {
	id := a.rec().ID
	cps, err := d.store.Checkpoints(ctx, id)
	if err != nil || len(cps) > 0 {
		return errs.Also(err, d.store.RemoveApp(ctx, id, d.opt.Now()))
	}
	entry := d.Entry(a.rec(), accounts.Self(), "purge", a.rec().Slug, "its registration failed", nil, nil)
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
func (d *Daemon) SetApp(ctx context.Context, who ipc.Caller, ref string, ch ipc.AppChange) (ipc.App, error) {
	const op = "change app"
	a, err := d.find(who, ref)
	if err != nil {
		return ipc.App{}, err
	}
	if ch.Owner != nil {
		if err := d.reown(ctx, who, a, *ch.Owner); err != nil {
			return ipc.App{}, errs.Wrap(errs.Invalid, op, err)
		}
		d.watchOwner(ctx, a)
	}
	release, err := d.acquire(ctx, a, op, who)
	if err != nil {
		return ipc.App{}, err
	}
	rec := a.rec()
	apply(&rec.App, ch)
	notes, err := d.change(ctx, who, a, rec)
	if err == nil {
		d.WriteAudit(ctx, a.rec(), who, "set", rec.Slug, "", nil, withoutSecrets(a.rec().App))
	}
	release()
	if err != nil {
		return ipc.App{}, errs.Wrap(errs.Invalid, op, err)
	}
	trackerOf(a).await(ctx)
	return noted(a.view(ctx), notes), nil
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
		spec.Databases = withSecrets(*ch.Databases, spec.Databases)
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
func (d *Daemon) change(ctx context.Context, who ipc.Caller, a *app, rec store.App) (notes []string, err error) {
	if err := appfile.Validate(rec.App); err != nil {
		return nil, err
	}
	if rec.Unit != a.rec().Unit {
		if err := d.checkUnit(ctx, who, &rec.App); err != nil {
			return nil, err
		}
	}
	if rec.Domain != a.rec().Domain || rec.URI != a.rec().URI {
		if err := d.checkDomain(who, rec.ID, rec.App); err != nil {
			return nil, err
		}
	}
	if err := d.checkParts(ctx, who, rec.App, a.rec().App); err != nil {
		return nil, err
	}
	rec.ByRoot = d.namedByRoot(who, rec, a.rec())
	old := a.rec()
	notes, err = d.ChooseModes(ctx, &rec, old.Databases)
	if err == nil {
		var more []string
		more, err = d.Release(ctx, a.now.Load(), old, rec.Databases)
		notes = append(notes, more...)
	}
	if err == nil {
		err = d.enforce(ctx, a, rec)
	}
	if err != nil {
		_, e := d.Release(ctx, a.now.Load(), rec, old.Databases)
		return nil, errs.Also(err, e)
	}
	return notes, nil
}

// enforce puts a checked record of an app into force.
func (d *Daemon) enforce(ctx context.Context, a *app, rec store.App) error {
	d.stopTracker(a)
	rerun := !slices.Equal(rec.Run, a.rec().Run)
	if rerun && len(a.rec().Run) > 0 {
		if err := d.stopCommand(ctx, a); err != nil {
			return err
		}
	}
	d.closeDrivers(a)
	next, err := d.SetUp(ctx, rec)
	if err == nil && (rec.Domain != a.rec().Domain || rec.URI != a.rec().URI) {
		if err = next.Unreached(); err != nil {
			err = errs.Also(err, next.Close())
		}
	}
	if err == nil {
		err = d.store.PutApp(ctx, rec)
	}
	if err != nil { // opening the new one has taken a supervised command over
		err = errs.Also(err, d.open(ctx, a))
		d.startTracker(ctx, a)
		return errs.Also(err, d.startCommand(ctx, a, rerun))
	}
	next.Adopt(a.now.Load())
	next.KeepHeld(a.now.Load())
	a.now.Store(next)
	d.startTracker(ctx, a)
	return d.startCommand(ctx, a, rerun)
}

// RemoveApp unregisters an app. Its checkpoints stay, and come back when the
// workspace is registered again, unless purge is set. The workspace itself is
// never touched.
func (d *Daemon) RemoveApp(ctx context.Context, who ipc.Caller, ref string, purge bool) error {
	const op = "remove app"
	a, err := d.find(who, ref)
	if err != nil {
		return err
	}
	ctx = context.WithoutCancel(ctx)
	release, err := d.acquire(ctx, a, op, who)
	if err != nil && a.noteOwner(d.CheckOwner(a.rec())) != nil && (!purge || a.rec().Domain == "") {
		release, err = d.hold(ctx, a, op, who, false) // nobody has to own it for that
	}
	if err != nil {
		return err
	}
	defer release()
	return errs.Wrap(errs.Failed, op, d.remove(ctx, who, a, purge))
}

func (d *Daemon) remove(ctx context.Context, who ipc.Caller, a *app, purge bool) error {
	if purge {
		if err := d.FoldDisks(ctx, a.now.Load(), true); err != nil {
			return err
		}
	}
	if _, err := d.Release(ctx, a.now.Load(), a.rec(), nil); err != nil {
		return err
	}
	d.stopTracker(a)
	if len(a.rec().Run) > 0 && a.hostPart() != nil {
		if err := d.stopCommand(ctx, a); err != nil {
			return err
		}
		if c, ok := a.hostPart().(io.Closer); ok {
			defer c.Close()
		}
	}
	if !purge {
		if err := d.store.RemoveApp(ctx, a.rec().ID, d.opt.Now()); err != nil {
			return err
		}
		d.disown(a)
		d.WriteAudit(ctx, a.rec(), who, "remove", a.rec().Slug, "", nil, nil)
		d.closeDrivers(a)
		return nil
	}
	cps, err := d.store.Checkpoints(ctx, a.rec().ID)
	if err != nil {
		return err
	}
	entry := d.Entry(a.rec(), who, "purge", a.rec().Slug, "", nil, nil)
	if err := d.store.PurgeApp(ctx, a.rec().ID, &entry); err != nil {
		return err
	}
	d.Operations.WithLabelValues(entry.Action, events.ResultOf(nil)).Inc()
	d.disown(a)
	d.store.WasDisposed(store.Disposal{Kind: store.DisposeApp, ID: string(a.rec().ID), AppID: a.rec().ID})
	for _, cp := range cps {
		d.store.WasDisposed(store.Disposal{Kind: store.DisposeCheckpoint, ID: string(cp.ID), AppID: a.rec().ID})
		if err := d.drop(ctx, a, cp.Snapshots); err != nil {
			return err
		}
	}
	folded := d.FoldDisks(ctx, a.now.Load(), false)
	d.closeDrivers(a)
	if err := d.PurgeStores(a.rec().ID); err != nil {
		return err
	}
	err = os.RemoveAll(d.StateDir(a.rec().ID))
	if folded != nil {
		err = errs.Also(errs.Wrap(errs.Failed, "the app is removed, and its domain's disks stay a chain of images", folded), err)
	}
	return err
}
