package daemon

import (
	"context"
	"sync"
	"time"

	"mulligan/snap"
)

// upkeep lets the drivers that need it work in the background, every few seconds
// until the daemon closes. What goes wrong is a problem of its app until it is mended.
func (d *Daemon) upkeep(ctx context.Context) {
	tick := time.NewTicker(d.opt.UpkeepEvery)
	defer tick.Stop()
	var under sync.Map // layers that are being worked on: a long one holds up no other
	var work sync.WaitGroup
	defer work.Wait()
	for {
		d.eachMaintainer(func(a *app, l layer, m snap.Maintainer) {
			if _, busy := under.LoadOrStore(l.driver, true); busy {
				return
			}
			work.Go(func() {
				defer under.Delete(l.driver)
				err := m.Maintain(ctx)
				if ctx.Err() == nil && a.noteUpkeep(l.name, err) {
					d.opt.Log.Warn("upkeep", "app", a.rec().Slug, "layer", l.name, "err", err)
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

// eachMaintainer calls f for the layers of apps that are fit to be worked on.
func (d *Daemon) eachMaintainer(f func(*app, layer, snap.Maintainer)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, a := range d.apps {
		a.mu.Lock()
		ready := a.settled && a.broken == nil
		a.mu.Unlock()
		if !ready {
			continue
		}
		for _, l := range a.layers() {
			if m, ok := l.driver.(snap.Maintainer); ok {
				f(a, l, m)
			}
		}
	}
}

// noteUpkeep keeps what went wrong with a layer's upkeep, and says whether that is news.
func (a *app) noteUpkeep(name snap.Layer, err error) (news bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err == nil {
		delete(a.neglected, name)
		return false
	}
	if a.neglected == nil {
		a.neglected = map[snap.Layer]string{}
	}
	news = a.neglected[name] != err.Error()
	a.neglected[name] = err.Error()
	return news
}
