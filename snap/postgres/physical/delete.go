package physical

import (
	"context"

	"mulligan/errs"
	"mulligan/snap"
)

// Size is what deleting exactly these snapshots together would free, in bytes.
// Where files are cloned, what they share with others is left out.
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

// Delete drops a snapshot, and what only it needed.
func (d *Driver) Delete(ctx context.Context, id snap.SnapshotID) error {
	return d.Do(ctx, "delete cluster snapshot", func() error {
		s, err := d.records.state(id)
		if errs.KindOf(err) == errs.NotFound {
			return nil
		}
		if s.raw != nil { // nothing else rests on it
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
