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

// Held is what deleting these checkpoints, and forgetting the journal before
// the mark, would free together, in bytes. What is missing of them counts nothing.
func (a *App) Held(ctx context.Context, before snap.Mark, cps ...store.Checkpoint) (int64, error) {
	total, _, err := a.Measure(ctx, before, cps...)
	return total, err
}

// Measure is held that also says what is missing.
func (a *App) Measure(ctx context.Context, before snap.Mark, cps ...store.Checkpoint) (total int64, missing string, err error) {
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

// isDamage reports whether something that a checkpoint names is not there, or not whole.
func isDamage(err error) bool {
	return err != nil && (errs.KindOf(err) == errs.NotFound || errs.KindOf(err) == errs.Corrupt)
}

// Sizes are what checkpoints occupy.
type Sizes struct {
	Each   map[ipc.CheckpointID]int64
	Damage map[ipc.CheckpointID]string // of those of which something is missing, what
	Total  int64
}

// KnownSizes are the sizes that were kept last; their map is nil when they are to be found out.
func (a *App) KnownSizes() Sizes {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.Sizes
}

// KeepSizes keeps sizes until the next operation.
func (a *App) KeepSizes(s Sizes) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.holder == "" { // else they may be wrong in a moment
		a.Sizes = s
	}
}

// DropSizes has the sizes found out anew.
func (a *App) DropSizes() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.Sizes = Sizes{}
}
