// Package postgres is the driver for a PostgreSQL database of an app. It has
// two ways, each a package of its own:
//
//   - logical: dumps, by SQL alone. Any server, one database, no privilege but
//     its owner's. A capture reads the database.
//   - physical: positions in the server's log. The whole cluster, whose files the
//     daemon manages. A capture copies nothing.
//
// This package chooses.
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
	"mulligan/snap/postgres/physical"
	"mulligan/snap/postgres/physical/pgserver"
)

// Mode is a way to capture and restore.
type Mode string

// The modes.
const (
	Logical  Mode = "logical"
	Physical Mode = "physical"
	Auto     Mode = "auto" // physical where it is possible, else logical
)

// Config says which database a driver is bound to, and what is allowed.
type Config struct {
	App, Name string // name its snapshots; no slashes
	DSN       string // as libpq takes them; it may hold a password
	Mode      Mode   // Auto if ""
	StateDir  string // absolute; the daemon's own, for this layer alone
	Store     *cas.Store
	Owner     privsep.User // whose rights are used to log in, in logical mode
	// Cluster is the cluster that the daemon may manage, with its folder and how
	// to start and stop it: nil where it may not. App, Name, DSN, StateDir and
	// Failpoint are taken from here. It must have been taken into care: see [Choose].
	Cluster   *physical.Config
	Failpoint failpoint.Hook
}

// Driver captures and restores the database in the mode that was chosen.
type Driver struct {
	snap.Driver
	mode Mode
	why  string
}

// Mode is the mode that was chosen: Logical or Physical.
func (d *Driver) Mode() Mode { return d.mode }

// Why says why, in a few words.
func (d *Driver) Why() string { return d.why }

// New makes a driver; it does not connect.
func New(cfg Config) (*Driver, error) {
	mode, why, err := choose(cfg)
	if err != nil {
		return nil, err
	}
	d := &Driver{mode: mode, why: why}
	if mode == Physical {
		d.Driver, err = cfg.physical()
	} else {
		d.Driver, err = logical.New(logical.Config{
			App: cfg.App, Name: cfg.Name, DSN: cfg.DSN, StateDir: cfg.dir(Logical), Store: cfg.Store,
			Owner: cfg.Owner, Failpoint: cfg.Failpoint,
		})
	}
	if err != nil {
		return nil, err
	}
	return d, nil
}

// choose gives the mode that a configuration stands for, without looking at the server.
func choose(cfg Config) (mode Mode, why string, err error) {
	switch {
	case cfg.Mode == Physical && cfg.Cluster == nil:
		return "", "", errs.New(errs.Denied, opOpen, "mode physical needs a cluster whose files the daemon may manage").
			WithHint("name its data folder as data_dir, and the unit that serves it if there is one, or use mode logical")
	case cfg.Mode == Logical, cfg.Mode == Physical:
		return cfg.Mode, "as the app asks", nil
	case cfg.Mode != Auto && cfg.Mode != "":
		return "", "", errs.New(errs.Invalid, opOpen, "there is no mode %q", string(cfg.Mode)).WithHint("use logical, physical or auto")
	case cfg.Cluster == nil:
		return Logical, "no data folder of its cluster is named", nil
	}
	return Physical, "the daemon may manage the files of its cluster", nil
}

const opOpen = "open postgres driver"

// Outcome is what taking a cluster into care came to.
type Outcome struct {
	Mode  Mode     // Logical or Physical
	Why   string   // a few words
	Notes []string // what was changed in the server's configuration, in whole sentences
}

// Choose finds the mode for a database whose cluster is named, and where that is
// Physical takes the cluster into care. Mode auto falls back to Logical where the
// cluster cannot be handled as files; that its server is down is an error. It may
// be called again.
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
		o.Notes = append(o.Notes, "Restart the server once, when it suits: until then a replication slot keeps its log, and checkpoints are good already.")
	}
	return o, nil
}

func (cfg Config) physical() (*physical.Driver, error) {
	c := *cfg.Cluster
	c.App, c.Name, c.DSN, c.StateDir, c.Failpoint = cfg.App, cfg.Name, cfg.DSN, cfg.dir(Physical), cfg.Failpoint
	return physical.New(c)
}

// Recall gives what is known of the cluster since it was taken into care.
func (cfg Config) Recall() (pgserver.Place, bool) { return physical.Recall(cfg.dir(Physical)) }

// dir is where a mode keeps its state: each in a folder of its own, so that a
// change of mode leaves nothing that the other one would take for its own.
func (cfg Config) dir(m Mode) string { return filepath.Join(cfg.StateDir, string(m)) }

// Release takes the cluster out of care, if it is in any; its snapshots stay. It
// says what that changed. The server must run.
func (d *Driver) Release(ctx context.Context) (notes []string, err error) {
	p, ok := d.Driver.(*physical.Driver)
	if !ok {
		return nil, nil
	}
	notes, restart, err := p.Release(ctx)
	if restart {
		notes = append(notes, "That archiving was switched on ends with the server's next restart.")
	}
	return notes, err
}

// Maintain does what is to be done in the background, every few seconds.
func (d *Driver) Maintain(ctx context.Context) error {
	if p, ok := d.Driver.(*physical.Driver); ok {
		return p.Maintain(ctx)
	}
	return nil
}

// EstimateSize is the size of the database, where that is what a first capture reads.
func (d *Driver) EstimateSize(ctx context.Context) (int64, error) {
	if w, ok := d.Driver.(snap.SizeEstimator); ok {
		return w.EstimateSize(ctx)
	}
	return 0, nil
}

// Salvager returns the driver of the mode, where that can keep what it cannot read.
func (d *Driver) Salvager() (snap.Salvager, bool) { return snap.SalvagerOf(d.Driver) }

// Purge removes what is stored outside of stateDir for a database that had it.
func Purge(stateDir string) error { return physical.Purge(filepath.Join(stateDir, string(Physical))) }

// CapturesLive reports whether a capture of a running app is consistent.
func (d *Driver) CapturesLive() bool {
	l, ok := d.Driver.(snap.LiveCapturer)
	return ok && l.CapturesLive()
}

// Diff says what differs between two states, where the mode can.
func (d *Driver) Diff(ctx context.Context, from, to snap.SnapshotID, paths []string) ([]snap.Change, error) {
	differ, ok := d.Driver.(snap.Differ)
	if !ok {
		return nil, errs.New(errs.Unsupported, "compare database snapshots", "mode %s cannot compare", d.mode).
			WithHint("use mode logical for this database")
	}
	return differ.Diff(ctx, from, to, paths)
}

// Shape names the schema of a snapshot, in the mode that rehearses.
func (d *Driver) Shape(id snap.SnapshotID) (string, error) {
	if r, ok := d.Driver.(snap.Rehearser); ok {
		return r.Shape(id)
	}
	return "", nil
}

// Rehearse restores a snapshot beside the live database, in the mode that can.
func (d *Driver) Rehearse(ctx context.Context, as snap.RestoreID, id snap.SnapshotID) error {
	r, ok := d.Driver.(snap.Rehearser)
	if !ok {
		return errs.New(errs.Unsupported, "rehearse the restore of database", "mode %s does not rehearse", d.mode).
			WithHint("nothing needs to be done: a restore in this mode replays the server's own log")
	}
	return r.Rehearse(ctx, as, id)
}

// Leftovers drops what restores left on the server, in mode logical.
func (d *Driver) Leftovers(ctx context.Context) ([]string, error) {
	if l, ok := d.Driver.(snap.Leaver); ok {
		return l.Leftovers(ctx)
	}
	return nil, nil
}

var (
	_ snap.Driver       = (*Driver)(nil)
	_ snap.LiveCapturer = (*Driver)(nil)
	_ snap.Differ       = (*Driver)(nil)
	_ snap.Maintainer   = (*Driver)(nil)
	_ snap.Rehearser    = (*Driver)(nil)
	_ snap.Leaver       = (*Driver)(nil)
)
