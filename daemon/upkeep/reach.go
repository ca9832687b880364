package upkeep

import (
	"context"

	"mulligan/daemon/app"
	"mulligan/daemon/layer"
	"mulligan/snap"
)

// makeReady settles the app, and sets it up anew where its domain can be reached again.
func (svc *Service) makeReady(ctx context.Context, a *app.App) error {
	if err := svc.Recover(ctx, a); err != nil {
		return err
	}
	return svc.reachAgain(ctx, a)
}

// reachAgain sets the app up anew where its domain could not be reached, and can be now. The
// caller holds the app, which is settled. It returns an error only where the app could not be
// settled again.
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

// sweepHeld sweeps the app again where a layer is held up. The caller holds the app, which
// is settled.
func (svc *Service) sweepHeld(ctx context.Context, a *app.App) error {
	if len(a.Setup().HeldWords()) == 0 {
		return nil
	}
	if err := svc.reachAgain(ctx, a); err != nil {
		return err
	}
	return svc.sweep(ctx, a, nil)
}
