package daemon

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"mulligan/appfile"
	"mulligan/daemon/accounts"
	"mulligan/daemon/store"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/privsep"
	"mulligan/snap/postgres"
	"mulligan/snap/postgres/physical"
	"mulligan/snap/postgres/physical/pgserver"
	"mulligan/systemd"
)

// postgresConfig is how one Postgres database of an app is handled.
func (d *Daemon) postgresConfig(ctx context.Context, rec store.App, db ipc.Database) (postgres.Config, error) {
	acc, err := d.AccountOf(rec)
	if err != nil {
		return postgres.Config{}, err
	}
	contents, err := d.store.Contents.OfApp(rec)
	if err != nil {
		return postgres.Config{}, err
	}
	cfg := postgres.Config{
		App: string(rec.ID), Name: db.Name, DSN: db.DSN, Mode: postgres.Mode(db.Mode),
		StateDir: filepath.Join(d.stateDir(rec.ID), "db-"+db.Name), Store: contents, Owner: acc.User(), Failpoint: d.opt.Failpoint,
	}
	if db.DataDir == "" || cfg.Mode == postgres.Logical || db.Chosen == string(postgres.Logical) {
		return cfg, nil
	}
	cfg.Cluster, err = d.clusterOf(ctx, rec, db, cfg)
	return cfg, err
}

// clusterOf is the cluster of a database, with what starts and stops its server: a unit,
// or the server's own program. A cluster in care is known although its folder is broken
// or was replaced.
func (d *Daemon) clusterOf(ctx context.Context, rec store.App, db ipc.Database, cfg postgres.Config) (*physical.Config, error) {
	at, err := pgserver.Locate(ctx, db.DataDir)
	if known, found := cfg.Recall(); found && (err != nil || at.Owner.UID != known.Owner.UID) {
		at, err = known, nil
	}
	if err != nil {
		return nil, err
	}
	if db.Unit == "" {
		return d.ownCluster(rec, db, at, cfg.Owner)
	}
	m, err := d.systemd(ctx)
	if err != nil {
		return nil, err
	}
	return &physical.Config{
		DataDir: db.DataDir, Bin: at.Bin, Owner: at.Owner, Server: m.Unit(db.Unit), Log: d.opt.Log,
	}, nil
}

// ownCluster is a cluster that no unit serves: its server is started and stopped as the
// folder's owner, who could do that too.
func (d *Daemon) ownCluster(rec store.App, db ipc.Database, at pgserver.Place, owner privsep.User) (*physical.Config, error) {
	uid := rec.OwnerUID
	if d.opt.User {
		uid = os.Geteuid()
	}
	switch {
	case at.Owner.UID == uid && d.opt.User:
	case at.Owner.UID == uid:
		at.Owner = owner // with all groups
	case !rec.ByRoot || os.Geteuid() != 0:
		return nil, errs.New(errs.Denied, "", "the data folder %q of database %q belongs to %s, not to the app's owner", db.DataDir, db.Name, accounts.UserName(at.Owner.UID)).
			WithHint("ask root to name it")
	}
	return &physical.Config{DataDir: db.DataDir, Bin: at.Bin, Owner: at.Owner, Log: d.opt.Log, Server: pgserver.PgCtl{
		Bin: at.Bin, DataDir: db.DataDir, Log: pgserver.LogFile(db.DataDir), Owner: at.Owner,
	}}, nil
}

// chooseModes settles, for each database with a cluster, the mode that it is
// handled in, and takes the cluster into care where that is physical. A database
// that is in old just the same keeps its mode; its server need not even run.
// The notes say what was changed in servers' configurations.
func (d *Daemon) chooseModes(ctx context.Context, rec *store.App, old []ipc.Database) (notes []string, err error) {
	rec.Databases = slices.Clone(rec.Databases)
	for i := range rec.Databases {
		db := &rec.Databases[i]
		db.Chosen, db.Why = "", ""
		if db.DataDir == "" {
			continue
		}
		if at := slices.IndexFunc(old, func(o ipc.Database) bool { return asAsked(o) == *db }); at >= 0 && old[at].Chosen != "" {
			db.Chosen, db.Why = old[at].Chosen, old[at].Why
			continue
		}
		said, err := d.chooseMode(ctx, *rec, db)
		if err != nil {
			return notes, errs.Wrap(errs.Failed, "database "+db.Name, err)
		}
		notes = append(notes, said...)
	}
	return notes, nil
}

func (d *Daemon) chooseMode(ctx context.Context, rec store.App, db *ipc.Database) (notes []string, err error) {
	cfg, err := d.postgresConfig(ctx, rec, *db)
	if err != nil {
		return nil, err
	}
	choice, err := postgres.Choose(ctx, cfg)
	if err != nil {
		return nil, err
	}
	db.Chosen, db.Why = string(choice.Mode), choice.Why
	for _, n := range choice.Notes {
		notes = append(notes, db.Name+": "+n)
	}
	return notes, nil
}

// asAsked is a database without what the daemon made of it.
func asAsked(db ipc.Database) ipc.Database {
	db.Chosen, db.Why = "", ""
	return db
}

// inCare lists the databases whose clusters are in care.
func inCare(dbs []ipc.Database) (list []ipc.Database) {
	for _, db := range dbs {
		if db.Chosen == string(postgres.Physical) {
			list = append(list, db)
		}
	}
	return list
}

// release takes those clusters of rec, a record of the app, out of care that are
// not among stay. Their servers must run, and go on as they were before.
func (d *Daemon) release(ctx context.Context, a *app, rec store.App, stay []ipc.Database) (notes []string, err error) {
	for _, db := range inCare(rec.Databases) {
		if slices.ContainsFunc(inCare(stay), func(n ipc.Database) bool { return n.Name == db.Name && n.DataDir == db.DataDir }) {
			continue
		}
		said, err := d.releaseOne(ctx, a, rec, db)
		if err != nil {
			return notes, errs.Wrap(errs.Failed, "take the cluster of database "+db.Name+" out of care", err)
		}
		for _, n := range said {
			notes = append(notes, db.Name+": "+n)
		}
	}
	return notes, nil
}

func (d *Daemon) releaseOne(ctx context.Context, a *app, rec store.App, db ipc.Database) ([]string, error) {
	if l, ok := a.layer(dbLayer(db)); ok {
		driver := l.driver
		if h, held := driver.(*heldUp); held {
			driver = h.Driver
		}
		if p, ok := driver.(*postgres.Driver); ok && p.Mode() == postgres.Physical {
			return p.Release(ctx)
		}
	}
	cfg, err := d.postgresConfig(ctx, rec, db) // it was never bound
	if err != nil {
		return nil, err
	}
	p, err := postgres.New(cfg)
	if err != nil {
		return nil, err
	}
	return p.Release(ctx)
}

// purgeStores removes what drivers keep outside of the state folder for any
// database that the app has or once had.
func (d *Daemon) purgeStores(id ipc.AppID) error {
	dirs, err := filepath.Glob(filepath.Join(d.stateDir(id), "db-*"))
	if err != nil {
		return err // the pattern is good
	}
	for _, dir := range dirs {
		if err := postgres.Purge(dir); err != nil {
			return err
		}
	}
	return nil
}

// checkCluster makes sure that who names a cluster may, and that its unit is one.
func (d *Daemon) checkCluster(ctx context.Context, who ipc.Caller, spec ipc.App, db ipc.Database) error {
	if !d.Administers(who) && (db.Unit != "" || who.Guest != "") {
		return errs.New(errs.Denied, "", "the cluster of database %q is named by root", db.Name).
			WithHint("ask an administrator: mulligan app set --app %s 'database=%s=%s#mode=physical&data_dir=%s&unit=%s'", spec.Slug, db.Name, appfile.Redact(db), db.DataDir, db.Unit)
	}
	if db.DataDir == spec.Workspace || within(db.DataDir, spec.Workspace) || within(spec.Workspace, db.DataDir) {
		return errs.New(errs.Invalid, "", "the data folder %q and workspace %q must not contain each other", db.DataDir, spec.Workspace).
			WithHint("move the cluster out of the workspace, or use mode = logical without data_dir")
	}
	if db.Unit == "" {
		return d.checkOwnCluster(ctx, who, spec, db)
	}
	if db.Unit == spec.Unit {
		return errs.New(errs.Invalid, "", "database %q and the app have the same unit, %s", db.Name, db.Unit).
			WithHint("name the unit that serves the database: it is stopped apart from the app")
	}
	if _, err := systemd.ParseName(db.Unit); err != nil {
		return err
	}
	m, err := d.systemd(ctx)
	if err != nil {
		return err
	}
	exists, err := m.Exists(ctx, db.Unit)
	if err == nil && !exists {
		err = errs.New(errs.NotFound, "", "no unit %s", db.Unit).WithHint("systemctl list-units 'postgresql*' shows those there are")
	}
	return err
}

// checkOwnCluster makes sure that a data folder which no unit serves may be handled as
// its owner: it is the caller's, or one that root names.
func (d *Daemon) checkOwnCluster(ctx context.Context, who ipc.Caller, spec ipc.App, db ipc.Database) error {
	user := d.CallerAccount(who).User()
	if d.Administers(who) && os.Geteuid() == 0 {
		at, err := pgserver.Locate(ctx, db.DataDir)
		if err != nil {
			return err
		}
		user = at.Owner
	}
	if _, err := clusterFolder.Call(ctx, user, db.DataDir); err != nil {
		if errs.KindOf(err) == errs.Denied && !d.Administers(who) {
			err = &errs.Error{Kind: errs.Denied, Err: err, Hint: "name a data folder of your own, or " + forRoot(spec)}
		}
		return err
	}
	return nil
}

// clusterFolder checks, as whom a server is to run, that a data folder is this user's
// alone, and that nobody else can put another one into its place.
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
}).Within(folderTimeout)
