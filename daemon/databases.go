package daemon

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"slices"

	"mulligan/appfile"
	"mulligan/daemon/store"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/snap"
	"mulligan/snap/mysql"
	"mulligan/snap/postgres"
	"mulligan/snap/redis"
	"mulligan/snap/sqlite"
)

// databaseLayer binds one database's driver to an app.
func (d *Daemon) databaseLayer(ctx context.Context, rec store.App, db ipc.Database) (layer, error) {
	app, dir := string(rec.ID), filepath.Join(d.stateDir(rec.ID), "db-"+db.Name)
	l := layer{name: dbLayer(db), kind: db.Driver, prefix: "db-"}
	acc, err := d.AccountOf(rec)
	if err != nil {
		return layer{}, err
	}
	contents, err := d.store.Contents.OfApp(rec)
	if err != nil {
		return layer{}, err
	}
	switch db.Driver {
	case "sqlite":
		folder, rel := placeOf(rec.Workspace, db.DSN)
		l.driver, err = sqlite.New(sqlite.Config{
			App: app, Name: db.Name, Dir: folder, Path: rel, StateDir: dir, Store: contents, Owner: d.ownerOfFiles(rec), Failpoint: d.opt.Failpoint,
		})
	case "postgres":
		cfg, err := d.postgresConfig(ctx, rec, db)
		if err != nil {
			return layer{}, err
		}
		return l.bindPostgres(cfg, db.Why)
	case "mysql":
		l.driver, err = mysql.New(mysql.Config{
			App: app, Name: db.Name, DSN: db.DSN, StateDir: dir, Store: contents, Owner: acc.User(), Home: acc.Home, Failpoint: d.opt.Failpoint,
		})
	case "redis":
		l.driver, err = redis.New(redis.Config{
			App: app, Name: db.Name, DSN: db.DSN, StateDir: dir, Store: contents, Owner: acc.User(), Failpoint: d.opt.Failpoint,
		})
	default:
		err = errs.New(errs.Unsupported, "open app", "%s databases are not supported by this build", db.Driver).
			WithHint("register the app without the database %q", db.Name)
	}
	return l, err
}

// dbLayer is the name of a database's layer.
func dbLayer(db ipc.Database) snap.Layer { return snap.DB(db.Name) }

// bindPostgres gives a layer its driver, and says which mode was chosen and why: what
// was found out when the server was asked says more than the settings.
func (l layer) bindPostgres(cfg postgres.Config, why string) (layer, error) {
	driver, err := postgres.New(cfg)
	if err != nil {
		return layer{}, err
	}
	l.driver, l.kind = driver, fmt.Sprintf("postgres, %s: %s", driver.Mode(), cmp.Or(why, driver.Why()))
	return l, nil
}

// ownerOfFiles is the uid that the files of an app's databases must belong to; 0
// is anybody's. Root may have named a database of another user's.
func (d *Daemon) ownerOfFiles(rec store.App) int {
	if d.opt.User || rec.ByRoot {
		return 0
	}
	return rec.OwnerUID
}

// filesOf lists the paths in the workspace that belong to a database and not
// to the files layer.
func filesOf(workspace string, db ipc.Database) []string {
	if db.Driver != "sqlite" {
		return nil
	}
	dir, rel := placeOf(workspace, db.DSN)
	if dir != workspace {
		return nil
	}
	return sqlite.Files(rel)
}

// withoutSecrets is an app as it may be shown, logged and audited.
func withoutSecrets(spec ipc.App) ipc.App {
	spec.Databases = slices.Clone(spec.Databases)
	for i := range spec.Databases {
		spec.Databases[i].DSN = appfile.Redact(spec.Databases[i])
	}
	return spec
}

// withSecrets gives the databases of a change, which may have been read from
// what is shown, their passwords back.
func withSecrets(dbs, known []ipc.Database) []ipc.Database {
	dbs = slices.Clone(dbs)
	for i, db := range dbs {
		for _, k := range known {
			if k.Name == db.Name && k.Driver == db.Driver && db.DSN == appfile.Redact(k) {
				dbs[i].DSN = k.DSN
			}
		}
	}
	return dbs
}
