package physical

import (
	"context"
	"errors"

	"mulligan/errs"
	"mulligan/snap/postgres/physical/asowner"
	"mulligan/snap/postgres/physical/wal"
)

// firstChange reads the log of the live folder from p to the first record at or after end (0: to the end of the log), and
// returns the position of the first commit that changed anything. The server's own maintenance (vacuum, statistics,
// checkpoints) and the driver's markers are not changes. Log that cannot be interpreted, or no longer be read, counts as a
// change.
func (a *archive) firstChange(ctx context.Context, p place, size wal.Segments, end wal.LSN) (at wal.LSN, changed bool, err error) {
	if end != 0 && end <= p.Start {
		return 0, false, nil
	}
	dir, err := a.gather(ctx, asowner.LogLinks{First: size.Name(p.TLI, size.Number(p.Start)), Size: size})
	if err != nil {
		return 0, false, err
	}
	defer a.store.remove(ctx, dir) // if this fails, the next Sweep does it
	wrote := map[uint32]bool{}     // transactions that wrote a record that counts
	reached := end == 0
	why, err := a.programs.ReadLog(ctx, dir, p.TLI, p.Start, 0, func(rec wal.Record) bool {
		switch {
		case end != 0 && rec.At >= end:
			reached = true
		case rec.Commits() && (rec.OwnXID() || int32(rec.XID-p.XID) < 0 || wrote[rec.XID]):
			at, changed = rec.At, true
		case len(wrote) > maxOpen:
			at, changed = rec.At, true
		case rec.XID != 0 && rec.Counts():
			wrote[rec.XID] = true
		}
		return !changed && (end == 0 || !reached)
	})
	if errors.Is(err, wal.ErrUnclear) {
		why, err, reached = err.Error(), ctx.Err(), false
	}
	if err == nil && !changed && !reached { // or files that no snapshot needs were removed, so much was written
		a.log.Info("the log since a marker cannot be read, so its state counts as changed",
			"cluster", a.cluster, "timeline", p.TLI, "lsn", p.Start.String(), "why", why)
		return 0, true, nil
	}
	return at, changed, err
}

// maxOpen is the most uncommitted transactions that firstChange follows. With more of them, the state counts as changed.
const maxOpen = 1 << 20

// gather makes a folder of links to log files, from both the archive and the server's folder.
func (a *archive) gather(ctx context.Context, l asowner.LogLinks) (dir string, err error) {
	l.Home, l.Dir = a.store.Home, a.store.path("log-"+randomHex(8))
	if _, err = asowner.LinkLog.Call(ctx, a.store.owner, l); err != nil {
		return "", errs.Also(err, a.store.remove(ctx, l.Dir))
	}
	return l.Dir, nil
}

// check reads the log between a base backup and a marker. Each record has a checksum and the position of the previous record.
// The error is of kind errs.Corrupt if a record is damaged.
func (a *archive) check(ctx context.Context, m marker, b wal.Base, size wal.Segments) error {
	legs, err := a.history(ctx, m.TLI)
	if err != nil {
		return err
	}
	spans := wal.Path(legs, b.TLI, b.Start, m.LSN)
	dir, err := a.gather(ctx, asowner.LogLinks{Names: size.Names(spans)})
	if err != nil {
		return err
	}
	defer a.store.remove(ctx, dir) // if this fails, the next Sweep does it
	for _, s := range spans {
		if s.Start >= s.End {
			continue
		}
		reached := false
		each := func(rec wal.Record) bool { reached = rec.End(size) >= s.End; return !reached }
		why, err := a.programs.ReadLog(ctx, dir, s.TLI, s.Start, s.End, each)
		if err == nil && !reached { // a damaged length can make a record seem to end after s.End: only a read without a limit tells
			why, err = a.programs.ReadLog(ctx, dir, s.TLI, s.Start, 0, each)
		}
		if err == nil && !reached {
			err = errs.New(errs.Corrupt, "", "the log of timeline %d from %s to %s is damaged: %s", s.TLI, s.Start, s.End, why).WithHint("use another checkpoint")
		}
		if err != nil {
			return err
		}
	}
	return nil
}
