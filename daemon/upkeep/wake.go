package upkeep

import (
	"context"

	"mulligan/daemon/app"
)

// Wake makes an app ready when the daemon starts: it recovers the app and starts its supervised
// command.
func (svc *Service) Wake(ctx context.Context, a *app.App) {
	if err := a.NoteOwner(svc.owners.CheckOwner(a.Rec())); err != nil {
		a.Asleep.Store(true)
		svc.opt.Log.Error("app is not ready", "app", a.Rec().Slug, "err", err)
		return
	}
	a.NoteDown(true)
	if err := svc.finishNow(ctx, a); err != nil {
		svc.opt.Log.Error("app is not ready", "app", a.Rec().Slug, "err", err)
	}
}
