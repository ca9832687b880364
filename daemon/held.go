package daemon

import (
	"context"
	"io"
	"slices"

	"mulligan/errs"
	"mulligan/snap"
)

// heldUp is the driver of a layer that cannot be worked on yet: what an earlier
// process left of it could not be swept, or its domain cannot be reached. The app's other
// layers can be used meanwhile. What is stored can still be verified and measured.
type heldUp struct {
	snap.Driver
	why error // the error of the sweep, or of reach
	// reach tries whether the layer's domain can be reached, which it could not when the app
	// was set up; nil for a layer that is to be swept.
	reach func(context.Context) error
}

// unfit is the error of what has to wait. It is never errs.NotFound: of a switch, that
// would say that it ended.
func (h *heldUp) unfit() error {
	return &errs.Error{Kind: errs.Unavailable, Message: "the layer cannot be used yet", Err: h.why, Hint: errs.HintOf(h.why)}
}

// Capture returns why the layer is held up.
func (h *heldUp) Capture(context.Context, snap.CaptureRequest) (snap.Snapshot, error) {
	return snap.Snapshot{}, h.unfit()
}

// Prepare returns why the layer is held up.
func (h *heldUp) Prepare(context.Context, snap.RestoreRequest) (snap.Switch, error) {
	return nil, h.unfit()
}

// Resume returns why the layer is held up.
func (h *heldUp) Resume(context.Context, snap.RestoreID) (snap.Switch, error) {
	return nil, h.unfit()
}

// Delete returns why the layer is held up.
func (h *heldUp) Delete(context.Context, snap.SnapshotID) error { return h.unfit() }

// Close closes the driver itself.
func (h *heldUp) Close() error {
	if c, ok := h.Driver.(io.Closer); ok {
		return c.Close()
	}
	return nil
}

// sweepLayer sweeps one layer of an app, and returns the driver that is to be used from
// then on: a heldUp where the sweep failed.
func sweepLayer(ctx context.Context, driver snap.Driver, gone snap.Gone) snap.Driver {
	if h, ok := driver.(*heldUp); ok {
		if h.reach != nil {
			return h // it is swept once the app was set up anew
		}
		driver = h.Driver
	}
	if err := driver.Sweep(ctx, gone); err != nil {
		return &heldUp{Driver: driver, why: err}
	}
	return driver
}

// keepHeld holds up the layers that an earlier setup of the app held up: nobody has swept them
// since.
func (s *setup) keepHeld(old *setup) {
	for i, l := range s.layers {
		at := slices.IndexFunc(old.layers, func(o layer) bool { return o.name == l.name })
		if at < 0 {
			continue
		}
		h, held := old.layers[at].driver.(*heldUp)
		if _, already := l.driver.(*heldUp); held && !already {
			s.layers[i].driver = &heldUp{Driver: l.driver, why: h.why}
		}
	}
}

// unreached returns why the domain of the app cannot be reached; nil where it can, or there
// is none.
func (s *setup) unreached() error {
	for _, l := range s.layers {
		if h, ok := l.driver.(*heldUp); ok && h.reach != nil {
			return h.why
		}
	}
	return nil
}
