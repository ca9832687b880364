package app

import (
	"context"
	"fmt"
	"slices"

	"mulligan/daemon/store"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/snap"
)

// FreedBy returns how many bytes are freed if the checkpoints are deleted and the journal forgets
// everything before the mark. Missing snapshots count as 0.
func (a *App) FreedBy(ctx context.Context, before snap.Mark, cps ...store.Checkpoint) (int64, error) {
	total, _, err := a.MeasureFreed(ctx, before, cps...)
	return total, err
}

// MeasureFreed is FreedBy that also returns which snapshots are missing.
func (a *App) MeasureFreed(ctx context.Context, before snap.Mark, cps ...store.Checkpoint) (total int64, missing string, err error) {
	for _, l := range a.Layers() {
		var ids []snap.SnapshotID
		for _, cp := range cps {
			if s, ok := cp.Snapshot(l.Name); ok {
				ids = append(ids, s.ID)
			}
		}
		size := l.Driver.Size
		if j, ok := l.Driver.(snap.Journal); ok && before != "" {
			size = func(ctx context.Context, ids ...snap.SnapshotID) (int64, error) {
				return j.TrimSize(ctx, before, ids...)
			}
		} else if len(ids) == 0 {
			continue
		}
		n, err := size(ctx, ids...)
		if isDamage(err) {
			missing = fmt.Sprintf("%s: %v", l.Name, err)
			n, err = size(ctx, slices.DeleteFunc(ids, func(id snap.SnapshotID) bool {
				_, err := l.Driver.Size(ctx, id)
				return isDamage(err)
			})...)
		}
		if err != nil {
			return 0, "", err
		}
		total += n
	}
	return total, missing, nil
}

// isDamage reports whether err means that a snapshot is missing or damaged.
func isDamage(err error) bool {
	return err != nil && (errs.KindOf(err) == errs.NotFound || errs.KindOf(err) == errs.Corrupt)
}

// Sizes are the sizes of an app's checkpoints.
type Sizes struct {
	Each   map[ipc.CheckpointID]int64
	Damage map[ipc.CheckpointID]string // what is missing, for each damaged checkpoint
	Total  int64
}

// KnownSizes returns the sizes that were kept last. Their map is nil if they must be measured
// anew.
func (a *App) KnownSizes() Sizes {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.Sizes
}

// KeepSizes keeps sizes until the next operation.
func (a *App) KeepSizes(s Sizes) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.activity == "" { // an operation under way may change the sizes
		a.Sizes = s
	}
}

// DropSizes discards the sizes that were kept.
func (a *App) DropSizes() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.Sizes = Sizes{}
}
