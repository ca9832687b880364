package physical

import (
	"context"

	"mulligan/snap"
	"mulligan/snap/postgres/physical/wal"
)

// Verify checks that a marker can be replayed: that its base backup and all of the log between the two exist, and with depth
// Full that all their bytes are unchanged. It does not check the folder that was swapped out at the marker, which only saves
// time.
func (d *Driver) Verify(ctx context.Context, id snap.SnapshotID, depth snap.Depth) error {
	return d.Do(ctx, "verify cluster snapshot", func() error {
		s, err := d.records.state(id)
		switch {
		case err != nil:
			return err
		case s.raw != nil:
			return d.raws.verify(ctx, *s.raw, depth)
		}
		return d.verify(ctx, s.marker, depth)
	})
}

func (d *Driver) verify(ctx context.Context, m marker, depth snap.Depth) error {
	size, err := d.segmentSize(ctx)
	if err != nil {
		return err
	}
	b, err := d.bases.nearest(ctx, m, size)
	if err == nil && depth == snap.Full {
		if err = d.bases.check(ctx, b); err == nil {
			err = d.archive.check(ctx, m, b, size)
		}
	}
	return err
}

// segmentSize returns the size of the log's files, which never changes.
func (d *Driver) segmentSize(ctx context.Context) (wal.Segments, error) {
	if f, err := d.records.known(); err == nil {
		return f.Segments, nil
	}
	c, err := d.server.ReadControl(ctx, d.cfg.DataDir)
	return c.Segments, err
}
