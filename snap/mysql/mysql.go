// Package mysql is the driver for one database of a MariaDB or MySQL server.
//
// It reads the database by itself, in one consistent snapshot, and writes a
// restored one beside the live one, as DATABASE__mulligan_ID. Commit exchanges all
// tables by one RENAME TABLE, which no client can see a part of, and makes views,
// routines, triggers and events the target's. DESIGN.md has the invariants.
package mysql

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"mulligan/errs"
	"mulligan/privsep"
	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/records"
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
	// Owner is whose rights ~/.my.cnf is read and the server reached with.
	Owner privsep.User
	// Home is where the owner's .my.cnf is: the owner's home folder if "".
	Home string
	// BusyTimeout is how long to wait for other users of the tables: 30 s if 0.
	BusyTimeout time.Duration
	// Seam, where set, is called before each step that lasts; an error stands
	// for the step's failure.
	Seam func(step string) error
}

// Driver captures and restores one database.
type Driver struct {
	cfg     Config
	login   login
	records *records.Records

	mu     sync.Mutex // held during each method: they are rare, and the state is one
	proved proof      // the newest reading of the live state by this process
}

// proof is a state that the live one surely is for as long as the server's log stands where it stood.
type proof struct {
	at   string // "" proves nothing
	hash snap.Hash
	root string // of the capture that holds it; "": none
}

var (
	_ snap.Driver       = (*Driver)(nil)
	_ snap.LiveCapturer = (*Driver)(nil)
	_ snap.Differ       = (*Driver)(nil)
	_ snap.Leaver       = (*Driver)(nil)
)

// New makes the driver; it does not speak to the server.
func New(cfg Config) (*Driver, error) {
	const op = "open mysql driver"
	l, err := parseDSN(cfg.DSN)
	if err != nil {
		return nil, errs.Wrap(errs.Invalid, op, err)
	}
	if cfg.BusyTimeout == 0 {
		cfg.BusyTimeout = 30 * time.Second
	}
	r, err := records.Open(records.Config{
		Driver: driverName, App: cfg.App, Name: cfg.Name, Store: cfg.Store, StateDir: cfg.StateDir, Seam: cfg.Seam,
	})
	if err != nil {
		return nil, errs.Wrap(errs.Failed, op, err)
	}
	return &Driver{cfg: cfg, login: l, records: r}, nil
}

func (d *Driver) seam(step string) error {
	if d.cfg.Seam == nil {
		return nil
	}
	return d.cfg.Seam(step)
}

// CapturesLive is true: a capture of a running app is the state after a
// transaction, as far as the tables are InnoDB's; others are warned of.
func (d *Driver) CapturesLive() bool { return true }

// Capture stores the live state under req.ID: what was committed at one moment
// between the call and the return, which Position names where the server keeps a log.
func (d *Driver) Capture(ctx context.Context, req snap.CaptureRequest) (snap.Snapshot, error) {
	const op = "capture database"
	d.mu.Lock()
	defer d.mu.Unlock()
	if !records.ValidName(string(req.ID)) {
		return snap.Snapshot{}, errs.New(errs.Invalid, op, "%q is not a snapshot id", req.ID)
	}
	if err := ctx.Err(); err != nil {
		return snap.Snapshot{}, errs.Wrap(errs.Unavailable, op, err)
	}
	b := d.cfg.Store.Begin()
	defer b.Discard()
	r, err := d.take(ctx, b)
	if err == nil {
		err = errors.Join(ctx.Err(), d.seam("capture: commit"))
	}
	if err != nil {
		return snap.Snapshot{}, d.classify(op, err)
	}
	data, err := json.Marshal(meta{Hash: r.hash.String()})
	if err != nil {
		return snap.Snapshot{}, errs.Wrap(errs.Internal, op, err)
	}
	root := d.records.SnapshotRoot(req.ID)
	if err := b.Commit(cas.Root{Name: root, Hash: r.node, Meta: data}); err != nil {
		return snap.Snapshot{}, d.classify(op, err)
	}
	d.proved = proof{r.at.proof, r.hash, root}
	return snap.Snapshot{
		ID: req.ID, Driver: driverName, Hash: r.hash, Position: r.at.position,
		Quiesced: req.Quiesced, Created: time.Now().UTC(), Warnings: r.warnings,
	}, nil
}

// Verify checks what is stored for a snapshot.
func (d *Driver) Verify(ctx context.Context, id snap.SnapshotID, depth snap.Depth) error {
	const op = "verify database snapshot"
	root, err := d.records.Snapshot(op, id)
	if err != nil {
		return err
	}
	if err := d.cfg.Store.Check(ctx, root.Name, depth == snap.Full); err != nil {
		return errs.Wrap(errs.Failed, op, err)
	}
	_, err = d.load(root)
	return errs.Wrap(errs.Failed, op, err)
}

// Size is what deleting exactly these snapshots together would free, in bytes.
func (d *Driver) Size(_ context.Context, ids ...snap.SnapshotID) (int64, error) {
	return d.records.Size(ids...)
}

// Delete drops a snapshot.
func (d *Driver) Delete(_ context.Context, id snap.SnapshotID) error { return d.records.Delete(id) }

// Sweep drops the snapshots and switches that gone names.
func (d *Driver) Sweep(ctx context.Context, gone snap.Gone) error {
	const op = "sweep database snapshots"
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return errs.Wrap(errs.Unavailable, op, err)
	}
	if err := d.sweepSwitches(ctx, gone.Restores); err != nil {
		return d.classify(op, err)
	}
	return d.records.Sweep(gone)
}
