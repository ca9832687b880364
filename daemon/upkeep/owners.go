package upkeep

import (
	"context"
	"time"

	"mulligan/daemon/app"
	"mulligan/errs"
)

// WatchOwners calls WatchOwner for every app, every few seconds, until ctx ends.
func (svc *Service) WatchOwners(ctx context.Context) {
	tick := time.NewTicker(svc.opt.UpkeepEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for _, a := range svc.apps.All() {
			svc.WatchOwner(ctx, a)
		}
	}
}

// WatchOwner stops an app's supervised command if the uid or name of the app's owner was given
// to another account. It starts the command again when uid and name belong together again.
func (svc *Service) WatchOwner(ctx context.Context, a *app.App) {
	was := a.OwnerTrouble()
	err := a.NoteOwner(svc.owners.CheckOwner(a.Rec()))
	if err != nil && was == nil {
		svc.opt.Log.Error("an app's owner is not who it was", "app", a.Rec().Slug, "err", err)
	}
	switch {
	case err == nil && a.Asleep.Load():
		err = svc.rouse(ctx, a)
	case errs.KindOf(err) == errs.Denied && !a.Asleep.Load() && len(a.Rec().Run) > 0 && a.HostPart() != nil:
		a.Asleep.Store(true)
		err = svc.apps.StopCommand(ctx, a)
	default:
		svc.retryUnfinished(a)
		return
	}
	if err != nil && ctx.Err() == nil {
		svc.opt.Log.Error("app could not be started or stopped", "app", a.Rec().Slug, "err", err)
	}
}

// rouse starts what did not run because the owner's account had changed.
func (svc *Service) rouse(ctx context.Context, a *app.App) error {
	release, err := svc.apps.AcquireBrief(ctx, a, "start")
	if err != nil {
		return err
	}
	defer release()
	a.Asleep.Store(false)
	svc.turns.StopTracker(a)
	defer svc.turns.StartTracker(ctx, a)
	return svc.apps.StartCommand(ctx, a, true)
}
