// Package redis is the driver for a Redis server, with all of its databases.
//
// It needs no file of the server and no program: it captures as a replica does,
// by asking for the server's own snapshot (RDB), and restores as a master does,
// by being the server's master for as long as it takes to send one. While the
// server follows it, clients cannot write, and the first thing the server says
// is the position that its own data ended at: so a restore begins either at
// exactly the state that it may replace, or not at all. DESIGN.md has the invariants.
//
// The package has an RDB reader of its own because a hostile server may send values of any size: each is digested as it
// comes, in bounded memory, and is never held whole.
package redis

import (
	"time"

	"mulligan/errs"
	"mulligan/failpoint"
	"mulligan/privsep"
	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/database"
)

const driverName = "redis"

// Config says which server a driver is bound to.
type Config struct {
	App, Name string // name its snapshots in Store; no slashes
	// DSN is redis://[user[:password]@]host[:port][/db], rediss:// for TLS; ?socket=PATH
	// names a unix socket instead of a host. The db is what the app uses of
	// the server; a capture holds all of them all the same.
	DSN      string
	StateDir string // absolute, the daemon's own, for this driver alone: switches under way
	Store    *cas.Store
	// Owner is whose rights the server is reached with.
	Owner privsep.User
	// Timeout is how long the server may be silent: 60 s if 0.
	Timeout   time.Duration
	Failpoint failpoint.Hook // for tests
}

// Driver captures and restores one server. For a capture the server forks, and writes down
// the state of that moment.
type Driver struct {
	*database.Driver[plan, *plan]
	cfg     Config
	server  address
	records *database.Records
	last    string // the root of the newest capture of this process
}

var (
	_ snap.Driver       = (*Driver)(nil)
	_ snap.LiveCapturer = (*Driver)(nil)
	_ snap.Differ       = (*Driver)(nil)
	_ snap.Leaver       = (*Driver)(nil)
)

// New makes the driver; it does not speak to the server.
func New(cfg Config) (*Driver, error) {
	const op = "open redis driver"
	server, err := parseDSN(cfg.DSN)
	if err != nil {
		return nil, errs.Wrap(errs.Invalid, op, err)
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = time.Minute
	}
	r, err := database.Open(database.Config{
		Driver: driverName, Noun: "redis", App: cfg.App, Name: cfg.Name, Store: cfg.Store, StateDir: cfg.StateDir, Failpoint: cfg.Failpoint,
	})
	if err != nil {
		return nil, errs.Wrap(errs.Failed, op, err)
	}
	d := &Driver{cfg: cfg, server: server, records: r}
	d.Driver = database.NewDriver(r, engine{d})
	return d, nil
}
