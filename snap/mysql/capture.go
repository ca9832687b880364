package mysql

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

// Read reads the committed state at one moment. Position identifies that moment if the server keeps a binary log.
func (e engine) Read(ctx context.Context, b *cas.Batch) (database.State, error) {
	r, err := e.d.take(ctx, b)
	if err != nil {
		return database.State{}, err
	}
	return database.State{
		Node: r.node, Hash: r.hash, Meta: meta{Hash: r.hash.String()}, Position: r.at.position, Warnings: r.warnings,
		Stored: func(root string) { e.d.proved = proof{r.at.proof, r.hash, root} },
	}, nil
}

// CheckStored reads the record of a snapshot.
func (e engine) CheckStored(_ context.Context, root cas.Root, _ snap.Depth) error {
	_, err := e.d.load(root)
	return err
}
