// Package logical is the driver for one PostgreSQL database by means of SQL
// alone: any server that a DSN reaches, no access to its files, no superuser.
//
// A snapshot is what a dump holds: the schema as pg_dump gives it, and each
// table's rows, read in one exported snapshot of the server and kept once
// however many snapshots hold them. A restore builds a second database beside
// the live one, proves it, and exchanges the names. DESIGN.md has the invariants.
package logical

import (
	"runtime"
	"time"

	"mulligan/errs"
	"mulligan/failpoint"
	"mulligan/privsep"
	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/database"
	"mulligan/snap/postgres/pgwire"
)

const driverName = "postgres"

// Config says which database a driver is bound to.
type Config struct {
	App, Name string // name its snapshots in Store; no slashes
	// DSN is a URL (postgres://…) or keywords and values, as libpq takes them,
	// of one host. It may hold a password, which is shown nowhere.
	DSN      string
	StateDir string // absolute; the daemon's own, for this driver alone: switches under way
	Store    *cas.Store
	// Owner is whose rights the server is reached with, files that the DSN names
	// are read with, and the dump programs run with.
	Owner privsep.User
	// BinDirs are where to look for pg_dump: the usual places and PATH if none.
	BinDirs []string
	// Jobs is how many connections read or write rows at once: by the CPUs if 0.
	Jobs int
	// LockTimeout is how long to wait for a table that a migration has locked: 10 s if 0.
	LockTimeout time.Duration
	Failpoint   failpoint.Hook // for tests
}

// Driver captures and restores one database. A capture of a running app sees what was
// committed at one instant.
type Driver struct {
	*database.Driver[plan, *plan]
	cfg     Config
	login   *login
	records *database.Records
	tools   toolbox

	refusal pgwire.Refusal // why the server's words were too much, for classify

	exported func(snapshot string) // where set, told the server's name of the snapshot being read
}

var (
	_ snap.Differ = (*Driver)(nil)
	_ snap.Leaver = (*Driver)(nil)
)

// New makes the driver; it does not connect.
func New(cfg Config) (*Driver, error) {
	const op = "open postgres driver"
	l, err := parseDSN(cfg.DSN)
	if err != nil {
		return nil, errs.Wrap(errs.Invalid, op, err)
	}
	if cfg.Jobs <= 0 {
		cfg.Jobs = min(4, runtime.NumCPU())
	}
	if cfg.LockTimeout <= 0 {
		cfg.LockTimeout = 10 * time.Second
	}
	r, err := database.Open(database.Config{
		Driver: driverName, App: cfg.App, Name: cfg.Name, Store: cfg.Store, StateDir: cfg.StateDir, Failpoint: cfg.Failpoint,
	})
	if err != nil {
		return nil, errs.Wrap(errs.Failed, op, err)
	}
	d := &Driver{cfg: cfg, login: l, records: r, tools: toolbox{dirs: cfg.BinDirs, owner: cfg.Owner}}
	d.Driver = database.NewDriver(r, engine{d})
	return d, errs.Wrap(errs.Invalid, op, d.bind())
}
