package files

import (
	"context"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/files/journal"
	"mulligan/snap/files/workspace"
)

// Adopt stores a snapshot of another app's files as one of this app. A marker is stored as a manifest, because the journal to
// which it belongs is the other app's.
func (d *Driver) Adopt(ctx context.Context, from snap.Driver, id, as snap.SnapshotID) (s snap.Snapshot, err error) {
	const op = "adopt files"
	other, ok := from.(*Driver)
	if !ok || other.cfg.Store != d.cfg.Store {
		return s, errs.New(errs.Unsupported, op, "snapshot %s is not of files in the same content store", id).
			WithHint("both apps must have the same owner")
	}
	if err := checkID(op, string(as)); err != nil {
		return s, err
	}
	root, about, err := other.root(op, id)
	if err != nil {
		return s, err
	}
	b := d.cfg.Store.Begin()
	defer b.Discard()
	hash, err := saveManifest(ctx, d.cfg.Store, b, root.Hash)
	if err != nil {
		return s, workspace.Wrap(errs.Failed, op, err)
	}
	return d.put(op, b, as, hash, about)
}

// saveManifest adds to b the nodes that the manifest of the snapshot with the root hash lacks in the store, and returns the
// manifest's hash. b then keeps the whole snapshot.
func saveManifest(ctx context.Context, s *cas.Store, b *cas.Batch, root snap.Hash) (snap.Hash, error) {
	m, err := journal.Resolve(ctx, s, root)
	if err == nil {
		err = m.Save(b)
	}
	if err != nil {
		return snap.Hash{}, err
	}
	return m.Hash, nil
}

// put commits b with the snapshot as, whose manifest has the given hash.
func (d *Driver) put(op string, b *cas.Batch, as snap.SnapshotID, hash snap.Hash, about meta) (s snap.Snapshot, err error) {
	about.Mark, about.Place = "", "" // these are of the journal of another app
	next, err := about.root(d.rootName(as), hash)
	if err != nil {
		return s, err
	}
	d.names.Lock()
	defer d.names.Unlock()
	if err := b.Commit(next); err != nil {
		return s, workspace.Wrap(errs.Failed, op, err)
	}
	return snap.Snapshot{
		ID: as, Driver: "files", Hash: hash, Quiesced: about.Quiesced, Created: about.Created, Warnings: about.Warnings,
	}, nil
}
