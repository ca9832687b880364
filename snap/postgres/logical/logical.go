// Package logical is the driver for one PostgreSQL database by means of SQL
// alone: any server that a DSN reaches, no access to its files, no superuser.
//
// A snapshot is what a dump holds: the schema as pg_dump gives it, and each
// table's rows, read in one exported snapshot of the server and kept once
// however many snapshots hold them. A restore builds a second database beside
// the live one, proves it, and exchanges the names. DESIGN.md has the invariants.
package logical

import (
	"context"
	"encoding/json"
	"errors"
	"runtime"
	"sync"
	"time"

	"mulligan/errs"
	"mulligan/privsep"
	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/postgres/pgwire"
	"mulligan/snap/records"
)

const driverName = "postgres"

// Config says which database a driver is bound to.
type Config struct {
	App, Name string // name its snapshots in Store; no slashes
	// DSN is a URL (postgres://…) or keywords and values, as libpq takes them,
	// of one host. It may hold a password, which is shown nowhere.
	DSN      string
	StateDir string // absolute; the daemon's own, for this driver alone: switches under way
	Store    *cas.Store
	// Owner is whose rights the server is reached with, files that the DSN names
	// are read with, and the dump programs run with.
	Owner privsep.User
	// BinDirs are where to look for pg_dump: the usual places and PATH if none.
	BinDirs []string
	// Jobs is how many connections read or write rows at once: by the CPUs if 0.
	Jobs int
	// LockTimeout is how long to wait for a table that a migration has locked: 10 s if 0.
	LockTimeout time.Duration
	// Seam, where set, is called before each step that lasts; an error stands
	// for the step's failure.
	Seam func(step string) error
}

// Driver captures and restores one database.
type Driver struct {
	cfg     Config
	login   *login
	records *records.Records
	tools   toolbox

	mu sync.Mutex // held during each method: they are rare, and the state is one

	refusal pgwire.Refusal // why the server's words were too much, for classify

	exported func(snapshot string) // where set, told the server's name of the snapshot being read
}

var (
	_ snap.Driver       = (*Driver)(nil)
	_ snap.LiveCapturer = (*Driver)(nil)
	_ snap.Differ       = (*Driver)(nil)
	_ snap.Warmer       = (*dbSwitch)(nil)
)

// New makes the driver; it does not connect.
func New(cfg Config) (*Driver, error) {
	const op = "open postgres driver"
	l, err := parseDSN(cfg.DSN)
	if err != nil {
		return nil, errs.Wrap(errs.Invalid, op, err)
	}
	if cfg.Jobs <= 0 {
		cfg.Jobs = min(4, runtime.NumCPU())
	}
	if cfg.LockTimeout <= 0 {
		cfg.LockTimeout = 10 * time.Second
	}
	r, err := records.Open(records.Config{
		Driver: driverName, App: cfg.App, Name: cfg.Name, Store: cfg.Store, StateDir: cfg.StateDir, Seam: cfg.Seam,
	})
	if err != nil {
		return nil, errs.Wrap(errs.Failed, op, err)
	}
	d := &Driver{cfg: cfg, login: l, records: r, tools: toolbox{dirs: cfg.BinDirs}}
	return d, errs.Wrap(errs.Invalid, op, d.bind())
}

func (d *Driver) seam(step string) error {
	if d.cfg.Seam == nil {
		return nil
	}
	return d.cfg.Seam(step)
}

// CapturesLive is true: a capture sees what was committed at one instant.
func (d *Driver) CapturesLive() bool { return true }

// meta is what a snapshot's root says of it.
type meta struct {
	Hash     string   `json:"hash"`
	Position string   `json:"position"`
	Identity identity `json:"identity"`
	Schema   string   `json:"schema"` // digest of the schema's text
}

// maxTries bounds how often a capture begins again because tables were
// rewritten or dropped between its snapshot and its locks.
const maxTries = 5

// Capture stores what is committed in the database now under req.ID. When
// nothing was written to the server since an earlier capture, it shares that
// one's content and reads nothing.
func (d *Driver) Capture(ctx context.Context, req snap.CaptureRequest) (snap.Snapshot, error) {
	const op = "capture database"
	d.mu.Lock()
	defer d.mu.Unlock()
	if !records.ValidName(string(req.ID)) {
		return snap.Snapshot{}, errs.New(errs.Invalid, op, "%q is not a snapshot id", req.ID)
	}
	b := d.cfg.Store.Begin()
	defer b.Discard()
	c, err := d.take(ctx, b)
	if err != nil {
		return snap.Snapshot{}, d.classify(op, err)
	}
	data, err := json.Marshal(c.meta)
	if err != nil {
		return snap.Snapshot{}, errs.Wrap(errs.Internal, op, err)
	}
	if err := errors.Join(ctx.Err(), d.seam("capture: commit")); err != nil {
		return snap.Snapshot{}, d.classify(op, err)
	}
	if err := b.Commit(cas.Root{Name: d.records.SnapshotRoot(req.ID), Hash: c.node, Meta: data}); err != nil {
		return snap.Snapshot{}, errs.Wrap(errs.Failed, op, err)
	}
	hash, err := parseHash(c.meta.Hash)
	return snap.Snapshot{
		ID: req.ID, Driver: driverName, Hash: hash, Position: c.meta.Position,
		Quiesced: req.Quiesced, Created: time.Now().UTC(), Warnings: c.warnings,
	}, err
}

// captured is a live state that is in a batch.
type captured struct {
	node     cas.Hash
	meta     meta
	warnings []string
}

// take puts the live state into b.
func (d *Driver) take(ctx context.Context, b *cas.Batch) (captured, error) {
	if c, err := d.unchanged(ctx, b); err != nil || !c.node.IsZero() {
		return c, err
	}
	m, err := d.readLive(ctx, b, nil)
	if err != nil {
		return captured{}, err
	}
	if m.State.Absent && len(d.records.Snapshots()) == 0 {
		return captured{}, errs.New(errs.NotFound, "", "the server has no database %s", d.login.database).
			WithHint("create it, or correct the dsn")
	}
	node, err := m.store(b)
	return captured{node: node, warnings: m.warnings(), meta: meta{
		Hash: m.State.hash().String(), Position: m.Position, Identity: m.Identity, Schema: m.State.Schema,
	}}, err
}

// unchanged finds a capture's node that surely holds the present state.
func (d *Driver) unchanged(ctx context.Context, b *cas.Batch) (captured, error) {
	conn, err := d.connect(ctx, d.login.database)
	if isAbsent(err) {
		return captured{}, nil
	}
	if err != nil {
		return captured{}, err
	}
	defer conn.close()
	now, err := conn.identify(ctx)
	if err != nil {
		return captured{}, err
	}
	for _, root := range d.records.Snapshots() {
		m, err := parseMeta(root)
		if err != nil || !now.surely(m.Identity) || !b.Keep(root.Hash) {
			continue
		}
		held, err := load(d.cfg.Store, root.Hash)
		if err != nil {
			continue // damaged: read it anew
		}
		m.Position = now.Position
		return captured{node: root.Hash, meta: m, warnings: held.warnings()}, nil
	}
	return captured{}, nil
}

func parseMeta(root cas.Root) (m meta, err error) {
	err = json.Unmarshal(root.Meta, &m)
	return m, errs.Wrap(errs.Corrupt, "read a snapshot", err)
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
	m, err := load(d.cfg.Store, root.Hash)
	if err != nil {
		return errs.Wrap(errs.Failed, op, err)
	}
	if meta, err := parseMeta(root); err != nil || meta.Hash != m.State.hash().String() {
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

// Sweep drops the snapshots and switches that gone names. The server is
// asked only when a switch has to go.
func (d *Driver) Sweep(ctx context.Context, gone snap.Gone) error {
	const op = "sweep database snapshots"
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.sweepSwitches(ctx, gone.Restores); err != nil {
		return d.classify(op, err)
	}
	return d.records.Sweep(gone)
}
