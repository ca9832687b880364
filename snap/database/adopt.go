package database

import (
	"context"
	"time"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/cas"
)

// holder is a driver whose snapshots are in a content store, under the names of its [Records].
type holder interface{ snapshots() *Records }

func (d *Driver[T, P]) snapshots() *Records { return d.records }

// Adopt takes over a snapshot of a database of the same engine. See [snap.Adopter].
func (d *Driver[T, P]) Adopt(ctx context.Context, from snap.Driver, id, as snap.SnapshotID) (s snap.Snapshot, err error) {
	op := "adopt " + d.records.noun
	other, ok := from.(holder)
	if !ok || other.snapshots().store != d.records.store || other.snapshots().driver != d.records.driver {
		return s, errs.New(errs.Unsupported, op, "snapshot %s is not of a %s database in the same content store", id, d.records.driver).
			WithHint("both apps must have the same owner")
	}
	if !ValidName(string(as)) {
		return s, errs.New(errs.Invalid, op, "%q is not a snapshot id", as)
	}
	root, err := other.snapshots().Snapshot(op, id)
	if err != nil {
		return s, err
	}
	s = snap.Snapshot{ID: as, Driver: d.records.driver, Created: time.Now().UTC()}
	if s.Hash, err = HashOf(root); err != nil {
		return s, err
	}
	return s, errs.Wrap(errs.Failed, op, d.records.keep(cas.Root{Name: d.records.SnapshotRoot(as), Hash: root.Hash, Meta: root.Meta}))
}
