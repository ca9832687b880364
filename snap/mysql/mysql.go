// Package mysql is the driver for one database of a MariaDB or MySQL server.
//
// It reads the database in one consistent snapshot, and loads a restored state into a second database
// beside the live one, DATABASE__mulligan_ID. Commit exchanges all tables by one RENAME TABLE, which is
// atomic for clients, and recreates the target's views, routines, triggers and events. DESIGN.md has
// the invariants.
package mysql

import (
	"time"

	"mulligan/errs"
	"mulligan/failpoint"
	"mulligan/privsep"
	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/database"
)

const driverName = "mysql"

// Config says which database a driver is bound to.
type Config struct {
	App, Name string // name its snapshots in Store; no slashes
	// DSN is mysql://[user[:password]@][host[:port]]/database, with ?socket=PATH for a unix
	// socket and ?tls=true. What it leaves open comes from the owner's ~/.my.cnf;
	// without a password the owner logs in as the user of that name (unix_socket).
	DSN      string
	StateDir string // absolute, the daemon's own, for this driver alone: switches under way
	Store    *cas.Store
	// Owner is the user with whose rights the driver reads ~/.my.cnf and reaches the server.
	Owner privsep.User
	// Home is the folder of the owner's .my.cnf: the owner's home folder if "".
	Home string
	// BusyTimeout bounds the wait for other users of the tables; 0 means 30 s.
	BusyTimeout time.Duration
	Failpoint   failpoint.Hook // for tests
}

// Driver captures and restores one database. A capture of a running app is the state after some
// transaction for InnoDB tables; the driver warns of other tables.
type Driver struct {
	*database.Driver[plan, *plan]
	cfg     Config
	login   login
	records *database.Records
	proved  proof // the newest reading of the live state by this process
}

// proof records a state that the live one surely has while the server's log stays at the same position.
type proof struct {
	at   string // "" proves nothing
	hash snap.Hash
	root string // name of the capture's root; "": none
}

var (
	_ snap.Driver          = (*Driver)(nil)
	_ snap.LiveCapturer    = (*Driver)(nil)
	_ snap.Differ          = (*Driver)(nil)
	_ snap.LeftoverDropper = (*Driver)(nil)
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
	d := &Driver{cfg: cfg, login: l, records: r}
	d.Driver = database.NewDriver(r, engine{d})
	return d, nil
}
