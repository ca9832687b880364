// Package sqlite is the driver for one SQLite database of an app.
//
// It never lets SQLite open a file of the app: the daemon is root, the folder
// belongs to somebody else, and SQLite follows links. It takes SQLite's own
// locks, reads the bytes, and folds the journal or the log in by itself. So a
// capture of a running app is the state after some transaction, and writers in
// WAL mode go on meanwhile. DESIGN.md has the invariants.
package sqlite

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/records"
)

const driverName = "sqlite"

// Config says which database a driver is bound to.
type Config struct {
	App, Name string // name its snapshots in Store; no slashes
	Dir       string // absolute folder, trusted: the workspace, or the folder of a database outside it
	Path      string // of the database, relative to Dir; nothing in it is trusted
	StateDir  string // the daemon's own, for this driver alone: switches under way
	Store     *cas.Store
	// Owner is the uid that Dir and the database must belong to, where the daemon
	// reaches further than the app's owner; 0: not checked.
	Owner int
	// BusyTimeout is how long to wait for other users of the database: 5 s if 0.
	BusyTimeout time.Duration
	// Seam, where set, is called before each step that lasts; an error stands
	// for the step's failure.
	Seam func(step string) error
}

// Driver captures and restores one database.
type Driver struct {
	cfg     Config
	records *records.Records

	mu   sync.Mutex // held during each method: they are rare, and the state is one
	last *captured  // the newest capture of this process
}

var (
	_ snap.Driver       = (*Driver)(nil)
	_ snap.LiveCapturer = (*Driver)(nil)
	_ snap.Differ       = (*Driver)(nil)
	_ snap.Salvager     = (*Driver)(nil)
)

// New makes the driver; it does not look at the database.
func New(cfg Config) (*Driver, error) {
	const op = "open sqlite driver"
	if !filepath.IsAbs(cfg.Dir) || !filepath.IsLocal(cfg.Path) || filepath.Clean(cfg.Path) != cfg.Path || cfg.Path == "." {
		return nil, errs.New(errs.Invalid, op, "%q in %q is not the path of a file", cfg.Path, cfg.Dir).
			WithHint("give an absolute folder, and a clean path relative to it")
	}
	if cfg.BusyTimeout == 0 {
		cfg.BusyTimeout = 5 * time.Second
	}
	r, err := records.Open(records.Config{
		Driver: driverName, App: cfg.App, Name: cfg.Name, Store: cfg.Store, StateDir: cfg.StateDir, Seam: cfg.Seam,
	})
	if err != nil {
		return nil, errs.Wrap(errs.Failed, op, err)
	}
	return &Driver{cfg: cfg, records: r}, nil
}

func (d *Driver) seam(step string) error {
	if d.cfg.Seam == nil {
		return nil
	}
	return d.cfg.Seam(step)
}

// CapturesLive is true: a capture of a running app is the state after a transaction.
func (d *Driver) CapturesLive() bool { return true }

// meta is what a snapshot's root says of it.
type meta struct {
	Hash     string   `json:"hash"`
	Identity identity `json:"identity"` // of the live files when they were captured
}

// Capture stores the live state under req.ID. With clients connected it is what
// was committed at some moment between the call and the return.
func (d *Driver) Capture(ctx context.Context, req snap.CaptureRequest) (snap.Snapshot, error) {
	const op = "capture database"
	d.mu.Lock()
	defer d.mu.Unlock()
	if !records.ValidName(string(req.ID)) {
		return snap.Snapshot{}, errs.New(errs.Invalid, op, "%q is not a snapshot id", req.ID)
	}
	b := d.cfg.Store.Begin()
	defer b.Discard()
	c, err := d.take(ctx, op, b)
	if err != nil {
		return snap.Snapshot{}, d.classify(op, err)
	}
	if err := d.commitSnapshot(ctx, op, b, req.ID, c.node, meta{c.hash.String(), c.identity}); err != nil {
		return snap.Snapshot{}, err
	}
	d.last = c
	return snap.Snapshot{
		ID: req.ID, Driver: driverName, Hash: c.hash, Position: c.position,
		Quiesced: req.Quiesced, Created: time.Now().UTC(), Warnings: c.warnings,
	}, nil
}

// commitSnapshot makes what is in b durable under a snapshot's name.
func (d *Driver) commitSnapshot(ctx context.Context, op string, b *cas.Batch, id snap.SnapshotID, node cas.Hash, m meta) error {
	data, err := json.Marshal(m)
	if err != nil {
		return errs.Wrap(errs.Internal, op, err)
	}
	if err := errors.Join(ctx.Err(), d.seam("capture: commit")); err != nil {
		return errs.Wrap(errs.Failed, op, err)
	}
	return errs.Wrap(errs.Failed, op, b.Commit(cas.Root{Name: d.records.SnapshotRoot(id), Hash: node, Meta: data}))
}

// captured is a live state that is in a batch.
type captured struct {
	node     cas.Hash
	hash     snap.Hash
	chunks   []cas.Hash
	laid     map[int]bool // the chunks that journal or log had a part in
	whole    int          // how many chunks lie within the database file as well as within the image
	identity identity
	position string
	warnings []string
}

// take puts the live state into b. The locks are gone when it returns.
func (d *Driver) take(ctx context.Context, op string, b *cas.Batch) (c *captured, err error) {
	err = d.withLive(ctx, op, false, func(l *live) (err error) {
		if err := d.seam("capture: read"); err != nil {
			return err
		}
		c = &captured{identity: l.identity, position: l.position, warnings: l.warnings}
		c.laid, c.whole = l.laid()
		var s state
		c.node, s, c.chunks, err = l.store(ctx, b, d.cfg.Path, d.known(l, c, b))
		c.hash = s.hash()
		return err
	})
	return c, err
}

// known finds the chunks that need not be read, by their number: while the
// database file is what it was at the newest capture, those that no log had a
// part in, then or now. So a capture reads what was written since.
func (d *Driver) known(l *live, now *captured, b *cas.Batch) func(int) (cas.Hash, bool) {
	last := d.last
	if last == nil || !l.sameFile(last.identity) {
		return readAll
	}
	return func(i int) (cas.Hash, bool) {
		if i >= min(now.whole, last.whole) || last.laid[i] || now.laid[i] || !b.Keep(last.chunks[i]) {
			return cas.Hash{}, false
		}
		return last.chunks[i], true
	}
}

// withLive opens the live database and calls f, once more if what it read moved.
func (d *Driver) withLive(ctx context.Context, op string, alone bool, f func(*live) error) error {
	for tries := 0; ; tries++ {
		l, err := d.openLive(ctx, op, alone)
		if err != nil {
			return err
		}
		err = f(l)
		if e := l.close(); err == nil {
			err = e
		}
		if !errors.Is(err, errMoved) {
			return err
		}
		if tries == 10 {
			return snap.Changed(op, "database "+d.cfg.Path)
		}
	}
}

func parseMeta(root cas.Root) (m meta, h snap.Hash, err error) {
	if err := json.Unmarshal(root.Meta, &m); err != nil {
		return m, h, errs.Wrap(errs.Corrupt, "read a snapshot", err)
	}
	raw, err := hex.DecodeString(strings.TrimPrefix(m.Hash, "blake3:"))
	if err != nil || copy(h[:], raw) != len(h) {
		return m, h, errs.New(errs.Corrupt, "read a snapshot", "%q is not a hash", m.Hash)
	}
	return m, h, nil
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
	s, err := load(d.cfg.Store, root.Hash)
	if err != nil {
		return errs.Wrap(errs.Failed, op, records.Damaged(err))
	}
	if _, hash, err := parseMeta(root); err != nil || hash != s.hash() {
		return errs.New(errs.Corrupt, op, "snapshot %s does not have the hash it was captured with", id).
			WithHint("use another checkpoint")
	}
	return nil
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
	if err := d.sweepSwitches(gone.Restores); err != nil {
		return d.classify(op, err)
	}
	return d.records.Sweep(gone)
}
