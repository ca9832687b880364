// Package logical is the driver for one PostgreSQL database that uses SQL only. It works with any server that a DSN reaches,
// without access to its files and without a superuser.
//
// A snapshot has the contents of a dump: pg_dump's schema, and the rows of each table. They are read in one exported snapshot
// of the server, and stored once however many snapshots have them. A restore builds a second database on the server, compares
// it with the snapshot, and exchanges the names of the two databases. DESIGN.md lists the invariants.
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
	"mulligan/snap/postgres/pglogin"
	"mulligan/snap/postgres/pgtools"
	"mulligan/snap/postgres/pgwire"
)

const driverName = "postgres"

// Config names the database of a driver.
type Config struct {
	App, Name string // identify its snapshots in Store; no slashes
	// DSN is a URL (postgres://…) or keywords and values, as for libpq, with one host. It may contain a password, which no
	// output shows.
	DSN      string
	StateDir string // absolute; a folder of the daemon for this driver alone, with the switches under way
	Store    *cas.Store
	// Owner is the user with whose rights the driver connects to the server, reads the files that the DSN names, and runs the
	// dump programs.
	Owner privsep.User
	// Private says that the server is behind a socket in a folder that the daemon may enter, and its owner may not: the driver
	// connects itself, and the dump programs get the folder open.
	Private bool
	// Inside is the container in which the server is; nil: in none that can be entered.
	Inside *pgtools.Inside
	// BinDirs are the folders to search for pg_dump. Default: the usual folders and PATH.
	BinDirs []string
	// Jobs is the number of connections that read or write rows in parallel. Default: by the number of CPUs.
	Jobs int
	// LockTimeout bounds the wait for a table that a migration has locked. Default: 10 s.
	LockTimeout time.Duration
	Failpoint   failpoint.Hook // for tests
}

// Driver captures and restores one database. A capture of a running app has the committed state at one moment.
type Driver struct {
	*database.Driver[plan, *plan]
	cfg     Config
	login   *pglogin.Settings
	records *database.Records
	tools   *pgtools.Tools

	refusal pgwire.Refusal // the newest limit that the server exceeded, for classify

	abandoned time.Duration // abandonedAfter, but in tests

	exported func(snapshot string) // for tests: called with the server's name of the snapshot being read
}

var (
	_ snap.Differ          = (*Driver)(nil)
	_ snap.LeftoverDropper = (*Driver)(nil)
	_ snap.ServerDriver    = (*Driver)(nil)
)

// New returns a driver; it does not connect.
func New(cfg Config) (*Driver, error) {
	const op = "open postgres driver"
	l, err := pglogin.Parse(cfg.DSN)
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
	d := &Driver{cfg: cfg, login: l, records: r, abandoned: abandonedAfter}
	d.tools = &pgtools.Tools{Dirs: cfg.BinDirs, Owner: cfg.Owner, Inside: cfg.Inside, Private: cfg.Private}
	d.Driver = database.NewDriver(r, engine{d})
	return d, errs.Wrap(errs.Invalid, op, d.bind())
}
