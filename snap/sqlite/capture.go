package sqlite

import (
	"context"
	"errors"

	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/database"
)

// engine is the driver, as the steps of captures and switches see it.
type engine struct{ d *Driver }

var _ database.Engine[*plan] = engine{}

// Classify gives err a kind and a hint.
func (e engine) Classify(op string, err error) error {
	if err == nil {
		return nil
	}
	return e.d.classify(op, err)
}

// meta is what a snapshot's root says of it.
type meta struct {
	Hash     string   `json:"hash"`
	Identity identity `json:"identity"` // of the live files when they were captured
}

// Read reads the database. With clients connected it is what was committed at some moment
// of the call.
func (e engine) Read(ctx context.Context, b *cas.Batch) (database.State, error) {
	c, err := e.d.take(ctx, b)
	if err != nil {
		return database.State{}, err
	}
	return database.State{
		Node: c.node, Hash: c.hash, Meta: meta{c.hash.String(), c.identity}, Position: c.position, Warnings: c.warnings,
		Stored: func(string) { e.d.last = c },
	}, nil
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
func (d *Driver) take(ctx context.Context, b *cas.Batch) (c *captured, err error) {
	err = d.withLive(ctx, false, func(l *live) (err error) {
		if err := d.cfg.Failpoint.At("capture: read"); err != nil {
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
func (d *Driver) withLive(ctx context.Context, alone bool, f func(*live) error) error {
	for tries := 0; ; tries++ {
		l, err := d.openLive(ctx, alone)
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
			return snap.Changed("", "database "+d.cfg.Path)
		}
	}
}

func parseMeta(root cas.Root) (m meta, h snap.Hash, err error) {
	if m, err = database.Meta[meta](root); err == nil {
		h, err = database.HashOf(root)
	}
	return m, h, err
}

// CheckStored compares the record of a snapshot with the hash of its root.
func (e engine) CheckStored(_ context.Context, root cas.Root, _ snap.Depth) error {
	s, err := load(e.d.cfg.Store, root.Hash)
	if err != nil {
		return err
	}
	return database.Has(root, s.hash())
}
