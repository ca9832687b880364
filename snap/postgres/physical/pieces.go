package physical

import (
	"os"
	"path/filepath"

	"mulligan/snap/database"
	"mulligan/snap/postgres/physical/asowner"
	"mulligan/snap/postgres/physical/asroot"
	known "mulligan/snap/postgres/physical/facts"
	"mulligan/snap/postgres/physical/pgserver"
)

// pieces are the parts of a driver; the type of each describes its responsibility. The methods of the driver and the steps of
// restores use them.
type pieces struct {
	cfg       Config
	plans     *database.Plans
	records   *records
	store     *store
	server    *server
	archive   *archive
	bases     *bases
	forks     *forks
	raws      *raws
	retention *retention
	marks     *markWriter
	carry     *carrier
}

// assemble makes the pieces of a driver. cfg must be complete.
func assemble(cfg Config) *pieces {
	p := &pieces{cfg: cfg, plans: database.FlatPlans(filepath.Join(cfg.StateDir, "switches"), "cluster", cfg.Name, cfg.Failpoint)}
	home := asowner.Home{Data: cfg.DataDir, Store: cfg.Store}
	programs := pgserver.Programs{Tools: cfg.Tools, Owner: cfg.Owner}
	if cfg.Tools == nil {
		programs.Tools = pgserver.Installed{Bin: cfg.Bin, Owner: cfg.Owner}
	}
	p.records = &records{dir: cfg.StateDir, cluster: cfg.Name, plans: p.plans,
		ward: known.Ward{Store: cfg.Store, UID: cfg.Owner.UID, GID: cfg.Owner.GID, Bin: cfg.Bin, Apart: cfg.Inside != nil}}
	p.store = &store{Home: home, owner: cfg.Owner, tools: programs.Tools, claimant: cfg.App + "/" + cfg.Name}
	if in := cfg.Inside; in != nil {
		p.store.root = &asroot.Home{Volume: in.Volume, Data: cfg.DataDir, Store: cfg.Store, UID: cfg.Owner.UID, GID: cfg.Owner.GID}
	}
	p.server = &server{Cluster: pgserver.Cluster{Programs: programs, DataDir: cfg.DataDir, Server: cfg.Server}, name: cfg.Name, dsn: cfg.DSN, store: p.store, inside: cfg.Inside}
	p.archive = &archive{cluster: cfg.Name, store: p.store, programs: programs, log: cfg.Log}
	p.bases = &bases{store: p.store, records: p.records, server: p.server, failpoint: cfg.Failpoint, log: cfg.Log}
	p.forks = &forks{store: p.store, records: p.records, archive: p.archive, bases: p.bases, programs: programs,
		folder: "forks", failpoint: cfg.Failpoint, digestLimit: cfg.DigestLimit}
	p.raws = &raws{store: p.store, records: p.records, server: p.server, failpoint: cfg.Failpoint, log: cfg.Log}
	p.carry = &carrier{}
	p.retention = &retention{carry: p.carry, store: p.store, records: p.records, server: p.server, archive: p.archive, bases: p.bases, failpoint: cfg.Failpoint}
	p.marks = &markWriter{server: p.server, records: p.records, bases: p.bases}
	return p
}

// makeFolders makes the subfolders of stateDir for the records.
func makeFolders(stateDir string) error {
	for _, dir := range []string{"markers", "bases", "kept", "switches", "conf", "raws"} {
		if err := os.MkdirAll(filepath.Join(stateDir, dir), 0o700); err != nil {
			return err
		}
	}
	return nil
}
