// Package sqlite is the driver for one SQLite database of an app.
//
// SQLite never opens a file of the app: the daemon is root, the folder belongs to a user, and SQLite
// follows links. Instead, the driver takes SQLite's own locks, reads the bytes, and applies the
// journal or the log itself. So a capture of a running app is the state after some transaction, and
// writers in WAL mode need not wait. DESIGN.md has the invariants.
package sqlite

import (
	"path/filepath"
	"time"

	"mulligan/errs"
	"mulligan/failpoint"
	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/database"
)

const driverName = "sqlite"

// Config says which database a driver is bound to.
type Config struct {
	App, Name string // name its snapshots in Store; no slashes
	Dir       string // absolute folder, trusted: the workspace, or the folder of a database outside it
	Path      string // of the database, relative to Dir; nothing in it is trusted
	StateDir  string // the daemon's own, for this driver alone: switches under way
	Store     *cas.Store
	// Owner is the uid that Dir and the database must belong to, if the daemon may read more than
	// the app's owner; 0: not checked.
	Owner int
	Group int // gid that files from other hosts get, with Owner
	// BusyTimeout bounds the wait for other users of the database; 0 means 5 s.
	BusyTimeout time.Duration
	Failpoint   failpoint.Hook // for tests
}

// Driver captures and restores one database. A capture of a running app is the state after some
// transaction.
type Driver struct {
	*database.Driver[plan, *plan]
	cfg     Config
	records *database.Records
	last    *captured // the newest capture of this process
}

var (
	_ snap.Driver       = (*Driver)(nil)
	_ snap.LiveCapturer = (*Driver)(nil)
	_ snap.Differ       = (*Driver)(nil)
	_ snap.Salvager     = (*Driver)(nil)
)

// New returns a driver; it does not open the database.
func New(cfg Config) (*Driver, error) {
	const op = "open sqlite driver"
	if !filepath.IsAbs(cfg.Dir) || !filepath.IsLocal(cfg.Path) || filepath.Clean(cfg.Path) != cfg.Path || cfg.Path == "." {
		return nil, errs.New(errs.Invalid, op, "%q in %q is not the path of a file", cfg.Path, cfg.Dir).
			WithHint("give an absolute folder, and a clean path relative to it")
	}
	if cfg.BusyTimeout == 0 {
		cfg.BusyTimeout = 5 * time.Second
	}
	r, err := database.Open(database.Config{
		Driver: driverName, App: cfg.App, Name: cfg.Name, Store: cfg.Store, StateDir: cfg.StateDir, Failpoint: cfg.Failpoint,
	})
	if err != nil {
		return nil, errs.Wrap(errs.Failed, op, err)
	}
	d := &Driver{cfg: cfg, records: r}
	d.Driver = database.NewDriver(r, engine{d})
	return d, nil
}
