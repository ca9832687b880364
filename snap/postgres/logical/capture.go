package logical

import (
	"context"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/database"
)

// engine implements the steps of captures and switches for Driver.
type engine struct{ d *Driver }

var _ database.Engine[*plan] = engine{}

func (e engine) Classify(op string, err error) error { return e.d.classify(op, err) }

// meta is stored in a snapshot's root.
type meta struct {
	Hash     string   `json:"hash"`
	Position string   `json:"position"`
	Identity identity `json:"identity"`
	Schema   string   `json:"schema"` // digest of the schema's text
	Stamp    string   `json:"stamp,omitempty"`
}

// maxTries bounds how often a capture starts again because tables were rewritten or dropped
// between its snapshot and its locks.
const maxTries = 5

// Read reads the committed state of the database. If nothing was written to the server since an
// earlier capture, Read returns that capture's content.
func (e engine) Read(ctx context.Context, b *cas.Batch) (database.State, error) {
	c, err := e.d.take(ctx, b)
	if err != nil {
		return database.State{}, err
	}
	hash, err := parseHash(c.meta.Hash)
	return database.State{Node: c.node, Hash: hash, Meta: c.meta, Position: c.meta.Position, Warnings: c.warnings}, err
}

// captured is a live state that is in a batch.
type captured struct {
	node     cas.Hash
	meta     meta
	warnings []string
}

// take writes the live state into b.
func (d *Driver) take(ctx context.Context, b *cas.Batch) (captured, error) {
	m, known, err := d.readOrFind(ctx, b)
	if err != nil || !known.node.IsZero() {
		return known, err
	}
	if m.State.Absent && len(d.records.Snapshots()) == 0 {
		return captured{}, errs.New(errs.NotFound, "", "the server has no database %s", d.login.Database).
			WithHint("create it, or correct the dsn")
	}
	node, err := m.store(b)
	return captured{node: node, warnings: m.warnings(), meta: meta{
		Hash: m.State.hash().String(), Position: m.Position, Identity: m.Identity, Schema: m.State.Schema, Stamp: m.stamp,
	}}, err
}

// readOrFind finds an earlier capture that certainly equals the present state, or reads that state into b.
func (d *Driver) readOrFind(ctx context.Context, b *cas.Batch) (m *manifest, known captured, err error) {
	c, err := d.connect(ctx, d.login.Database)
	if isAbsent(err) {
		m, err = d.readAbsent(ctx)
		return m, captured{}, err
	}
	if err != nil {
		return nil, captured{}, err
	}
	defer c.close()
	if known, err = d.unchanged(ctx, c, b); err != nil || !known.node.IsZero() {
		return nil, known, err
	}
	m, err = d.readIn(ctx, c, b, nil)
	return m, captured{}, err
}

// unchanged returns an earlier capture that certainly equals the state that the session sees. Its node is zero if there is none.
func (d *Driver) unchanged(ctx context.Context, c *conn, b *cas.Batch) (captured, error) {
	now, err := c.identify(ctx)
	if err != nil {
		return captured{}, err
	}
	for _, root := range d.records.Snapshots() {
		m, err := database.Meta[meta](root)
		if err != nil || !now.surely(m.Identity) || !b.Keep(root.Hash) {
			continue
		}
		held, err := load(d.cfg.Store, root.Hash)
		if err != nil {
			continue // damaged: another capture, or a new one, is used
		}
		m.Position = now.Position
		return captured{node: root.Hash, meta: m, warnings: held.warnings()}, nil
	}
	return captured{}, nil
}

// CheckStored compares the manifest of a snapshot with the hash in its root.
func (e engine) CheckStored(_ context.Context, root cas.Root, _ snap.Depth) error {
	m, err := load(e.d.cfg.Store, root.Hash)
	if err != nil {
		return err
	}
	return database.Has(root, m.State.hash())
}
