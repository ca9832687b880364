package records

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"time"

	"mulligan/daemon/store"
	"mulligan/snap/cas"
)

// WakeCollector requests a garbage collection, which runs soon and in the background.
func (r *Records) WakeCollector() {
	select {
	case r.collect <- struct{}{}:
	default: // one was requested already
	}
}

// packEvery is the interval of packing. packAgain is the pause after a failure, for example because the disk is full.
const (
	packEvery = time.Minute
	packAgain = time.Hour
)

// Tend collects garbage on request, and packs loose objects at intervals, until ctx ends.
func (r *Records) Tend(ctx context.Context) {
	pack := time.NewTimer(packEvery)
	defer pack.Stop()
	r.fillBallast()
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.collect:
			done := r.carriedOut(ctx)
			freed, err := r.Contents.each(ctx, (*cas.Store).Collect)
			r.tended(ctx, "garbage collection", freed, err)
			r.strikeOff(ctx, done)
		case <-pack.C:
			r.fillBallast()
			saved, err := r.Contents.each(ctx, (*cas.Store).Pack)
			r.tended(ctx, "packing", saved, err)
			if err != nil {
				pack.Reset(packAgain)
			} else {
				pack.Reset(packEvery)
			}
		}
	}
}

func (r *Records) tended(ctx context.Context, what string, bytes int64, err error) {
	if err != nil && ctx.Err() == nil {
		r.opt.Log.Warn(what+" failed", "err", err)
	} else if bytes > 0 {
		r.opt.Log.Debug(what, "freed_bytes", bytes)
	}
}

// NewID returns a new unique id: the prefix and 12 hex digits.
func NewID(prefix string) string {
	var b [6]byte
	rand.Read(b[:]) // never fails
	return prefix + hex.EncodeToString(b[:])
}

// WasDisposed records that disposals are carried out. They are deleted soon in the background; after a crash, a disposal may be
// carried out again.
func (r *Records) WasDisposed(list ...store.Disposal) {
	r.mu.Lock()
	r.disposed = append(r.disposed, list...)
	r.mu.Unlock()
	r.WakeCollector()
}

// carriedOut returns the disposals that were carried out since its last call, after deleting the descriptions that they name.
func (r *Records) carriedOut(ctx context.Context) []store.Disposal {
	r.mu.Lock()
	list := r.disposed
	r.disposed = nil
	r.mu.Unlock()
	if err := r.endDescribed(list); err != nil {
		r.notStruckOff(ctx, err)
		return nil
	}
	return list
}

// strikeOff deletes disposals, after the garbage was collected. If the daemon ends before that, the next one finds the disposal of a purged app, and
// so opens and collects the app's store, even if no other app uses it.
func (r *Records) strikeOff(ctx context.Context, list []store.Disposal) {
	if err := r.EndDisposals(ctx, list...); err != nil {
		r.notStruckOff(ctx, err)
	}
}

func (r *Records) notStruckOff(ctx context.Context, err error) {
	if ctx.Err() == nil {
		r.opt.Log.Warn("what was deleted is not struck off", "err", err)
	}
}
