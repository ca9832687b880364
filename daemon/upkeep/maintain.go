package upkeep

import (
	"context"
	"sync"
	"time"

	"mulligan/daemon/app"
	"mulligan/daemon/layer"
	"mulligan/snap"
)

// Maintain calls the drivers' Maintain every few seconds until ctx ends, and shares out the watches of files. An error is a problem of
// the app until a later call succeeds.
func (svc *Service) Maintain(ctx context.Context) {
	tick := time.NewTicker(svc.opt.UpkeepEvery)
	defer tick.Stop()
	var under sync.Map // layers whose Maintain is running: a slow one must not delay the others
	var work sync.WaitGroup
	defer work.Wait()
	for {
		svc.turns.ShareWatches(ctx)
		svc.eachMaintainer(func(a *app.App, l layer.Layer, m snap.Maintainer) {
			if _, busy := under.LoadOrStore(l.Driver, true); busy {
				return
			}
			work.Go(func() {
				defer under.Delete(l.Driver)
				err := m.Maintain(ctx)
				if ctx.Err() == nil && a.NoteUpkeep(l.Name, err) {
					svc.opt.Log.Warn("upkeep", "app", a.Rec().Slug, "layer", l.Name, "err", err)
				}
			})
		})
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// eachMaintainer calls f for each layer with a Maintainer, of each app that is ready.
func (svc *Service) eachMaintainer(f func(*app.App, layer.Layer, snap.Maintainer)) {
	for _, a := range svc.apps.All() {
		if !a.Ready() {
			continue
		}
		for _, l := range a.Layers() {
			if m, ok := l.Driver.(snap.Maintainer); ok {
				f(a, l, m)
			}
		}
	}
}
