package mysql

import (
	"context"

	"mulligan/snap"
)

var _ snap.Rehearser = (*Driver)(nil)

// Shape returns a digest of the snapshot's definitions, or "" if the snapshot has no database.
func (d *Driver) Shape(id snap.SnapshotID) (string, error) {
	root, err := d.records.Snapshot("read a snapshot", id)
	if err != nil {
		return "", err
	}
	st, err := d.load(root)
	if err != nil || st.Absent {
		return "", err
	}
	return st.shape(), nil
}

// Rehearse loads the snapshot beside the live database, as Prepare does, compares it and drops it. It holds no lock of the
// driver, so a restore does not wait for it.
func (d *Driver) Rehearse(ctx context.Context, as snap.RestoreID, id snap.SnapshotID) error {
	const op = "rehearse the restore of database"
	root, err := d.records.Snapshot(op, id)
	if err != nil {
		return err
	}
	st, err := d.load(root)
	if err != nil || st.Absent {
		return d.classify(op, err)
	}
	if err := d.restorable(ctx, &st.state, &state{}); err != nil {
		return d.classify(op, err)
	}
	return d.RehearseWith(ctx, as, id, func(*plan) error { return d.stage(ctx, as, st) })
}
