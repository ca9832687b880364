// Package mysql is the driver for one database of a MariaDB or MySQL server.
//
// It reads the database in one consistent snapshot, and loads a restored state into a second database beside the live one,
// DATABASE__mulligan_ID. Commit exchanges all tables by one RENAME TABLE, which is atomic for clients, and recreates the
// target's views, routines, triggers and events. DESIGN.md lists the invariants.
package mysql

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

const driverName = "mysql"

// Config names the database of a driver.
type Config struct {
	App, Name string // identify its snapshots in Store; no slashes
	// DSN is mysql://[user[:password]@][host[:port]]/database, with ?socket=PATH for a unix socket and ?tls=true. The parts
	// that it omits come from the owner's ~/.my.cnf. Without a password, the owner logs in as the user with the owner's name
	// (unix_socket).
	DSN      string
	StateDir string // absolute; a folder of the daemon for this driver alone, with the switches under way
	Store    *cas.Store
	// Owner is the user with whose rights the driver reads ~/.my.cnf and connects to the server.
	Owner privsep.User
	// Dial connects to the server instead, if the owner does not do so by the DSN alone; nil: the owner does.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// Home is the folder of the owner's .my.cnf. Default: the owner's home folder.
	Home string
	// BusyTimeout bounds the wait for other users of the tables. Default: 30 s.
	BusyTimeout time.Duration
	Failpoint   failpoint.Hook // for tests
}

// Driver captures and restores one database. A capture of a running app is the state of InnoDB tables after a transaction; the
// driver warns about other tables.
type Driver struct {
	*database.Driver[plan, *plan]
	cfg     Config
	login   login
	records *database.Records
	proved  proof // the newest reading of the live state by this process

	abandoned time.Duration // abandonedAfter, but in tests
	digesting func()        // for tests: called before the rows of a table without a key are digested
}

// proof is the state that the live one certainly has while the server's log stays at the same position.
type proof struct {
	at   string // position; "" proves nothing
	hash snap.Hash
	root string // name of the capture's root; "" if there is none
}

var (
	_ snap.Driver          = (*Driver)(nil)
	_ snap.LiveCapturer    = (*Driver)(nil)
	_ snap.Differ          = (*Driver)(nil)
	_ snap.LeftoverDropper = (*Driver)(nil)
	_ snap.ServerDriver    = (*Driver)(nil)
)

// New returns a driver; it does not connect.
func New(cfg Config) (*Driver, error) {
	const op = "open mysql driver"
	l, err := parseDSN(cfg.DSN)
	if err != nil {
		return nil, errs.Wrap(errs.Invalid, op, err)
	}
	if cfg.BusyTimeout == 0 {
		cfg.BusyTimeout = 30 * time.Second
	}
	r, err := database.Open(database.Config{
		Driver: driverName, App: cfg.App, Name: cfg.Name, Store: cfg.Store, StateDir: cfg.StateDir, Failpoint: cfg.Failpoint,
	})
	if err != nil {
		return nil, errs.Wrap(errs.Failed, op, err)
	}
	d := &Driver{cfg: cfg, login: l, records: r, abandoned: abandonedAfter}
	d.Driver = database.NewDriver(r, engine{d})
	return d, nil
}
