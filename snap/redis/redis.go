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
	Timeout time.Duration
	// Seam, where set, is called before each step that lasts; an error stands
	// for the step's failure.
	Seam func(step string) error
}

// Driver captures and restores one server.
type Driver struct {
	cfg     Config
	server  address
	records *records.Records

	mu   sync.Mutex // held during each method: they are rare, and the state is one
	last string     // the root of the newest capture of this process
}

var (
	_ snap.Driver       = (*Driver)(nil)
	_ snap.LiveCapturer = (*Driver)(nil)
	_ snap.Differ       = (*Driver)(nil)
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
	r, err := records.Open(records.Config{
		Driver: driverName, App: cfg.App, Name: cfg.Name, Store: cfg.Store, StateDir: cfg.StateDir, Seam: cfg.Seam,
	})
	if err != nil {
		return nil, errs.Wrap(errs.Failed, op, err)
	}
	return &Driver{cfg: cfg, server: server, records: r}, nil
}

func (d *Driver) seam(step string) error {
	if d.cfg.Seam == nil {
		return nil
	}
	return d.cfg.Seam(step)
}

// CapturesLive is true: the server forks, and writes down the state of that moment.
func (d *Driver) CapturesLive() bool { return true }

// Capture stores the live state under req.ID: that of one moment between the
// call and the return, which Position names.
func (d *Driver) Capture(ctx context.Context, req snap.CaptureRequest) (snap.Snapshot, error) {
	const op = "capture redis"
	d.mu.Lock()
	defer d.mu.Unlock()
	if !records.ValidName(string(req.ID)) {
		return snap.Snapshot{}, errs.New(errs.Invalid, op, "%q is not a snapshot id", req.ID)
	}
	b := d.cfg.Store.Begin()
	defer b.Discard()
	c, err := d.take(ctx, b)
	if err == nil {
		err = errors.Join(ctx.Err(), d.seam("capture: commit"))
	}
	if err != nil {
		return snap.Snapshot{}, d.classify(op, err)
	}
	data, err := json.Marshal(c.meta)
	if err != nil {
		return snap.Snapshot{}, errs.Wrap(errs.Internal, op, err)
	}
	root := d.records.SnapshotRoot(req.ID)
	if err := b.Commit(cas.Root{Name: root, Hash: c.node, Meta: data}); err != nil {
		return snap.Snapshot{}, errs.Wrap(errs.Failed, op, err)
	}
	d.last = root
	return snap.Snapshot{
		ID: req.ID, Driver: driverName, Hash: c.hash, Position: c.meta.Position.String(),
		Quiesced: req.Quiesced, Created: time.Now().UTC(), Warnings: c.warnings,
	}, nil
}

// captured is a live state that is in a batch.
type captured struct {
	node     cas.Hash
	hash     snap.Hash
	meta     meta
	warnings []string
}

// take puts the live state into b, or finds it in the newest capture.
func (d *Driver) take(ctx context.Context, b *cas.Batch) (captured, error) {
	c, err := d.dial(ctx)
	if err != nil {
		return captured{}, err
	}
	defer c.close()
	if err := c.supported(); err != nil {
		return captured{}, err
	}
	warnings, err := c.warnings()
	if err != nil {
		return captured{}, err
	}
	if old, ok := d.unchanged(c, b); ok {
		old.warnings = warnings
		return old, nil
	}
	if err := d.seam("capture: read"); err != nil {
		return captured{}, err
	}
	s := newStorer(b)
	sum, err := d.read(ctx, s, nil)
	if err != nil {
		return captured{}, err
	}
	defer sum.scanned.close()
	node, err := s.node()
	return captured{node: node, hash: sum.hash(), meta: sum.meta(), warnings: warnings}, err
}

// unchanged finds the newest capture's content where the server's position
// proves that nothing was written since.
func (d *Driver) unchanged(c *conn, b *cas.Batch) (captured, bool) {
	root, err := d.cfg.Store.Root(d.last)
	if err != nil {
		return captured{}, false
	}
	m, hash, err := parseMeta(root)
	if err != nil {
		return captured{}, false
	}
	now, err := c.position()
	if err != nil || now != m.Position || !b.Keep(root.Hash) {
		return captured{}, false
	}
	return captured{node: root.Hash, hash: hash, meta: m}, true
}

// Verify checks what is stored for a snapshot.
func (d *Driver) Verify(ctx context.Context, id snap.SnapshotID, depth snap.Depth) error {
	const op = "verify redis snapshot"
	root, err := d.records.Snapshot(op, id)
	if err != nil {
		return err
	}
	if err := d.cfg.Store.Check(ctx, root.Name, depth == snap.Full); err != nil {
		return errs.Wrap(errs.Failed, op, err)
	}
	if depth == snap.Quick {
		_, _, err = parseMeta(root)
		return errs.Wrap(errs.Corrupt, op, err)
	}
	s, err := d.scanStored(ctx, root, nil)
	s.close()
	return errs.Wrap(errs.Failed, op, err)
}

// Size is what deleting exactly these snapshots together would free, in bytes.
func (d *Driver) Size(_ context.Context, ids ...snap.SnapshotID) (int64, error) {
	return d.records.Size(ids...)
}

// Delete drops a snapshot.
func (d *Driver) Delete(_ context.Context, id snap.SnapshotID) error { return d.records.Delete(id) }

// Sweep drops the snapshots and switches that gone names. A switch that
// was cut short while the server followed it lets the server go.
func (d *Driver) Sweep(ctx context.Context, gone snap.Gone) error {
	const op = "sweep redis snapshots"
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
