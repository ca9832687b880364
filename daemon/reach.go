package daemon

import (
	"context"

	"mulligan/snap"
)

// reachAgain sets the app up anew where its domain could not be reached, and can be now. The
// caller holds the app, which is settled. It returns an error only where the app could not be
// settled again.
func (d *Daemon) reachAgain(ctx context.Context, a *app) error {
	var drivers []snap.Driver
	again, was := false, a.now.Load().unreached()
	if was == nil {
		return nil
	}
	for _, l := range a.layers() {
		driver := l.driver
		if h, ok := driver.(*heldUp); ok && h.reach != nil {
			err := h.reach(ctx)
			again = again || err == nil
			if err != nil {
				driver = &heldUp{Driver: h.Driver, why: err, reach: h.reach}
			}
		}
		drivers = append(drivers, driver)
	}
	if !again {
		a.now.Store(a.now.Load().with(drivers))
		return nil
	}
	a.mu.Lock()
	a.settled = false
	a.mu.Unlock()
	return d.settle(ctx, a)
}

// sweepHeld sweeps the app again where a layer is held up. The caller holds the app, which
// is settled.
func (d *Daemon) sweepHeld(ctx context.Context, a *app) error {
	if len(a.now.Load().heldWords()) == 0 {
		return nil
	}
	if err := d.reachAgain(ctx, a); err != nil {
		return err
	}
	return d.sweep(ctx, a, nil)
}
