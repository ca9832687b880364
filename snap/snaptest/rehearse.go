package snaptest

import (
	"context"

	"mulligan/errs"
	"mulligan/snap"
)

// rehearse checks that a rehearsal, also a cancelled one or one of an unknown snapshot, changes
// neither the live state nor the store, and leaves no switch. A snapshot's shape must be stable.
func rehearse(h *harness) {
	r, ok := h.driver().(snap.Rehearser)
	if !ok {
		return
	}
	h.mutate()
	first := h.capture()
	h.mutate()
	before := h.present()
	shape, err := r.Shape(first.ID)
	h.must("Shape", err)
	if again, err := r.Shape(first.ID); err != nil || again != shape {
		h.Errorf("Shape of %s is %q and then %q, %v", first.ID, shape, again, err)
	}
	if shape == "" {
		return
	}
	cut, cancel := context.WithCancel(h.ctx)
	cancel()
	for _, c := range []struct {
		ctx  context.Context
		id   snap.SnapshotID
		fine bool
	}{{h.ctx, first.ID, true}, {cut, first.ID, false}, {h.ctx, "tt-ffffffffffff", false}, {h.ctx, first.ID, true}} {
		as := h.restoreID()
		if err := r.Rehearse(c.ctx, as, c.id); (err == nil) != c.fine {
			h.Errorf("Rehearse(%s): %v", c.id, err)
		}
		if _, err := h.driver().Resume(h.ctx, as); errs.KindOf(err) != errs.NotFound {
			h.Errorf("Rehearse(%s) left a switch: %v", c.id, err)
		}
		if h.print() != before {
			h.Fatalf("Rehearse(%s) changed the live state", c.id)
		}
	}
	h.reopen()
	h.must("Sweep", h.driver().Sweep(h.ctx, snap.Gone{}))
	h.restore(first)
}
