package rollback

import (
	"context"
	"errors"
	"slices"

	"mulligan/daemon/checkpoint"
	"mulligan/daemon/layer"
	"mulligan/daemon/store"
	"mulligan/snap"
)

// A rollback captures and reads only the layers that take part. If a driver cannot read its layer and
// is a snap.Salvager, the layer is kept as raw bytes. If the driver is none, as that of a server that
// does not answer, the rollback is refused, and goes on without the layer if the caller says so.

// salvageable reports whether err is the failed capture of a layer that can be kept as raw bytes.
func salvageable(err error) bool {
	var e *layer.Error
	if !errors.As(err, &e) || !layer.Unreadable(e.Err) {
		return false
	}
	_, ok := snap.SalvagerOf(e.Layer.Driver)
	return ok
}

// captureBase captures the live state of the layers that take part. halted says that captureBase had to
// stop the app, because a layer kept changing while the app ran, as a volume does whose containers cannot
// be paused, or cannot be read and is kept as raw bytes.
func (r *rollback) captureBase(ctx context.Context, still checkpoint.Stillness, running bool) (cp store.Checkpoint, halted bool, err error) {
	cp, err = r.d.checkpoints.Capture(ctx, r.a, r.parts.layers(), checkpoint.How{Still: still, Revive: true, Paths: r.paths})
	moving, kept := errors.Is(err, snap.ErrChanged), salvageable(err)
	switch {
	case err == nil:
		return cp, false, nil
	case running && r.unit.stops() && (moving || kept):
		halted = true
		if err := r.unit.halt(ctx); err != nil {
			return cp, halted, err
		}
		still = checkpoint.Stillness{All: r.unit.stopsAll(), Host: true}
	case !kept:
		return cp, false, r.hints.orWithout(err)
	}
	cp, err = r.d.checkpoints.Capture(ctx, r.a, r.parts.layers(), checkpoint.How{Still: still, Revive: true, Salvage: true, Paths: r.paths})
	return cp, halted, r.hints.orWithout(err)
}

// warnOfRaw warns of the layers that were kept as raw bytes. Without layers, it warns of all of them.
func (r *rollback) warnOfRaw(layers ...snap.Layer) {
	for _, s := range r.safety.Snapshots {
		if s.Raw && (len(layers) == 0 || slices.Contains(layers, s.Layer)) {
			r.warnings.add("%s could not be read; its bytes were kept as they lay there, in %s", s.Layer, r.safety.ID)
		}
	}
}
