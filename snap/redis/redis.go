// Package redis is the driver for a Redis server, with all of its databases.
//
// It uses no file of the server and no program. It captures as a replica does, by requesting the server's
// own snapshot (RDB), and restores as a master does, by being the server's master until the server has
// loaded a snapshot. While the server replicates, clients cannot write, and the first message of the server
// is the position at which its own data ended: so a restore begins exactly at the expected state, or not at
// all. DESIGN.md has the invariants.
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
	// names a unix socket instead of a host. The app uses the database db; a capture always holds all
	// databases of the server.
	DSN      string
	StateDir string // absolute, the daemon's own, for this driver alone: switches under way
	Store    *cas.Store
	// Owner is the user with whose rights the driver reaches the server.
	Owner privsep.User
	// Callback is how the server reaches the driver; nil: at the address from which the driver reaches the server.
	Callback *Callback
	// Timeout bounds how long the server may be silent; 0 means 60 s.
	Timeout   time.Duration
	Failpoint failpoint.Hook // for tests
}

// Driver captures and restores one server. For a capture the server forks and writes the state of that
// moment.
type Driver struct {
	*database.Driver[plan, *plan]
	cfg     Config
	server  address
	records *database.Records
	last    string // the root of the newest capture of this process
}

var (
	_ snap.Driver          = (*Driver)(nil)
	_ snap.LiveCapturer    = (*Driver)(nil)
	_ snap.Differ          = (*Driver)(nil)
	_ snap.LeftoverDropper = (*Driver)(nil)
)

// New returns a driver; it does not connect.
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
