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

// Each layer of an app is safe by itself. A rollback captures, and looks at, only the
// layers that it is of. One of them that its driver cannot read is kept as the bytes that
// lie there, where the driver is a snap.Salvager; where it is none, as of a server that is
// away, the rollback goes on without the layer if the caller says so.

// salvageable reports whether err is the failed capture of a layer whose bytes can be
// kept instead.
func salvageable(err error) bool {
	var e *layer.Error
	if !errors.As(err, &e) || !layer.Unreadable(e.Err) {
		return false
	}
	_, ok := snap.SalvagerOf(e.Layer.Driver)
	return ok
}

// captureBase captures the layers that the rollback is of, as they are now. halted says
// that the app had to be stopped for that: it would not hold still while it ran, or a layer
// cannot be read, and its bytes are kept.
func (r *rollback) captureBase(ctx context.Context, still checkpoint.Stillness, running bool) (cp store.Checkpoint, halted bool, err error) {
	cp, err = r.d.checkpoints.Capture(ctx, r.a, r.parts.layers(), checkpoint.How{Still: still, Revive: true})
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
	cp, err = r.d.checkpoints.Capture(ctx, r.a, r.parts.layers(), checkpoint.How{Still: still, Revive: true, Salvage: true})
	return cp, halted, r.hints.orWithout(err)
}

// noteRaw repeats in the receipt what was kept as bytes.
func (r *rollback) noteRaw(layers ...snap.Layer) {
	for _, s := range r.safety.Snapshots {
		if s.Raw && (len(layers) == 0 || slices.Contains(layers, s.Layer)) {
			r.warnings.add("%s could not be read; its bytes were kept as they lay there, in %s", s.Layer, r.safety.ID)
		}
	}
}
