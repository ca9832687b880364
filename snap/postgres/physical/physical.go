// Package physical is the driver for a whole PostgreSQL cluster whose history
// the daemon keeps: its write-ahead log, archived as it is written, and base
// copies of its data folder. A snapshot is a marker, a named place in the log.
// A restore forks: the nearest base on the marker's own line of timelines is
// cloned and replayed up to the marker beside the running server, and then the
// two data folders change places while the server is down for a moment. The steps
// of a restore, their plans and what is swept are package database's; markers are
// not in the content store, so captures, sizes and retention are this package's own.
// DESIGN.md has the invariants and the crash windows.
package physical

import (
	"context"
	"log/slog"
	"path/filepath"
	"strings"

	"mulligan/errs"
	"mulligan/failpoint"
	"mulligan/privsep"
	"mulligan/snap"
	"mulligan/snap/database"
	"mulligan/snap/postgres/physical/pgserver"
)

const driverName = "postgres"

// Config says which cluster a driver is bound to. In this mode a cluster
// belongs to one app alone: all its databases go back together.
type Config struct {
	App, Name string // name the owner of the cluster; no slashes
	DSN       string // of a superuser, straight to the server (no pooler)
	DataDir   string // absolute; its parent folder must be writable to the server's user
	// StateDir is the daemon's own, for this driver alone: markers, plans, sums.
	StateDir string
	// Store holds the archived log, bases and forks. The server's user owns and
	// reaches it, and it is on DataDir's file system: DataDir + ".mulligan" if "".
	Store  string
	Server pgserver.Server
	Bin    string       // folder of the server's programs, as /usr/lib/postgresql/15/bin
	Owner  privsep.User // who the server runs as
	// MaxReplay is how much log, in bytes, may follow a base before Maintain takes a
	// new one. 0 is 128 MiB where files are cloned, and 1 GiB where they are copied.
	MaxReplay int64
	// DigestLimit is up to what size of all databases together, in bytes, a restore's
	// proof also compares every row: 64 MiB if 0, never if negative.
	DigestLimit int64
	Failpoint   failpoint.Hook // for tests: called ahead of each step that lasts
	Log         *slog.Logger   // slog.Default() if nil
}

// Driver captures and restores one cluster. Its methods are what other packages call; the work is done by its pieces, and the
// steps of a restore by engine. It is safe for concurrent use.
type Driver struct {
	*database.Switcher[plan, *plan, state] // its Do is called by each method but for the copying of a base
	*pieces
	left bool // under the lock of Do: the cluster was taken out of care: nothing is to be done to its server
}

var (
	_ snap.Driver          = (*Driver)(nil)
	_ snap.LiveCapturer    = (*Driver)(nil)
	_ snap.Salvager        = (*Driver)(nil)
	_ snap.LeftoverDropper = (*Driver)(nil)
)

// New makes the driver; it does not look at the cluster.
func New(cfg Config) (*Driver, error) {
	const op = "open postgres driver"
	if err := cfg.complete(op); err != nil {
		return nil, err
	}
	if err := makeFolders(cfg.StateDir); err != nil {
		return nil, errs.Wrap(errs.Failed, op, err)
	}
	p := assemble(cfg)
	e := engine{p}
	return &Driver{Switcher: database.NewSwitcher[plan](p.plans, e, e, e.check), pieces: p}, nil
}

// complete fills in what was left open in the configuration. It returns an error if something in it cannot be.
func (cfg *Config) complete(op string) error {
	for _, name := range []string{cfg.App, cfg.Name} {
		if !database.ValidName(name) {
			return errs.New(errs.Invalid, op, "%q is not a name", name)
		}
	}
	if cfg.Store == "" {
		cfg.Store = pgserver.StoreOf(cfg.DataDir)
	}
	for _, dir := range []string{cfg.DataDir, cfg.Store, cfg.StateDir, cfg.Bin} {
		if !filepath.IsAbs(dir) || filepath.Clean(dir) != dir {
			return errs.New(errs.Invalid, op, "%q is not an absolute, clean path", dir)
		}
		if strings.ContainsAny(dir, "'%\\\n") {
			return errs.New(errs.Invalid, op, "%q holds a character that cannot be part of the server's archive_command", dir)
		}
	}
	if cfg.Server == nil {
		return errs.New(errs.Invalid, op, "nothing can start and stop the server")
	}
	if cfg.DigestLimit == 0 {
		cfg.DigestLimit = 64 << 20
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	return nil
}

// Close ends the connection that captures use. The driver may be used again.
func (d *Driver) Close() {
	_ = d.Do(context.Background(), "", func() error { // which does not fail
		d.marks.hangUp()
		return nil
	})
}

// CapturesLive is true: a marker of a running app is the state after a transaction.
func (d *Driver) CapturesLive() bool { return true }
