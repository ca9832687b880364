package layer

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"

	"mulligan/daemon/store"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/privsep"
	"mulligan/snap"
	"mulligan/snap/mysql"
	"mulligan/snap/postgres"
	"mulligan/snap/postgres/pgtools"
	"mulligan/snap/redis"
	"mulligan/snap/sqlite"
)

// databaseLayer returns the layer of a database with its driver. of are the app's containers, or nil.
func (b *Binder) databaseLayer(ctx context.Context, rec store.App, db ipc.Database, of *Containers) (Layer, error) {
	app, dir := string(rec.ID), b.databaseDir(rec.ID, db.Name)
	l := Layer{Name: DbLayer(db), Kind: Database, Family: db.Driver, About: db.Driver}
	acc, err := b.AccountOf(rec)
	if err != nil {
		return Layer{}, err
	}
	contents, err := b.contents.OfApp(rec)
	if err != nil {
		return Layer{}, err
	}
	own, ownDSN, err := b.ownServerOf(rec, db)
	if err != nil {
		return Layer{}, err
	}
	server, byName := of.serverOf(rec, db)
	switch db.Driver {
	case "sqlite":
		folder, rel := PlaceOf(rec.Workspace, db.DSN)
		l.Driver, err = sqlite.New(sqlite.Config{
			App: app, Name: db.Name, Dir: folder, Path: rel, StateDir: dir, Store: contents, Owner: b.ownerOfFiles(rec), Group: acc.GID, Failpoint: b.opt.Failpoint,
		})
	case "postgres":
		cfg, err := b.postgresConfig(ctx, rec, db, of)
		if err != nil {
			return Layer{}, err
		}
		if server != nil {
			cfg.Inside = &pgtools.Inside{Port: server.Port, Run: server.Run}
			if byName {
				cfg.Inside.Dial = server.Connect
			}
		}
		return l.bindPostgres(cfg, db.Why)
	case "mysql":
		cfg := mysql.Config{
			App: app, Name: db.Name, DSN: db.DSN, StateDir: dir, Store: contents, Owner: acc.User(), Home: acc.Home, Failpoint: b.opt.Failpoint,
		}
		if own != nil {
			cfg.DSN, cfg.Owner = ownDSN, privsep.Self
		}
		if server != nil && byName {
			cfg.Dial = server.Connect
		}
		l.Driver, err = mysql.New(cfg)
	case "redis":
		cfg := redis.Config{
			App: app, Name: db.Name, DSN: db.DSN, StateDir: dir, Store: contents, Owner: acc.User(), Failpoint: b.opt.Failpoint,
		}
		if own != nil {
			cfg.DSN, cfg.Owner = ownDSN, privsep.Self
			cfg.Callback = &redis.Callback{Port: own.Call, Socket: filepath.Join(own.at(), callback)}
		}
		if server != nil { // also where a port of this host leads to it: through that it would not find the way back
			cfg.Dial = server.Connect
		}
		l.Driver, err = redis.New(cfg)
	default:
		err = errs.New(errs.Unsupported, "open app", "%s databases are not supported by this build", db.Driver).
			WithHint("register the app without the database %q", db.Name)
	}
	return l, err
}

// databaseDir returns the daemon's own folder for a database of an app.
func (b *Binder) databaseDir(id ipc.AppID, name string) string {
	return filepath.Join(b.StateDir(id), "db-"+name)
}

// DbLayer returns the name of a database's layer.
func DbLayer(db ipc.Database) snap.Layer { return snap.DB(db.Name) }

// bindPostgres sets the driver of a layer, and describes the chosen mode with the reason, which comes from the server if it was
// asked.
func (l Layer) bindPostgres(cfg postgres.Config, why string) (Layer, error) {
	driver, err := postgres.New(cfg)
	if err != nil {
		return Layer{}, err
	}
	l.Driver, l.About = driver, fmt.Sprintf("postgres, %s: %s", driver.Mode(), cmp.Or(why, driver.Why()))
	return l, nil
}

// ownerOfFiles returns the uid that the files of an app's databases must belong to; 0 means any. Root may have named a database
// of another user.
func (b *Binder) ownerOfFiles(rec store.App) int {
	if b.opt.User || rec.ByRoot {
		return 0
	}
	return rec.OwnerUID
}

// FilesOf returns the paths in the workspace that belong to a database and not to the files layer.
func FilesOf(workspace string, db ipc.Database) []string {
	if db.Driver != "sqlite" {
		return nil
	}
	dir, rel := PlaceOf(workspace, db.DSN)
	if dir != workspace {
		return nil
	}
	return sqlite.Files(rel)
}
