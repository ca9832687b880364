package files

import (
	"context"

	"mulligan/errs"
	"mulligan/snap"
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
	m, err := journal.Resolve(ctx, d.cfg.Store, root.Hash)
	if err == nil {
		err = m.Save(b)
	}
	if err != nil {
		return s, workspace.Wrap(errs.Failed, op, err)
	}
	about.Mark, about.Place = "", ""
	next, err := about.root(d.rootName(as), m.Hash)
	if err != nil {
		return s, err
	}
	d.names.Lock()
	defer d.names.Unlock()
	if err := b.Commit(next); err != nil {
		return s, workspace.Wrap(errs.Failed, op, err)
	}
	return snap.Snapshot{
		ID: as, Driver: "files", Hash: m.Hash, Quiesced: about.Quiesced, Created: about.Created, Warnings: about.Warnings,
	}, nil
}
