package registry

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"mulligan/appfile"
	"mulligan/daemon/accounts"
	"mulligan/daemon/app"
	"mulligan/daemon/store"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/privsep"
	"mulligan/snap/postgres/physical/pgserver"
	"mulligan/systemd"
)

// checkDomain checks that the caller may name the domain, and that no other app has it. At the host's daemon only root may name
// a domain. A user's daemon has the rights that libvirt gives the user, and fails when it opens the domain if these are not
// enough.
func (svc *Service) checkDomain(who ipc.Caller, id ipc.AppID, spec ipc.App) error {
	if spec.Domain == "" {
		return nil
	}
	if !svc.owners.Administers(who) {
		return errs.New(errs.Denied, "", "only root may name domains").
			WithHint("ask an administrator: `mulligan app add --slug %s --dir %s --domain %s`, with owner = %q in an app file", spec.Slug, spec.Workspace, spec.Domain, accounts.UserName(who.UID))
	}
	for _, rec := range svc.apps.Records() {
		if rec.ID != id && rec.Domain == spec.Domain && svc.binder.LibvirtURI(rec) == svc.binder.LibvirtURI(store.App{App: spec}) {
			return errs.New(errs.Conflict, "", "domain %s belongs to another app", spec.Domain).WithHint("a domain has one app: `mulligan app list`")
		}
	}
	return nil
}

// checkCluster checks that the caller may name the cluster, and that its unit exists.
func (svc *Service) checkCluster(ctx context.Context, who ipc.Caller, spec ipc.App, db ipc.Database) error {
	if !svc.owners.Administers(who) && (db.Unit != "" || who.Guest != "") {
		return errs.New(errs.Denied, "", "only root may name the cluster of database %q", db.Name).
			WithHint("ask an administrator: `mulligan app set --app %s 'database=%s=%s#mode=physical&data_dir=%s&unit=%s'`", spec.Slug, db.Name, appfile.Redact(db), db.DataDir, db.Unit)
	}
	if db.DataDir == spec.Workspace || app.Within(db.DataDir, spec.Workspace) || app.Within(spec.Workspace, db.DataDir) {
		return errs.New(errs.Invalid, "", "the data folder %q and workspace %q must not contain each other", db.DataDir, spec.Workspace).
			WithHint("move the cluster out of the workspace, or use mode = logical without data_dir")
	}
	if db.Unit == "" {
		return svc.checkOwnCluster(ctx, who, spec, db)
	}
	if db.Unit == spec.Unit {
		return errs.New(errs.Invalid, "", "database %q and the app have the same unit, %s", db.Name, db.Unit).
			WithHint("name the unit that serves the database: it is stopped apart from the app")
	}
	if _, err := systemd.ParseName(db.Unit); err != nil {
		return err
	}
	m, err := svc.binder.Systemd(ctx)
	if err != nil {
		return err
	}
	exists, err := m.Exists(ctx, db.Unit)
	if err == nil && !exists {
		err = errs.New(errs.NotFound, "", "no unit %s", db.Unit).WithHint("systemctl list-units 'postgresql*' shows the units")
	}
	return err
}

// checkOwnCluster checks a data folder that no unit serves: it must belong to the caller, or root must name it.
func (svc *Service) checkOwnCluster(ctx context.Context, who ipc.Caller, spec ipc.App, db ipc.Database) error {
	user := svc.owners.CallerAccount(who).User()
	if svc.owners.Administers(who) && os.Geteuid() == 0 {
		at, err := pgserver.Locate(ctx, db.DataDir)
		if err != nil {
			return err
		}
		user = at.Owner
	}
	if _, err := clusterFolder.Call(ctx, user, db.DataDir); err != nil {
		if errs.KindOf(err) == errs.Denied && !svc.owners.Administers(who) {
			err = &errs.Error{Kind: errs.Denied, Err: err, Hint: "name a data folder of your own, or " + forRoot(spec)}
		}
		return err
	}
	return nil
}

// clusterFolder checks that a data folder belongs to the user who will run its server, and that no other user can replace it.
// It runs with that user's rights.
var clusterFolder = privsep.Define("daemon.clusterFolder", func(_ context.Context, path string) (mode fs.FileMode, err error) {
	denied := func(format string, args ...any) (fs.FileMode, error) {
		return 0, errs.New(errs.Denied, "", "the data folder %q %s", path, fmt.Sprintf(format, args...))
	}
	if real, err := filepath.EvalSymlinks(path); err != nil || real != path {
		return denied("is not there, not yours to look into, or reached by a link")
	}
	me := os.Geteuid()
	for at := path; ; at = filepath.Dir(at) {
		info, err := os.Lstat(at)
		if err != nil {
			return 0, err
		}
		uid, open := int(info.Sys().(*syscall.Stat_t).Uid), info.Mode()&fs.ModeSticky == 0
		switch perm := info.Mode().Perm(); {
		case at == path && (!info.IsDir() || uid != me):
			return denied("is not a folder of the user that the server would run as")
		case at == path && perm&^0o750 != 0:
			return denied("may be entered by others")
		case uid != me && uid != 0:
			return denied("lies in %q, a folder of another user's", at)
		case at != path && open && (perm&0o002 != 0 || uid == 0 && me != 0 && perm&0o020 != 0):
			return denied("lies in %q, where others may replace it", at)
		}
		if at == path {
			mode = info.Mode()
		}
		if at == "/" {
			return mode, nil
		}
	}
}).Within(app.FolderTimeout)
