package physical

import (
	"context"

	"mulligan/errs"
	"mulligan/snap"
)

// Size returns how many bytes would become free if exactly these snapshots were deleted together. If files are cloned, extents
// that they share with remaining files are not counted.
func (d *Driver) Size(ctx context.Context, ids ...snap.SnapshotID) (int64, error) {
	const op = "measure cluster snapshots"
	var n int64
	err := d.Do(ctx, op, func() error {
		for _, id := range ids {
			if _, err := d.records.state(id); err != nil {
				return err
			}
		}
		g, err := d.retention.freed(ctx, ids)
		if err == nil {
			n, err = d.store.measure(ctx, d.retention.paths(g))
		}
		return err
	})
	return n, err
}

// Delete removes a snapshot, and everything in the store that only this snapshot needed. If the server was stopped for a raw snapshot,
// and the restore ends before it has a plan, Delete starts the server again.
func (d *Driver) Delete(ctx context.Context, id snap.SnapshotID) error {
	return d.Do(ctx, "delete cluster snapshot", func() error {
		if err := d.raws.restart(ctx, id); err != nil {
			return err
		}
		s, err := d.records.state(id)
		if errs.KindOf(err) == errs.NotFound {
			return nil
		}
		if errs.KindOf(err) == errs.Corrupt {
			return errs.Also(d.records.forget(id), d.retention.prune(ctx))
		}
		if s.raw != nil { // nothing else depends on it
			return d.retention.discard(ctx, garbage{raws: []raw{*s.raw}})
		}
		g, err := d.retention.freed(ctx, []snap.SnapshotID{id})
		if err == nil {
			err = d.records.drop("markers", string(id))
		}
		if err == nil {
			err = d.retention.discard(ctx, g)
		}
		return err
	})
}
