// Package redis is the driver for a Redis server, with all of its databases.
//
// It uses no file of the server and no program. To capture, it acts as a replica and requests the server's own snapshot (RDB).
// To restore, it acts as a master until the server has loaded a snapshot. While the server replicates, clients cannot write,
// and the server's first message has the position at which its own data ended. So a restore replaces exactly the expected
// state, or nothing. DESIGN.md lists the invariants.
//
// The package has its own RDB reader because a hostile server may send values of any size. The reader digests each value as it
// arrives, with bounded memory.
package redis

import (
	"context"
	"net"
	"time"

	"mulligan/errs"
	"mulligan/failpoint"
	"mulligan/privsep"
	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/database"
)

const driverName = "redis"

// Config names the server of a driver.
type Config struct {
	App, Name string // identify its snapshots in Store; no slashes
	// DSN is redis://[user[:password]@]host[:port][/db], or rediss:// for TLS; ?socket=PATH names a unix socket instead of a
	// host. The app uses the database db. A capture always has all databases of the server.
	DSN      string
	StateDir string // absolute; a folder of the daemon for this driver alone, with the switches under way
	Store    *cas.Store
	// Owner is the user with whose rights the driver connects to the server.
	Owner privsep.User
	// Dial connects to the server instead, if the owner does not do so by the DSN alone; nil: the owner does.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// Callback is the way from the server to the driver; nil: the address from which the driver connects to the server.
	Callback *Callback
	// Timeout bounds how long the server may be silent. Default: 60 s.
	Timeout   time.Duration
	Failpoint failpoint.Hook // for tests
}

// Driver captures and restores one server. For a capture, the server forks and writes the state of that moment.
type Driver struct {
	*database.Driver[plan, *plan]
	cfg     Config
	server  address
	records *database.Records
	last    string // name of the root of this process's newest capture
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
