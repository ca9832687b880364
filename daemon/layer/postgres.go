package layer

import (
	"context"
	"os"
	"path/filepath"
	"slices"

	"mulligan/daemon/accounts"
	"mulligan/daemon/store"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/privsep"
	"mulligan/snap/postgres"
	"mulligan/snap/postgres/physical"
	"mulligan/snap/postgres/physical/pgserver"
)

// postgresConfig returns the configuration of the driver of a Postgres database. of are the app's containers, or nil.
func (b *Binder) postgresConfig(ctx context.Context, rec store.App, db ipc.Database, of *Containers) (postgres.Config, error) {
	acc, err := b.AccountOf(rec)
	if err != nil {
		return postgres.Config{}, err
	}
	contents, err := b.contents.OfApp(rec)
	if err != nil {
		return postgres.Config{}, err
	}
	cfg := postgres.Config{
		App: string(rec.ID), Name: db.Name, DSN: db.DSN, Mode: postgres.Mode(db.Mode),
		StateDir: b.databaseDir(rec.ID, db.Name), Store: contents, Owner: acc.User(), Failpoint: b.opt.Failpoint,
	}
	own, dsn, err := b.ownServerOf(rec, db)
	if err != nil {
		return cfg, err
	}
	if own != nil {
		cfg.DSN, cfg.Private, cfg.Mode = dsn, true, postgres.Logical
		if own.Seeded != nil {
			cfg.Aside = aside{b, rec, db, *own}
		}
		return cfg, nil
	}
	if m, _ := container(rec, db); m.Cluster != nil && of != nil && db.Chosen != string(postgres.Logical) {
		cfg.Cluster, err = clusterInside(b, rec, db, cfg, of)
		return cfg, err
	}
	if db.DataDir == "" || cfg.Mode == postgres.Logical || db.Chosen == string(postgres.Logical) {
		return cfg, nil
	}
	cfg.Cluster, err = b.clusterOf(ctx, rec, db, cfg)
	return cfg, err
}

// clusterOf returns the cluster of a database, with the unit or program that runs its server. It also works for a cluster that
// the daemon manages and whose folder is broken or was replaced.
func (b *Binder) clusterOf(ctx context.Context, rec store.App, db ipc.Database, cfg postgres.Config) (*physical.Config, error) {
	at, err := pgserver.Locate(ctx, db.DataDir)
	if known, found := cfg.Recall(); found && (err != nil || at.Owner.UID != known.Owner.UID) {
		at, err = known, nil
	}
	if err != nil {
		return nil, err
	}
	if db.Unit == "" {
		return b.ownCluster(rec, db, at, cfg.Owner)
	}
	m, err := b.Systemd(ctx)
	if err != nil {
		return nil, err
	}
	return &physical.Config{
		DataDir: db.DataDir, Bin: at.Bin, Owner: at.Owner, Server: m.Unit(db.Unit), Log: b.opt.Log,
	}, nil
}

// ownCluster returns a cluster that no unit serves. Its server is started and stopped with the rights of the folder's owner.
func (b *Binder) ownCluster(rec store.App, db ipc.Database, at pgserver.Place, owner privsep.User) (*physical.Config, error) {
	uid := rec.OwnerUID
	if b.opt.User {
		uid = os.Geteuid()
	}
	switch {
	case at.Owner.UID == uid && b.opt.User:
	case at.Owner.UID == uid:
		at.Owner = owner // with all groups
	case !rec.ByRoot || os.Geteuid() != 0:
		return nil, errs.New(errs.Denied, "", "the data folder %q of database %q belongs to %s, not to the app's owner", db.DataDir, db.Name, accounts.UserName(at.Owner.UID)).
			WithHint("ask root to name it")
	}
	return &physical.Config{DataDir: db.DataDir, Bin: at.Bin, Owner: at.Owner, Log: b.opt.Log, Server: pgserver.PgCtl{
		Bin: at.Bin, DataDir: db.DataDir, Log: pgserver.LogFile(db.DataDir), Owner: at.Owner,
	}}, nil
}

// ChooseModes chooses the mode of each database with a cluster. For the mode physical, it prepares the cluster. A database that
// is unchanged since the record old keeps its mode, and its server need not run. The notes describe changes in servers' configurations.
func (b *Binder) ChooseModes(ctx context.Context, rec *store.App, old store.App) (notes []string, err error) {
	of, err := containersOf(b, *rec)
	if err != nil {
		return nil, err
	}
	defer of.Close()
	rec.Databases = slices.Clone(rec.Databases)
	for i := range rec.Databases {
		db := &rec.Databases[i]
		db.Chosen, db.Why = "", ""
		if m, _ := container(*rec, *db); db.DataDir == "" && m.Cluster == nil {
			continue
		}
		was := old.Databases
		if at := slices.IndexFunc(was, func(o ipc.Database) bool { return AsAsked(o) == *db }); at >= 0 && was[at].Chosen != "" && sameServer(old, *rec, *db) {
			db.Chosen, db.Why = was[at].Chosen, was[at].Why
			continue
		}
		said, err := b.chooseMode(ctx, *rec, db, of)
		if err != nil {
			return notes, errs.Wrap(errs.Failed, "database "+db.Name, err)
		}
		notes = append(notes, said...)
	}
	return notes, nil
}

func (b *Binder) chooseMode(ctx context.Context, rec store.App, db *ipc.Database, of *Containers) (notes []string, err error) {
	cfg, err := b.postgresConfig(ctx, rec, *db, of)
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

// AsAsked returns a database without the fields that the daemon set.
func AsAsked(db ipc.Database) ipc.Database {
	db.Chosen, db.Why = "", ""
	return db
}

// inCare returns the databases whose clusters the daemon manages.
func inCare(dbs []ipc.Database) (list []ipc.Database) {
	for _, db := range dbs {
		if db.Chosen == string(postgres.Physical) {
			list = append(list, db)
		}
	}
	return list
}

// Release stops managing the clusters of rec, a record of the app, that are not in stay, and restores their servers'
// configuration. The servers must run.
func (b *Binder) Release(ctx context.Context, s *Setup, rec store.App, stay []ipc.Database) (notes []string, err error) {
	for _, db := range inCare(rec.Databases) {
		if slices.ContainsFunc(inCare(stay), func(n ipc.Database) bool { return n.Name == db.Name && n.DataDir == db.DataDir }) {
			continue
		}
		said, err := b.releaseOne(ctx, s, rec, db)
		if err != nil {
			return notes, errs.Wrap(errs.Failed, "take the cluster of database "+db.Name+" out of care", err)
		}
		for _, n := range said {
			notes = append(notes, db.Name+": "+n)
		}
	}
	return notes, nil
}

func (b *Binder) releaseOne(ctx context.Context, s *Setup, rec store.App, db ipc.Database) ([]string, error) {
	if l, ok := s.Layer(DbLayer(db)); ok {
		driver := l.Driver
		if h, held := driver.(*Held); held {
			driver = h.Driver
		}
		if p, ok := driver.(*postgres.Driver); ok && p.Mode() == postgres.Physical {
			return p.Release(ctx)
		}
	}
	of, err := containersOf(b, rec)
	if err != nil {
		return nil, err
	}
	defer of.Close()
	cfg, err := b.postgresConfig(ctx, rec, db, of) // the database never had a driver
	if err != nil {
		return nil, err
	}
	p, err := postgres.New(cfg)
	if err != nil {
		return nil, err
	}
	return p.Release(ctx)
}

// PurgeStores removes the data that drivers keep outside of the state folder for the app's present and former databases.
func (b *Binder) PurgeStores(id ipc.AppID) error {
	dirs, err := filepath.Glob(filepath.Join(b.StateDir(id), "db-*"))
	if err != nil {
		return err // the pattern is good
	}
	var failed error
	for _, dir := range dirs {
		failed = errs.Also(failed, postgres.Purge(dir))
	}
	return failed
}
