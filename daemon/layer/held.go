package layer

import (
	"context"
	"io"
	"slices"

	"mulligan/errs"
	"mulligan/snap"
)

// Held is the driver of a held-up layer: what an earlier process left could not be swept, or the
// layer's domain cannot be reached. The app's other layers work meanwhile. Stored snapshots can
// still be verified and measured.
type Held struct {
	snap.Driver
	Why error // the error of the sweep, or of reach
	// Reach tries to reach the layer's domain, which was unreachable when the drivers were opened.
	// It is nil for a layer that must be swept.
	Reach func(context.Context) error
}

// Unfit returns the error of an operation that must wait. It is never errs.NotFound, because for a
// switch that would mean that the switch has ended.
func (h *Held) Unfit() error {
	return &errs.Error{Kind: errs.Unavailable, Message: "the layer cannot be used yet", Err: h.Why, Hint: errs.HintOf(h.Why)}
}

// Capture returns why the layer is held up.
func (h *Held) Capture(context.Context, snap.CaptureRequest) (snap.Snapshot, error) {
	return snap.Snapshot{}, h.Unfit()
}

// Prepare returns why the layer is held up.
func (h *Held) Prepare(context.Context, snap.RestoreRequest) (snap.Switch, error) {
	return nil, h.Unfit()
}

// Resume returns why the layer is held up.
func (h *Held) Resume(context.Context, snap.RestoreID) (snap.Switch, error) {
	return nil, h.Unfit()
}

// Delete returns why the layer is held up.
func (h *Held) Delete(context.Context, snap.SnapshotID) error { return h.Unfit() }

// Close closes the driver itself.
func (h *Held) Close() error {
	if c, ok := h.Driver.(io.Closer); ok {
		return c.Close()
	}
	return nil
}

// SweepLayer sweeps one layer of an app, and returns the driver to use from then on: a Held if the
// sweep failed.
func SweepLayer(ctx context.Context, driver snap.Driver, gone snap.Gone) snap.Driver {
	if h, ok := driver.(*Held); ok {
		if h.Reach != nil {
			return h // swept after the drivers are opened anew
		}
		driver = h.Driver
	}
	if err := driver.Sweep(ctx, gone); err != nil {
		return &Held{Driver: driver, Why: err}
	}
	return driver
}

// KeepHeld holds up the layers that the old setup held up, since they were not swept in between.
func (s *Setup) KeepHeld(old *Setup) {
	for i, l := range s.Layers {
		at := slices.IndexFunc(old.Layers, func(o Layer) bool { return o.Name == l.Name })
		if at < 0 {
			continue
		}
		h, held := old.Layers[at].Driver.(*Held)
		if _, already := l.Driver.(*Held); held && !already {
			s.Layers[i].Driver = &Held{Driver: l.Driver, Why: h.Why}
		}
	}
}

// Unreached returns why the app's domain cannot be reached; nil if it can, or if there is none.
func (s *Setup) Unreached() error {
	for _, l := range s.Layers {
		if h, ok := l.Driver.(*Held); ok && h.Reach != nil {
			return h.Why
		}
	}
	return nil
}
