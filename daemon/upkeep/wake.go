package upkeep

import (
	"context"
	"sync"

	"mulligan/daemon/app"
)

// WakeAll makes apps ready when the daemon starts: one after the other those of one owner, in the order of the list, and the owners' side by
// side, because what one owner's apps wait for must not hold up those of others. After an owner's apps, it calls then with them. WakeAll blocks
// until all apps were tried or ctx ends. Operations do not wait for that: they recover their app themselves.
func (svc *Service) WakeAll(ctx context.Context, list []*app.App, then func(theirs []*app.App)) {
	for _, a := range list {
		app.Queue(a)
	}
	var all sync.WaitGroup
	for _, theirs := range app.ByOwner(list) {
		all.Go(func() {
			for _, a := range theirs {
				if ctx.Err() != nil {
					return
				}
				svc.wake(ctx, a)
			}
			then(theirs)
		})
	}
	all.Wait()
}

// wake recovers an app and starts its supervised command. What fails is tried again in the background. If an operation was earlier, wake does nothing:
// what that left is tried already.
func (svc *Service) wake(ctx context.Context, a *app.App) {
	if !app.Dequeue(a) {
		return
	}
	err := a.NoteOwner(svc.owners.CheckOwner(a.Rec()))
	if err != nil {
		a.Asleep.Store(true)
		a.NoteDown(false)
	} else {
		err = svc.finishNow(ctx, a)
	}
	if err != nil && ctx.Err() == nil {
		svc.opt.Log.Error("app is not ready", "app", a.Rec().Slug, "err", err)
	}
	if !a.EndRetries() {
		svc.apps.Background(func() { svc.finishLater(svc.run, a, retryFirst) })
	}
}
