package daemon

import (
	"context"
	"io"

	"mulligan/daemon/layer"
	"mulligan/errs"
)

// stopSupervised stops the apps that nobody would stop once the daemon is gone,
// and gives up charge of them.
func (d *Daemon) stopSupervised(ctx context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	var first error
	for _, a := range d.apps {
		if len(a.rec().Run) == 0 || a.hostPart() == nil {
			continue
		}
		err := a.hostPart().Stop(ctx)
		if c, ok := a.hostPart().(io.Closer); ok {
			err = errs.Also(err, c.Close())
		}
		if err != nil && first == nil {
			first = err
		}
	}
	return first
}

// pauseHost stops what of an app runs on the host, and not its domain.
func (d *Daemon) pauseHost(ctx context.Context, a *app) error {
	m, ok := a.unit().(*layer.Machine)
	if !ok {
		return d.stopUnit(ctx, a)
	}
	ctx, cancel := context.WithTimeout(ctx, d.opt.StopTimeout)
	defer cancel()
	if err := d.opt.Failpoint.At("stop unit"); err != nil {
		return err
	}
	return m.Pause(ctx)
}
