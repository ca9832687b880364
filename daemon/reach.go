package daemon

import (
	"context"

	"mulligan/daemon/layer"
	"mulligan/snap"
)

// makeReady settles the app, and sets it up anew where its domain can be reached again.
func (d *Daemon) makeReady(ctx context.Context, a *app) error {
	if err := d.settle(ctx, a); err != nil {
		return err
	}
	return d.reachAgain(ctx, a)
}

// reachAgain sets the app up anew where its domain could not be reached, and can be now. The
// caller holds the app, which is settled. It returns an error only where the app could not be
// settled again.
func (d *Daemon) reachAgain(ctx context.Context, a *app) error {
	var drivers []snap.Driver
	again, was := false, a.setup().Unreached()
	if was == nil {
		return nil
	}
	for _, l := range a.layers() {
		driver := l.Driver
		if h, ok := driver.(*layer.Held); ok && h.Reach != nil {
			err := h.Reach(ctx)
			again = again || err == nil
			if err != nil {
				driver = &layer.Held{Driver: h.Driver, Why: err, Reach: h.Reach}
			}
		}
		drivers = append(drivers, driver)
	}
	if !again {
		a.setDrivers(drivers)
		return nil
	}
	a.mustSettle()
	return d.settle(ctx, a)
}

// sweepHeld sweeps the app again where a layer is held up. The caller holds the app, which
// is settled.
func (d *Daemon) sweepHeld(ctx context.Context, a *app) error {
	if len(a.setup().HeldWords()) == 0 {
		return nil
	}
	if err := d.reachAgain(ctx, a); err != nil {
		return err
	}
	return d.sweep(ctx, a, nil)
}
