package redis

import (
	"context"

	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/database"
)

// engine implements the steps of captures and switches for Driver.
type engine struct{ d *Driver }

var _ database.Engine[*plan] = engine{}

// Classify gives err a kind and a hint.
func (e engine) Classify(op string, err error) error { return e.d.classify(op, err) }

// Read requests the server's state, or finds it in the newest capture.
func (e engine) Read(ctx context.Context, b *cas.Batch) (s database.State, err error) {
	c, err := e.d.dial(ctx)
	if err != nil {
		return s, err
	}
	defer c.close()
	if err := c.supported(); err != nil {
		return s, err
	}
	warnings, err := c.warnings()
	if err != nil {
		return s, err
	}
	s, ok := e.unchanged(c, b)
	if !ok {
		s, err = e.readAll(ctx, b)
	}
	s.Warnings, s.Stored = warnings, func(root string) { e.d.last = root }
	return s, err
}

// unchanged returns the newest capture's content if the server's position proves that nothing was
// written since.
func (e engine) unchanged(c *conn, b *cas.Batch) (s database.State, ok bool) {
	root, err := e.d.cfg.Store.Root(e.d.last)
	if err != nil {
		return s, false
	}
	m, hash, err := parseMeta(root)
	if err != nil {
		return s, false
	}
	now, err := c.position()
	if err != nil || now != m.Position || !b.Keep(root.Hash) {
		return s, false
	}
	return database.State{Node: root.Hash, Hash: hash, Meta: m, Position: now.String()}, true
}

func (e engine) readAll(ctx context.Context, b *cas.Batch) (s database.State, err error) {
	if err := e.d.cfg.Failpoint.At("capture: read"); err != nil {
		return s, err
	}
	into := newStorer(b)
	sum, err := e.d.read(ctx, into, nil)
	if err != nil {
		return s, err
	}
	defer sum.scanned.close()
	node, err := into.node()
	return database.State{Node: node, Hash: sum.hash(), Meta: sum.meta(), Position: sum.at.String()}, err
}

// CheckStored reads the metadata of a snapshot and, unless depth is Quick, the content.
func (e engine) CheckStored(ctx context.Context, root cas.Root, depth snap.Depth) error {
	if depth == snap.Quick {
		_, _, err := parseMeta(root)
		return err
	}
	s, err := e.d.scanStored(ctx, root, nil)
	s.close()
	return err
}
