package daemon

import "context"

// wake makes an app ready at start: leftovers swept, operations that a crash
// cut short finished or undone, a supervised command running.
func (d *Daemon) wake(ctx context.Context, a *app) {
	if err := a.noteOwner(d.CheckOwner(a.rec())); err != nil {
		a.asleep.Store(true)
		d.opt.Log.Error("app is not ready", "app", a.rec().Slug, "err", err)
		return
	}
	a.noteDown()
	if err := d.finishNow(ctx, a); err != nil {
		d.opt.Log.Error("app is not ready", "app", a.rec().Slug, "err", err)
	}
}
