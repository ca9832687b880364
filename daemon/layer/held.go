package layer

import (
	"context"
	"io"
	"slices"

	"mulligan/errs"
	"mulligan/snap"
)

// Held is the driver of a layer that cannot be worked on yet: what an earlier
// process left of it could not be swept, or its domain cannot be reached. The app's other
// layers can be used meanwhile. What is stored can still be verified and measured.
type Held struct {
	snap.Driver
	Why error // the error of the sweep, or of reach
	// Reach tries whether the layer's domain can be reached, which it could not when the app
	// was set up; nil for a layer that is to be swept.
	Reach func(context.Context) error
}

// Unfit is the error of what has to wait. It is never errs.NotFound: of a switch, that
// would say that it ended.
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

// SweepLayer sweeps one layer of an app, and returns the driver that is to be used from
// then on: a heldUp where the sweep failed.
func SweepLayer(ctx context.Context, driver snap.Driver, gone snap.Gone) snap.Driver {
	if h, ok := driver.(*Held); ok {
		if h.Reach != nil {
			return h // it is swept once the app was set up anew
		}
		driver = h.Driver
	}
	if err := driver.Sweep(ctx, gone); err != nil {
		return &Held{Driver: driver, Why: err}
	}
	return driver
}

// KeepHeld holds up the layers that an earlier setup of the app held up: nobody has swept them
// since.
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

// Unreached returns why the domain of the app cannot be reached; nil where it can, or there
// is none.
func (s *Setup) Unreached() error {
	for _, l := range s.Layers {
		if h, ok := l.Driver.(*Held); ok && h.Reach != nil {
			return h.Why
		}
	}
	return nil
}
