package mysql

import (
	"context"
	"time"

	"mulligan/snap"
	"mulligan/snap/records"
)

var _ snap.Rehearser = (*Driver)(nil)

// Shape names a snapshot's definitions. It is "" where there was no database.
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

// rehearsalDrop bounds how long the copy that a rehearsal made is dropped. A sweep drops what
// is left.
const rehearsalDrop = 10 * time.Second

// Rehearse loads the snapshot beside the live database, as Prepare does, compares it and
// drops it again. It holds no lock of the driver: a restore need not wait for it.
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
	if err := d.restorable(ctx, &st.state); err != nil {
		return d.classify(op, err)
	}
	p := &plan{Plan: records.NewPlan(snap.RestoreRequest{ID: as, Target: id, Base: id}, records.Preparing, nil)}
	err = d.stage(ctx, p, st)
	short, cancel := context.WithTimeout(context.WithoutCancel(ctx), rehearsalDrop)
	defer cancel()
	if e := d.drop(short, p); err == nil {
		err = e
	}
	return d.classify(op, err)
}

// restorable refuses what could not be exchanged, whatever the other state is.
func (d *Driver) restorable(ctx context.Context, st *state) error {
	s, err := d.connect(ctx)
	if err != nil {
		return err
	}
	defer s.end()
	if err := s.foreign(ctx); err != nil {
		return err
	}
	if err := broken(st, &state{}); err != nil {
		return err
	}
	return st.referred()
}
