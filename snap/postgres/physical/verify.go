package physical

import (
	"context"
	"errors"
	"os/exec"
	"strconv"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/postgres/physical/asowner"
	"mulligan/snap/postgres/physical/wal"
)

// Verify checks that a marker can be replayed: that its base and all of the log
// between them are there, and with Full that each byte of them is as it was
// written. The folder that was swapped out at a marker is only a shorter way.
func (d *Driver) Verify(ctx context.Context, id snap.SnapshotID, depth snap.Depth) error {
	return d.Do(ctx, "verify cluster snapshot", func() error {
		s, err := d.records.state(id)
		switch {
		case err != nil:
			return err
		case s.raw != nil:
			return d.verifyRaw(ctx, *s.raw, depth)
		}
		return d.verify(ctx, s.marker, depth)
	})
}

func (d *Driver) verify(ctx context.Context, m marker, depth snap.Depth) error {
	size, err := d.segmentSize(ctx)
	if err != nil {
		return err
	}
	b, err := d.reachable(ctx, m, size)
	if err == nil && depth == snap.Full {
		if err = d.checkBase(ctx, b); err == nil {
			err = d.checkLog(ctx, m, b, size)
		}
	}
	return err
}

// segmentSize is how large the log's files are, which never changes.
func (d *Driver) segmentSize(ctx context.Context) (wal.Segments, error) {
	if f, err := d.records.known(); err == nil {
		return f.Segments, nil
	}
	c, err := d.server.ReadControl(ctx, d.cfg.DataDir)
	return c.Segments, err
}

// checkLog reads the log between a base and a marker; each record has a checksum
// and the place of the one before it.
func (d *Driver) checkLog(ctx context.Context, m marker, b wal.Base, size wal.Segments) error {
	legs, err := d.history(ctx, m.TLI)
	if err != nil {
		return err
	}
	spans := wal.Path(legs, b.TLI, b.Start, m.LSN)
	dir, err := d.gather(ctx, asowner.LogLinks{Names: size.Names(spans)})
	if err != nil {
		return err
	}
	defer d.store.remove(ctx, dir) // else the next Sweep does it
	for _, s := range spans {
		if s.Start >= s.End {
			continue
		}
		// Quiet, it fails at the first record before the end that is not whole.
		_, err := d.server.Output(ctx, "pg_waldump", "-q", "-p", dir, "-t", strconv.Itoa(int(s.TLI)), "-s", s.Start.String(), "-e", s.End.String())
		if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && ctx.Err() == nil {
			return errs.New(errs.Corrupt, "", "the log of timeline %d from %s to %s is damaged: %v", s.TLI, s.Start, s.End, err).
				WithHint("use another checkpoint")
		} else if err != nil {
			return err
		}
	}
	return nil
}
