package registry

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"path/filepath"
	"reflect"
	"slices"

	"golang.org/x/sys/unix"

	"mulligan/appfile"
	"mulligan/daemon/accounts"
	"mulligan/daemon/app"
	"mulligan/daemon/layer"
	"mulligan/daemon/records"
	"mulligan/daemon/store"
	"mulligan/engine"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/privsep"
	"mulligan/snap/beneath"
	"mulligan/snap/files"
	"mulligan/systemd"
)

// admit checks a registration and sets its missing fields.
//
// Root may name everything. A user may name folders that belong to the user, and commands, which run with the user's rights. A
// guest may name folders below its own folder, and neither commands nor servers.
func (svc *Service) admit(ctx context.Context, who ipc.Caller, spec ipc.App) (store.App, error) {
	if spec.Retention == (ipc.Retention{}) {
		spec.Retention = ipc.DefaultRetention()
	}
	spec.Fork = nil // only the daemon makes forks
	spec.EngineAs, spec.Containers = "", nil
	spec.State, spec.Busy, spec.Problems, spec.Covers, spec.Following, spec.Notes, spec.Gaps = "", "", nil, nil, "", nil, nil
	if err := appfile.Validate(spec); err != nil {
		return store.App{}, err
	}
	rec := store.App{App: spec, ByRoot: svc.owners.Administers(who)}
	var err error
	if rec.Owner, rec.OwnerUID, err = svc.owners.OwnerOf(who, spec); err != nil {
		return store.App{}, err
	}
	if err := svc.checkWorkspace(ctx, who, &rec); err != nil {
		return store.App{}, err
	}
	if err := svc.checkUnit(ctx, who, &rec); err != nil {
		return store.App{}, err
	}
	if err := svc.checkDomain(who, "", rec.App); err != nil {
		return store.App{}, err
	}
	if err := svc.checkParts(ctx, who, rec.App, ipc.App{}); err != nil {
		return store.App{}, err
	}
	old, err := svc.store.RemovedApp(ctx, rec.Workspace, rec.Owner, rec.OwnerUID)
	switch errs.KindOf(err) {
	case "":
		rec.ID, rec.CreatedAt = old.ID, old.CreatedAt
	case errs.NotFound:
		if err := svc.checkAppQuota(ctx, who); err != nil {
			return store.App{}, err
		}
		rec.ID, rec.CreatedAt = ipc.AppID(records.NewID("app-")), svc.opt.Now().UTC()
	default:
		return store.App{}, err
	}
	return rec, nil
}

// checkWorkspace checks that the folder exists, may be protected, and belongs to the caller unless
// the caller is root. A worker with the caller's rights opens it, so that the answer reveals
// nothing that the caller could not see. The opened folder is checked, not its path, and checked
// again at every later opening.
func (svc *Service) checkWorkspace(ctx context.Context, who ipc.Caller, rec *store.App) error {
	if who.Guest != "" {
		if err := svc.checkGuestFolder(ctx, who, rec); err != nil {
			return err
		}
	} else {
		f, err := openFolder.Call(ctx, svc.owners.CallerAccount(who).User(), rec.Workspace)
		if err != nil {
			return err
		}
		rec.Workspace, rec.FolderUID = f.Path, f.UID
	}
	if !svc.owners.Administers(who) && rec.FolderUID != rec.OwnerUID {
		return errs.New(errs.Denied, "", "workspace %q belongs to %s", rec.Workspace, accounts.UserName(rec.FolderUID)).
			WithHint("register a folder of your own, or %s", forRoot(rec.App))
	}
	if err := files.CheckRoot(rec.Workspace); err != nil {
		return err
	}
	if rec.Workspace == svc.opt.StateDir || app.Within(svc.opt.StateDir, rec.Workspace) || app.Within(rec.Workspace, svc.opt.StateDir) {
		return errs.New(errs.Invalid, "", "workspace %q and the state folder %q must not contain each other", rec.Workspace, svc.opt.StateDir).
			WithHint("choose another --state-dir or workspace")
	}
	return nil
}

// folder is a folder that a worker opened for a user.
type folder struct {
	Path string // with links resolved
	UID  int    // its owner
}

// openFolder opens the folder at path, resolves links in path, and returns the folder's owner.
var openFolder = privsep.Define("daemon.openFolder", func(_ context.Context, path string) (f folder, err error) {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return f, errs.New(errs.NotFound, "", "workspace %q does not exist, or you may not look into it", path).WithHint("check the path")
	}
	root, err := beneath.Open(real)
	if err != nil {
		return f, err
	}
	defer root.Close()
	var st unix.Stat_t
	err = unix.Fstat(root.FD(), &st)
	return folder{real, int(st.Uid)}, err
}).Within(app.FolderTimeout)

// checkGuestFolder checks that the workspace is below the guest's folder, with no links on the way. It returns the same error
// in all cases.
func (svc *Service) checkGuestFolder(ctx context.Context, who ipc.Caller, rec *store.App) error {
	no := errs.New(errs.Denied, "", "workspace %q is not below this guest's folder", rec.Workspace).
		WithHint("ask an administrator for one below the guests' folder")
	rel, err := filepath.Rel(filepath.Join(svc.opt.Guests.Dir, who.Guest), rec.Workspace)
	if err != nil || !filepath.IsLocal(rel) {
		return no
	}
	f, err := openFolder.Call(ctx, privsep.Self, rec.Workspace)
	if err != nil || f.Path != rec.Workspace || f.UID != rec.OwnerUID {
		return no
	}
	rec.FolderUID = f.UID
	return nil
}

// forRoot returns a sentence that the user can pass on to an administrator, who then registers the
// app.
func forRoot(spec ipc.App) string {
	file := fmt.Sprintf("slug = %q, owner = %q, workspace = %q", spec.Slug, spec.Owner, spec.Workspace)
	if spec.Unit != "" {
		file += fmt.Sprintf(", unit = %q", spec.Unit)
	}
	if spec.Domain != "" {
		file += fmt.Sprintf(", domain = %q", spec.Domain)
	}
	return fmt.Sprintf("ask an administrator for /etc/mulligan/apps.d/%s.toml with: %s", spec.Slug, file)
}

// checkUnit checks that the unit exists. If none is named and the default unit exists, checkUnit
// sets that one. For containers it also records which they are.
func (svc *Service) checkUnit(ctx context.Context, who ipc.Caller, rec *store.App) error {
	root, spec := svc.owners.Administers(who), &rec.App
	if engine.Names(spec.Unit) {
		return svc.checkContainers(ctx, who, rec)
	}
	spec.Engine, spec.EngineAs, spec.Volumes, spec.Containers = "", "", nil, nil
	if !root && spec.Unit != "" {
		return errs.New(errs.Denied, "", "only root may name units").WithHint("%s", forRoot(*spec))
	}
	if len(spec.Run) > 0 {
		return nil
	}
	if spec.Unit == "" {
		svc.defaultUnit(ctx, root, spec)
		return nil
	}
	name, err := systemd.ParseName(spec.Unit)
	if err != nil {
		return err
	}
	spec.Unit = name
	m, err := svc.binder.Systemd(ctx)
	if err != nil {
		return err
	}
	exists, err := m.Exists(ctx, name)
	if err != nil {
		return err
	}
	if !exists {
		return errs.New(errs.NotFound, "", "no unit %s", name).WithHint("systemctl list-units shows the units")
	}
	return nil
}

// defaultUnit sets of-app-SLUG.service if this unit exists. Without systemd or without this unit, the app has no unit.
func (svc *Service) defaultUnit(ctx context.Context, root bool, spec *ipc.App) {
	if !root {
		return
	}
	m, err := svc.binder.Systemd(ctx)
	if err != nil {
		return
	}
	name := "of-app-" + spec.Slug + ".service"
	if ok, err := m.Exists(ctx, name); err == nil && ok {
		spec.Unit = name
	}
}

// checkParts checks that the caller may name the databases, command and health check of an app.
// Parts that the app had before are not checked again: root may have named them.
func (svc *Service) checkParts(ctx context.Context, who ipc.Caller, spec, before ipc.App) error {
	for _, db := range spec.Databases {
		known := func(k ipc.Database) bool { return layer.AsAsked(k) == layer.AsAsked(db) }
		if slices.ContainsFunc(before.Databases, known) {
			continue
		}
		if err := svc.checkDatabase(ctx, who, spec, db); err != nil {
			return err
		}
	}
	if svc.owners.Administers(who) {
		return nil
	}
	if who.Guest != "" && (len(spec.Run) > 0 && !slices.Equal(spec.Run, before.Run) || spec.Health != nil && !reflect.DeepEqual(spec.Health, before.Health)) {
		return errs.New(errs.Denied, "", "a guest's app can have neither a command nor a health check").WithHint("leave out run and health")
	}
	if !reflect.DeepEqual(spec.Health, before.Health) {
		if err := checkHealthURL(spec.Health); err != nil {
			return err
		}
	}
	return nil
}

// checkHealthURL refuses URLs of other hosts, which the daemon might reach although the user
// cannot. The host must be an address, since a name may mean another host each time.
func checkHealthURL(h *ipc.Health) error {
	if h == nil || h.URL == "" {
		return nil
	}
	u, err := url.Parse(h.URL)
	if err == nil && (u.Hostname() == "localhost" || isLoopback(u.Hostname())) {
		return nil
	}
	return errs.New(errs.Denied, "", "a health url must lead to this host").
		WithHint("write it like http://127.0.0.1:8080/healthz, or ask an administrator to set one elsewhere")
}

func isLoopback(host string) bool {
	addr, err := netip.ParseAddr(host)
	return err == nil && net.IP(addr.Unmap().AsSlice()).IsLoopback()
}

// checkDatabase checks that the caller could reach the database. A server needs no check, because the daemon logs in with the
// owner's rights and the URL's password.
func (svc *Service) checkDatabase(ctx context.Context, who ipc.Caller, spec ipc.App, db ipc.Database) error {
	switch root := svc.owners.Administers(who); {
	case db.DataDir != "":
		if err := svc.checkCluster(ctx, who, spec, db); err != nil || root {
			return err
		}
	case root:
		return nil
	case db.Unit != "" || db.Mode == "physical" && !engine.Names(spec.Unit): // who may use a container engine may do all with its volumes
		return errs.New(errs.Denied, "", "database %q: clusters and their only root may name units", db.Name).
			WithHint("leave out mode and unit, or %s", forRoot(spec))
	}
	inside := false
	if db.Driver == "sqlite" {
		dir, _ := layer.PlaceOf(spec.Workspace, db.DSN)
		inside = dir == spec.Workspace
	}
	if who.Guest != "" && !inside {
		return errs.New(errs.Denied, "", "database %q: a guest's databases are SQLite files in its workspace", db.Name).WithHint("leave it out")
	}
	if db.Driver != "sqlite" || inside {
		return nil // a file in the workspace is checked when it is opened
	}
	dir, _ := layer.PlaceOf(spec.Workspace, db.DSN)
	f, err := openFolder.Call(ctx, svc.owners.CallerAccount(who).User(), dir)
	if err != nil || f.Path != dir || f.UID != who.UID || app.Within(svc.opt.StateDir, dir) {
		return errs.New(errs.Denied, "", "database %q lies in a folder that is not yours, or is reached by a link", db.Name).
			WithHint("name one of your own by its real path, or %s", forRoot(spec))
	}
	return nil
}

// namedByRoot reports whether root named the parts of an app, especially its databases, after the caller has changed old to
// rec.
func (svc *Service) namedByRoot(who ipc.Caller, rec, old store.App) bool {
	same := slices.EqualFunc(rec.Databases, old.Databases, func(x, y ipc.Database) bool { return layer.AsAsked(x) == layer.AsAsked(y) })
	if svc.owners.Administers(who) {
		return old.ByRoot || !same
	}
	return old.ByRoot && same
}
