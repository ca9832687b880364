package daemon

import (
	"context"

	"mulligan/daemon/store"
)

// wasDisposed notes that disposals are carried out. They are struck off soon, in the
// background: one that a crash leaves is carried out again.
func (d *Daemon) wasDisposed(list ...store.Disposal) {
	d.mu.Lock()
	d.disposed = append(d.disposed, list...)
	d.mu.Unlock()
	d.wakeCollector()
}

// strikeOff strikes off what was carried out, and takes the descriptions of
// deleted checkpoints out of the content store.
func (d *Daemon) strikeOff(ctx context.Context) {
	d.mu.Lock()
	list := d.disposed
	d.disposed = nil
	d.mu.Unlock()
	if err := d.store.strikeOff(ctx, list); err != nil && ctx.Err() == nil {
		d.opt.Log.Warn("what was deleted is not struck off", "err", err)
	}
}
