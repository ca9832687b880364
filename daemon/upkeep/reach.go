package upkeep

import (
	"context"

	"mulligan/daemon/app"
	"mulligan/daemon/layer"
	"mulligan/snap"
)

// makeReady recovers the app, and mounts the folder of a fork again if somebody has unmounted it. If its domain was unreachable and can
// be reached again, makeReady opens the app's drivers anew.
func (svc *Service) makeReady(ctx context.Context, a *app.App) error {
	if err := svc.apps.Mounts.Ensure(a.Rec()); err != nil {
		return err
	}
	if err := svc.Recover(ctx, a); err != nil {
		return err
	}
	return svc.reachAgain(ctx, a)
}

// reachAgain opens the app's drivers anew if its domain was unreachable and can be reached again.
// The caller must have acquired and recovered the app. An error means that the recovery after that
// failed.
func (svc *Service) reachAgain(ctx context.Context, a *app.App) error {
	var drivers []snap.Driver
	again, was := false, a.Setup().Unreached()
	if was == nil {
		return nil
	}
	for _, l := range a.Layers() {
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
		a.SetDrivers(drivers)
		return nil
	}
	a.RequireRecovery()
	return svc.Recover(ctx, a)
}

// sweepHeld sweeps the app again if one of its layers is held up. The caller must have acquired
// and recovered the app.
func (svc *Service) sweepHeld(ctx context.Context, a *app.App) error {
	if len(a.Setup().HeldWords()) == 0 {
		return nil
	}
	if err := svc.reachAgain(ctx, a); err != nil {
		return err
	}
	return svc.sweep(ctx, a, nil)
}
