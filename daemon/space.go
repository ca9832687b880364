package daemon

import (
	"context"

	"mulligan/daemon/records"
	"mulligan/daemon/store"
	"mulligan/errs"
	"mulligan/snap"
)

// packing is how many times smaller than the live state a capture is at best.
const packing = 8

// fits fails when a checkpoint of the app surely cannot be stored: then its
// unit need not be stopped to find out. Warm stores the files next, and fails by
// itself; what a layer shares with its last snapshot costs nothing; so it is first
// captures of databases that count, at the least that they could come to.
func (d *Daemon) fits(ctx context.Context, a *app) error {
	cps, err := d.store.Checkpoints(ctx, a.rec().ID)
	if err != nil {
		return err
	}
	need, err := d.firsts(ctx, a, cps)
	if err != nil {
		return err
	}
	if err := d.store.HasFree(ctx, need+records.Reserve); err != nil {
		return err
	}
	return d.fitsLimit(ctx, a, cps, need)
}

// firsts is what the first captures of the app's databases need at the least, in bytes.
func (d *Daemon) firsts(ctx context.Context, a *app, cps []store.Checkpoint) (need int64, err error) {
	for _, l := range a.layers() {
		w, ok := l.Driver.(snap.SizeEstimator)
		if !ok || len(cps) > 0 && holds(cps[0], l.Name) {
			continue
		}
		n, err := w.EstimateSize(ctx)
		if err != nil {
			return 0, err
		}
		need += n / packing
	}
	return need, nil
}

// fitsLimit fails when what is pinned leaves no room within max_bytes, or the
// first snapshots alone are larger.
func (d *Daemon) fitsLimit(ctx context.Context, a *app, cps []store.Checkpoint, need int64) error {
	limit := a.rec().Retention.MaxBytes
	if limit <= 0 {
		return nil
	}
	var pinned []store.Checkpoint
	for _, cp := range cps {
		if cp.Pinned {
			pinned = append(pinned, cp)
		}
	}
	kept := int64(0)
	if len(pinned) > 0 {
		all, err := a.size(ctx, cps...)
		if err != nil {
			return err
		}
		if all > limit { // else there is room whatever is pinned
			if kept, err = a.size(ctx, pinned...); err != nil {
				return err
			}
		}
	}
	if kept+need > limit {
		return errs.New(errs.Conflict, "see what fits", "max_bytes is %d, pinned checkpoints hold %d, and this one needs %d at the least", limit, kept, need).
			WithHint("unpin or delete some, or raise max_bytes; the app was not stopped")
	}
	return nil
}

func holds(cp store.Checkpoint, name snap.Layer) bool {
	_, ok := cp.Snapshot(name)
	return ok
}
