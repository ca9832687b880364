package duckdb

import (
	"context"
	"io"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/database"
)

// chunkSize is that of the pieces that files are stored in: DuckDB's blocks have 256 KiB, behind
// three headers of 4 KiB.
const chunkSize = 64 << 10

// meta is what a snapshot's root says of it.
type meta struct {
	Hash string `json:"hash"`
}

// Read stores both files.
func (e engine) Read(ctx context.Context, b *cas.Batch) (database.State, error) {
	l, err := e.d.open()
	if err != nil {
		return database.State{}, err
	}
	defer l.close()
	var contents []cas.Hash
	s, err := e.d.read(ctx, l, func() sink {
		contents = nil
		return func(r io.Reader) (int64, error) {
			h, n, err := e.d.cfg.Store.PutReader(b, r, chunkSize)
			contents = append(contents, h)
			return n, err
		}
	})
	if err != nil {
		return database.State{}, err
	}
	node, err := b.Node(s.encode(), contents)
	return database.State{Node: node, Hash: s.hash(), Meta: meta{s.hash().String()}}, err
}

// CheckStored compares the state with the hash of its root. The store checks the contents.
func (e engine) CheckStored(_ context.Context, root cas.Root, _ snap.Depth) error {
	s, err := e.d.load(root)
	if err != nil {
		return err
	}
	if h, err := database.HashOf(root); err != nil || h != s.hash() {
		return errs.New(errs.Corrupt, "", "the snapshot does not have the hash it was captured with").WithHint("use another checkpoint")
	}
	return nil
}

// write writes a stored content.
func (d *Driver) write(ctx context.Context, content cas.Hash, to io.Writer) error {
	r, err := d.cfg.Store.OpenStream(content)
	if err != nil {
		return database.Damaged(err)
	}
	_, err = io.Copy(to, &bounded{ctx, r})
	return err
}
