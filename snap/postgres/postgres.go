// Package postgres is the driver for a PostgreSQL database of an app. It chooses between
// two modes, each a package of its own:
//
//   - logical: dumps by SQL alone. It works with any server, for one database, with no
//     privilege but its owner's. A capture reads the database.
//   - physical: positions in the server's log. It covers the whole cluster, whose files
//     the daemon manages. A capture copies nothing.
//
// This package chooses the mode.
package postgres

import (
	"context"
	"path/filepath"

	"mulligan/errs"
	"mulligan/failpoint"
	"mulligan/privsep"
	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/postgres/logical"
	"mulligan/snap/postgres/own"
	"mulligan/snap/postgres/pgtools"
	"mulligan/snap/postgres/physical"
	"mulligan/snap/postgres/physical/pgserver"
	"mulligan/snap/postgres/physical/served"
)

// Mode is a way to capture and restore the database.
type Mode string

// The modes.
const (
	Logical  Mode = "logical"
	Physical Mode = "physical"
	Auto     Mode = "auto" // physical where it is possible, else logical
)

// Config says which database a driver is bound to and what the driver may do.
type Config struct {
	App, Name string // part of its snapshots' names; no slashes
	DSN       string // a libpq connection string; it may hold a password
	Mode      Mode   // Auto if ""
	StateDir  string // absolute; the daemon's own, for this layer alone
	Store     *cas.Store
	Owner     privsep.User // logical mode logs in with this user's rights
	Private   bool         // see [logical.Config]
	Aside     Aside        // in logical mode, where the first snapshot's contents may be; or nil
	Inside    *pgtools.Inside
	// Cluster is the cluster that the daemon may manage, with its data folder and how to start
	// and stop it; nil if it may manage none. New copies App, Name, DSN, StateDir and Failpoint
	// into it. The cluster must have been prepared by [Choose].
	Cluster   *physical.Config
	Failpoint failpoint.Hook
}

// Driver captures and restores the database in its mode.
type Driver struct {
	cfg Config
	snap.Driver
	mode Mode
	why  string
}

// Mode returns Logical or Physical.
func (d *Driver) Mode() Mode { return d.mode }

// Why returns the reason for the mode, in a few words.
func (d *Driver) Why() string { return d.why }

// New returns a driver; it does not connect.
func New(cfg Config) (*Driver, error) {
	mode, why, err := choose(cfg)
	if err != nil {
		return nil, err
	}
	d := &Driver{cfg: cfg, mode: mode, why: why}
	if mode == Physical {
		d.Driver, err = cfg.physical()
	} else {
		d.Driver, err = cfg.logical()
	}
	if err != nil {
		return nil, err
	}
	return d, nil
}

func (cfg Config) logical() (snap.Driver, error) {
	c := logical.Config{
		App: cfg.App, Name: cfg.Name, DSN: cfg.DSN, StateDir: cfg.dir(Logical), Store: cfg.Store,
		Owner: cfg.Owner, Private: cfg.Private, Inside: cfg.Inside, Failpoint: cfg.Failpoint,
	}
	d, err := logical.New(c)
	if err != nil || cfg.Aside == nil {
		return d, err
	}
	return &deferred{Driver: d, cfg: c, file: asideFile(cfg.StateDir), aside: cfg.Aside}, nil
}

// choose returns the mode for a configuration without contacting the server.
func choose(cfg Config) (mode Mode, why string, err error) {
	switch {
	case cfg.Mode == Physical && cfg.Cluster == nil:
		return "", "", errs.New(errs.Denied, opOpen, "mode physical needs a cluster whose files the daemon may manage").
			WithHint("name its data folder as data_dir, and the unit that serves it if there is one, or use mode logical")
	case cfg.Mode == Logical, cfg.Mode == Physical:
		return cfg.Mode, "the app's settings name it", nil
	case cfg.Mode != Auto && cfg.Mode != "":
		return "", "", errs.New(errs.Invalid, opOpen, "the mode %q is unknown", string(cfg.Mode)).WithHint("use logical, physical or auto")
	case cfg.Cluster == nil:
		return Logical, "the app's settings name no data folder of the cluster", nil
	}
	return Physical, "the daemon may manage the files of its cluster", nil
}

const opOpen = "open postgres driver"

// Outcome is the result of Choose.
type Outcome struct {
	Mode  Mode     // Logical or Physical
	Why   string   // a few words
	Notes []string // changes made to the server's configuration, in whole sentences
}

// Choose returns the mode for a database whose cluster is named. If the mode is Physical,
// Choose configures the server for it. Mode auto falls back to Logical if the cluster's files
// cannot be managed; a server that is down is an error. Choose may be called again.
func Choose(ctx context.Context, cfg Config) (o Outcome, err error) {
	o.Mode, o.Why, err = choose(cfg)
	if err != nil || o.Mode == Logical {
		return o, err
	}
	d, err := cfg.physical()
	var restart bool
	if err == nil {
		defer d.Close()
		o.Notes, restart, err = d.Enable(ctx)
	}
	switch kind := errs.KindOf(err); {
	case cfg.Mode != Physical && (kind == errs.Unsupported || kind == errs.Denied || kind == errs.Conflict):
		return Outcome{Mode: Logical, Why: err.Error()}, nil
	case err != nil:
		return o, err
	}
	if restart {
		o.Notes = append(o.Notes, "Restart the server once at a convenient time. Checkpoints work already; until the restart a replication slot keeps the server's log.")
	}
	return o, nil
}

func (cfg Config) physical() (*physical.Driver, error) {
	c := *cfg.Cluster
	c.App, c.Name, c.DSN, c.StateDir, c.Failpoint, c.Objects = cfg.App, cfg.Name, cfg.DSN, cfg.dir(Physical), cfg.Failpoint, cfg.Store
	return physical.New(c)
}

// Recall returns the facts recorded about the cluster when Choose configured it.
func (cfg Config) Recall() (pgserver.Place, bool) { return physical.Recall(cfg.dir(Physical)) }

// dir returns the state folder of a mode. Each mode has its own, so that neither finds
// the other's files after a change of mode.
func (cfg Config) dir(m Mode) string { return filepath.Join(cfg.StateDir, string(m)) }

// Release takes back what Choose configured on the server; the snapshots stay. It returns
// the changes. The server must run.
func (d *Driver) Release(ctx context.Context) (notes []string, err error) {
	p, ok := d.Driver.(*physical.Driver)
	if !ok {
		return nil, nil
	}
	notes, restart, err := p.Release(ctx)
	if restart {
		notes = append(notes, "Archiving stays on until the server's next restart.")
	}
	return notes, err
}

// Close ends what the driver keeps for its next use. It may still be used afterwards.
func (d *Driver) Close() error {
	if p, ok := d.Driver.(*physical.Driver); ok {
		p.Close()
	}
	return nil
}

// Maintain does the mode's background work.
func (d *Driver) Maintain(ctx context.Context) error {
	if p, ok := d.Driver.(*physical.Driver); ok {
		return p.Maintain(ctx)
	}
	return nil
}

// EstimateSize returns the size of the database in logical mode, whose captures read it.
func (d *Driver) EstimateSize(ctx context.Context) (int64, error) {
	if w, ok := d.Driver.(snap.SizeEstimator); ok {
		return w.EstimateSize(ctx)
	}
	return 0, nil
}

// Salvager returns the mode's driver if it is a Salvager.
func (d *Driver) Salvager() (snap.Salvager, bool) { return snap.SalvagerOf(d.Driver) }

// Purge removes the files that physical mode stored outside of stateDir.
func Purge(stateDir string) error { return physical.Purge(filepath.Join(stateDir, string(Physical))) }

func (d *Driver) CapturesLive() bool {
	l, ok := d.Driver.(snap.LiveCapturer)
	return ok && l.CapturesLive()
}

// Diff compares two states, in logical mode.
func (d *Driver) Diff(ctx context.Context, from, to snap.SnapshotID, paths []string) ([]snap.Change, error) {
	differ, ok := d.Driver.(snap.Differ)
	if !ok {
		return nil, errs.New(errs.Unsupported, "compare database snapshots", "mode %s cannot compare", d.mode).
			WithHint("use mode logical for this database")
	}
	return differ.Diff(ctx, from, to, paths)
}

// Shape names the schema of a snapshot, in logical mode.
func (d *Driver) Shape(id snap.SnapshotID) (string, error) {
	if r, ok := d.Driver.(snap.Rehearser); ok {
		return r.Shape(id)
	}
	return "", nil
}

// Rehearse restores a snapshot beside the live database, in logical mode.
func (d *Driver) Rehearse(ctx context.Context, as snap.RestoreID, id snap.SnapshotID) error {
	r, ok := d.Driver.(snap.Rehearser)
	if !ok {
		return errs.New(errs.Unsupported, "rehearse the restore of database", "mode %s does not rehearse", d.mode).
			WithHint("nothing needs to be done: a restore in this mode replays the server's own log")
	}
	return r.Rehearse(ctx, as, id)
}

// DropLeftovers drops the databases that restores left on the server, in logical mode.
func (d *Driver) DropLeftovers(ctx context.Context) ([]string, error) {
	if l, ok := d.Driver.(snap.LeftoverDropper); ok {
		return l.DropLeftovers(ctx)
	}
	return nil, nil
}

// Adopt takes over a snapshot of another app's database, in logical mode.
func (d *Driver) Adopt(ctx context.Context, from snap.Driver, id, as snap.SnapshotID) (snap.Snapshot, error) {
	a, ok := d.Driver.(snap.Adopter)
	other, same := from.(*Driver)
	if !ok || !same {
		return snap.Snapshot{}, errs.New(errs.Unsupported, "adopt a snapshot", "snapshot %s is of another kind of database", id).
			WithHint("make the mode of the database what it was when the fork was made")
	}
	if l, ok := other.Driver.(*deferred); ok {
		if err := l.need(ctx, id); err != nil {
			return snap.Snapshot{}, err
		}
	}
	return a.Adopt(ctx, other.Driver, id, as)
}

// ServerKind describes the server.
func (d *Driver) ServerKind(ctx context.Context) (string, error) {
	if s, ok := d.Driver.(snap.ServerDriver); ok {
		return s.ServerKind(ctx)
	}
	p, ok := d.Driver.(*physical.Driver)
	if !ok {
		return "", errs.New(errs.Internal, "", "mode %s has no servers", d.mode)
	}
	client, err := logical.New(logical.Config{
		App: d.cfg.App, Name: d.cfg.Name, DSN: d.cfg.DSN, StateDir: d.cfg.dir(Logical), Store: d.cfg.Store, Owner: d.cfg.Owner,
	})
	if err != nil {
		return "", err
	}
	text, err := client.ServerKind(ctx)
	if err != nil {
		return "", err
	}
	kind, err := own.Parse(text)
	if err != nil {
		return "", err
	}
	folder, at, role, err := p.ServedBy(ctx)
	kind.Cluster = &own.Cluster{Folder: folder, Bin: at.Bin, UID: at.Owner.UID, GID: at.Owner.GID, Bootstrap: role}
	return kind.String(), err
}

// Answers returns nil when the server answers.
func (d *Driver) Answers(ctx context.Context) error {
	if s, ok := d.Driver.(snap.ServerDriver); ok {
		return s.Answers(ctx)
	}
	_, err := d.ServerKind(ctx)
	return err
}

// Transporter returns the mode's driver as a Transporter.
func (d *Driver) Transporter() (snap.Transporter, bool) { return snap.TransporterOf(d.Driver) }

// ServerSource returns the mode's driver if it is a ServerSource.
func (d *Driver) ServerSource() (snap.ServerSource, bool) { return snap.ServerSourceOf(d.Driver) }

// KeepServer copies the data of a server that SeedServer made, before the server is started. See [served.Keep].
func KeepServer(ctx context.Context, s snap.Seeded, name, as string) (kept bool, err error) {
	return served.Keep(ctx, privsep.User{UID: s.UID, GID: s.GID}, s.Folder, name, as)
}

// MeasureServer returns the bytes on disk that DropServer would free.
func MeasureServer(ctx context.Context, s snap.Seeded, name string) (int64, error) {
	return served.Measure(ctx, privsep.User{UID: s.UID, GID: s.GID}, s.Folder, name)
}

// DropServer removes the data of a server of a fork's own, which a driver's SeedServer made.
func DropServer(ctx context.Context, s snap.Seeded, name string) error {
	return served.Drop(ctx, privsep.User{UID: s.UID, GID: s.GID}, filepath.Join(s.Folder, name))
}

var (
	_ snap.Driver          = (*Driver)(nil)
	_ snap.LiveCapturer    = (*Driver)(nil)
	_ snap.Differ          = (*Driver)(nil)
	_ snap.Maintainer      = (*Driver)(nil)
	_ snap.Rehearser       = (*Driver)(nil)
	_ snap.LeftoverDropper = (*Driver)(nil)
	_ snap.Adopter         = (*Driver)(nil)
	_ snap.ServerDriver    = (*Driver)(nil)
)
