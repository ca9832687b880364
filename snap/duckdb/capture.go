package duckdb

import (
	"context"
	"io"

	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/database"
)

// Read reads and stores both files.
func (e engine) Read(ctx context.Context, b *cas.Batch) (database.State, error) {
	l, err := e.d.open()
	if err != nil {
		return database.State{}, err
	}
	defer l.dir.Close() // it was only read
	var contents []cas.Hash
	s, err := e.d.read(ctx, l, func() sink {
		contents = nil
		return func(r io.Reader) (int64, error) {
			h, n, err := e.d.cfg.Store.PutReader(b, r, 64<<10) // DuckDB's blocks have 256 KiB
			contents = append(contents, h)
			return n, err
		}
	})
	if err != nil {
		return database.State{}, err
	}
	node, err := b.Node(s.encode(), contents)
	return database.State{Node: node, Hash: s.hash(), Meta: map[string]string{"hash": s.hash().String()}}, err
}

// CheckStored compares the state with the hash in its root. The store checks the contents.
func (e engine) CheckStored(_ context.Context, root cas.Root, _ snap.Depth) error {
	s, err := e.d.load(root)
	if err != nil {
		return err
	}
	return database.Has(root, s.hash())
}

// write writes a stored content to to.
func (d *Driver) write(content cas.Hash, to io.Writer) error {
	r, err := d.cfg.Store.OpenStream(content)
	if err != nil {
		return database.Damaged(err)
	}
	_, err = io.Copy(to, r)
	return err
}
