package checkpoint

import (
	"context"

	"mulligan/daemon/app"
	"mulligan/daemon/records"
	"mulligan/daemon/store"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/snap"
)

// packing is the assumed best compression: a capture takes at least an eighth of the live state's
// size.
const packing = 8

// fits returns an error if a checkpoint of the app certainly cannot be stored, so that the unit
// is not stopped for nothing. fits looks only at the first captures of databases, at their
// smallest possible size: Warm stores the files and fails by itself, and later captures share
// their content with the last snapshot.
func (svc *Service) fits(ctx context.Context, a *app.App) error {
	cps, err := svc.store.Checkpoints(ctx, a.Rec().ID)
	if err != nil {
		return err
	}
	need, err := svc.firsts(ctx, a, cps)
	if err != nil {
		return err
	}
	if err := svc.store.HasFree(ctx, need+records.Reserve); err != nil {
		return err
	}
	return svc.fitsLimit(ctx, a, cps, need)
}

// firsts returns the smallest size, in bytes, that the first captures of the app's databases need.
func (svc *Service) firsts(ctx context.Context, a *app.App, cps []store.Checkpoint) (need int64, err error) {
	for _, l := range a.Layers() {
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

// fitsLimit returns an error if max_bytes leaves no room for the checkpoint beside the pinned
// ones, or if the first snapshots alone exceed it.
func (svc *Service) fitsLimit(ctx context.Context, a *app.App, cps []store.Checkpoint, need int64) error {
	limit := a.Rec().Retention.MaxBytes
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
		all, err := a.FreedBy(ctx, "", cps...)
		if err != nil {
			return err
		}
		if all > limit { // otherwise there is room even if all are pinned
			if kept, err = a.FreedBy(ctx, "", pinned...); err != nil {
				return err
			}
		}
	}
	if kept+need > limit {
		return errs.New(errs.Conflict, "see what fits", "max_bytes is %d, the pinned checkpoints take %d bytes, and this one needs at least %d", limit, kept, need).
			WithHint("unpin or delete checkpoints, or raise max_bytes; the app was not stopped")
	}
	return nil
}

func holds(cp store.Checkpoint, name snap.Layer) bool {
	_, ok := cp.Snapshot(name)
	return ok
}

func (svc *Service) checkQuota(ctx context.Context, who ipc.Caller) error {
	l := svc.owners.LimitsOf(who)
	owner, err := svc.owners.CallerName(who)
	if err != nil {
		return err
	}
	if l.Checkpoints > 0 {
		n, err := svc.store.CountCheckpoints(ctx, owner, who.UID)
		if err != nil {
			return err
		}
		if n >= l.Checkpoints {
			return errs.New(errs.Denied, "", "you have %d checkpoints, which is your limit", n).
				WithHint("delete some, or ask an administrator to raise [quota] checkpoints in mulligand.toml")
		}
	}
	if l.Bytes == 0 {
		return nil
	}
	n, err := svc.occupied(ctx, owner, who.UID)
	if err != nil || n < l.Bytes {
		return err
	}
	return errs.New(errs.Denied, "", "your checkpoints occupy %d bytes, and your limit is %d bytes", n, l.Bytes).
		WithHint("delete some, or ask an administrator to raise [quota] bytes in mulligand.toml")
}

// occupied returns the size of all checkpoints of all of an owner's apps, in bytes.
func (svc *Service) occupied(ctx context.Context, owner string, uid int) (total int64, err error) {
	for _, a := range svc.apps.All() {
		if a.Rec().Owner != owner || a.Rec().OwnerUID != uid {
			continue
		}
		cps, err := svc.store.Checkpoints(ctx, a.Rec().ID)
		if err != nil {
			return 0, err
		}
		s, err := svc.sized(ctx, a, cps)
		if err != nil {
			return 0, err
		}
		total += s.Total
	}
	return total, nil
}
