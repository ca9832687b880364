package daemon

import (
	"cmp"
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"mulligan/appfile"
	"mulligan/daemon/accounts"
	"mulligan/daemon/store"
	"mulligan/errs"
	"mulligan/ipc"
)

// find finds an app by its id or slug. One that the caller does not own is as
// unknown as one that is not there. A slug names one app of each owner: who sees
// several owners' is told to use the id.
func (d *Daemon) find(who ipc.Caller, ref string) (*app, error) {
	const op = "find app"
	sees := d.sight(who)
	d.mu.Lock()
	defer d.mu.Unlock()
	if a := d.apps[ipc.AppID(ref)]; a != nil && sees(a) {
		return a, nil
	}
	var found *app
	for _, a := range d.apps {
		if a.rec().Slug != ref || !sees(a) {
			continue
		}
		if found != nil {
			return nil, errs.New(errs.Conflict, op, "several owners have an app %s", ref).WithHint("use its id: mulligan app list")
		}
		found = a
	}
	if found == nil {
		return nil, errs.New(errs.NotFound, op, "no app %.64q", ref).WithHint("mulligan app list shows those there are")
	}
	return found, nil
}

// Apps lists the apps that the caller may see, by slug.
func (d *Daemon) Apps(ctx context.Context, who ipc.Caller) []ipc.App {
	sees := d.sight(who)
	d.mu.Lock()
	var seen []*app
	for _, a := range d.apps {
		if sees(a) {
			seen = append(seen, a)
		}
	}
	d.mu.Unlock()
	views := []ipc.App{}
	for _, a := range seen {
		views = append(views, a.view(ctx))
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
	d.audit(ctx, a.rec(), who, "register", a.rec().Slug, "", nil, withoutSecrets(a.rec().App))
	v := noted(a.view(ctx), notes)
	v.Gaps = a.gaps(ctx)
	return v, nil
}

// claim puts an app among the registered ones, where its slug and workspace
// don't clash with another's.
func (d *Daemon) claim(a *app) error {
	left := d.left(a.rec())
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return errs.New(errs.Unavailable, "", "the daemon is stopping")
	}
	for _, other := range d.apps {
		ws := other.rec().Workspace
		switch {
		case other.rec().Slug == a.rec().Slug && other.rec().Owner == a.rec().Owner && other.rec().OwnerUID == a.rec().OwnerUID:
			return errs.New(errs.Conflict, "", "the slug %s is taken", a.rec().Slug).WithHint("choose another with --slug")
		case overlapping(ws, a.rec().Workspace) && !left[other.rec().ID]:
			return errs.New(errs.Conflict, "", "workspace %q overlaps that of another app", a.rec().Workspace).
				WithHint("a folder belongs to one app: mulligan app list")
		}
	}
	a.holder, a.freed = "being registered", make(chan struct{})
	d.apps[a.rec().ID] = a
	return nil
}

func overlapping(x, y string) bool { return x == y || within(x, y) || within(y, x) }

// left are other owners' apps whose workspaces overlap with rec's and are no
// longer theirs: the folder was removed, or is another's now. They stand in
// nobody's way, and can't be worked with until they have a folder again.
func (d *Daemon) left(rec store.App) map[ipc.AppID]bool {
	left := map[ipc.AppID]bool{}
	for _, other := range d.all() {
		o := other.rec()
		if o.OwnerUID == rec.OwnerUID && o.Owner == rec.Owner || !overlapping(o.Workspace, rec.Workspace) {
			continue
		}
		var st unix.Stat_t
		err := unix.Lstat(o.Workspace, &st)
		gone := errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR)
		left[o.ID] = gone || err == nil && o.FolderUID >= 0 && int(st.Uid) != o.FolderUID
	}
	return left
}

// disown takes an app, which the caller holds, from the registered ones. Who waits for it
// is told that it is gone.
func (d *Daemon) disown(a *app) {
	a.mu.Lock()
	a.gone = true
	a.mu.Unlock()
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.apps, a.rec().ID)
	d.domains.drop(a.rec().ID)
}

// bringUp opens a new app's drivers, records it, and starts what the daemon
// supervises. The notes say what that changed elsewhere.
func (d *Daemon) bringUp(ctx context.Context, a *app) (notes []string, err error) {
	rec := a.rec()
	if err := os.MkdirAll(d.stateDir(rec.ID), 0o700); err != nil {
		return nil, err
	}
	notes, err = d.chooseModes(ctx, &rec, nil)
	a.now.Store(&setup{rec: rec})
	if err == nil {
		err = d.settle(ctx, a)
	}
	if err == nil {
		err = a.now.Load().unreached()
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
		_, e := d.release(ctx, a, rec, nil)
		d.closeDrivers(a)
		return nil, errs.Also(err, e)
	}
	a.letGo()
	d.startTracker(ctx, a)
	a.tracking().await(ctx)
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
	entry := d.entry(a.rec(), accounts.Self(), "purge", a.rec().Slug, "its registration failed", nil, nil)
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
		d.audit(ctx, a.rec(), who, "set", rec.Slug, "", nil, withoutSecrets(a.rec().App))
	}
	release()
	if err != nil {
		return ipc.App{}, errs.Wrap(errs.Invalid, op, err)
	}
	a.tracking().await(ctx)
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
	notes, err = d.chooseModes(ctx, &rec, old.Databases)
	if err == nil {
		var more []string
		more, err = d.release(ctx, a, old, rec.Databases)
		notes = append(notes, more...)
	}
	if err == nil {
		err = d.enforce(ctx, a, rec)
	}
	if err != nil {
		_, e := d.release(ctx, a, rec, old.Databases)
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
	next, err := d.setUp(ctx, rec)
	if err == nil && (rec.Domain != a.rec().Domain || rec.URI != a.rec().URI) {
		if err = next.unreached(); err != nil {
			err = errs.Also(err, next.close())
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
	next.adopt(a.now.Load())
	next.keepHeld(a.now.Load())
	a.now.Store(next)
	d.startTracker(ctx, a)
	return d.startCommand(ctx, a, rerun)
}

// stopCommand stops the command that the daemon supervises for an app.
func (d *Daemon) stopCommand(ctx context.Context, a *app) error {
	ctx, cancel := context.WithTimeout(ctx, d.opt.StopTimeout)
	defer cancel()
	return a.hostPart().Stop(ctx)
}

// startCommand starts it, if there is one and it is wanted.
func (d *Daemon) startCommand(ctx context.Context, a *app, wanted bool) error {
	if !wanted || len(a.rec().Run) == 0 || a.hostPart() == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	return a.hostPart().Start(ctx)
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
		if err := d.foldDisks(ctx, a, true); err != nil {
			return err
		}
	}
	if _, err := d.release(ctx, a, a.rec(), nil); err != nil {
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
		d.audit(ctx, a.rec(), who, "remove", a.rec().Slug, "", nil, nil)
		d.closeDrivers(a)
		return nil
	}
	cps, err := d.store.Checkpoints(ctx, a.rec().ID)
	if err != nil {
		return err
	}
	entry := d.entry(a.rec(), who, "purge", a.rec().Slug, "", nil, nil)
	if err := d.store.PurgeApp(ctx, a.rec().ID, &entry); err != nil {
		return err
	}
	d.operations.WithLabelValues(entry.Action, resultOf(nil)).Inc()
	d.disown(a)
	d.store.WasDisposed(store.Disposal{Kind: store.DisposeApp, ID: string(a.rec().ID), AppID: a.rec().ID})
	for _, cp := range cps {
		d.store.WasDisposed(store.Disposal{Kind: store.DisposeCheckpoint, ID: string(cp.ID), AppID: a.rec().ID})
		if err := d.drop(ctx, a, cp.Snapshots); err != nil {
			return err
		}
	}
	folded := d.foldDisks(ctx, a, false)
	d.closeDrivers(a)
	if err := d.purgeStores(a.rec().ID); err != nil {
		return err
	}
	err = os.RemoveAll(d.stateDir(a.rec().ID))
	if folded != nil {
		err = errs.Also(errs.Wrap(errs.Failed, "the app is removed, and its domain's disks stay a chain of images", folded), err)
	}
	return err
}
