package physical

import (
	"context"
	"errors"
	"io/fs"
	"os"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/database"
	"mulligan/snap/postgres/physical/pgserver"
)

// Drop ends the restore. After a Commit it keeps the folder that was swapped out for as long as the snapshot of the base
// exists: a restore of that snapshot then needs no replay. If the restore is given up in the middle, or before its Commit after
// a salvage, Drop starts the server in the live folder.
func (e engine) Drop(ctx context.Context, p *plan) (left []string, err error) {
	if err := e.cfg.Failpoint.At("finish"); err != nil {
		return nil, err
	}
	live, stopped := false, p.RawBase != nil                               // by the salvage
	if p.Reached != database.Preparing && p.Reached != database.Prepared { // before Commit the folders are not exchanged
		if live, err = e.exchanged(p); err != nil {
			return nil, err
		}
		stopped = p.Reached == database.Committing || p.Reached == database.Undoing
	}
	switch {
	case live:
		err = e.keep(ctx, p)
	case p.Kept:
		err = e.keepAgain(ctx, p)
	default:
		err = e.store.remove(ctx, e.store.path("forks", p.Fork.Dir))
	}
	if err != nil || !stopped {
		return nil, err
	}
	if r := p.wanted(!live); r != nil {
		return nil, e.raws.start(ctx, r)
	}
	return nil, e.server.Start(ctx)
}

// keep records the folder that was swapped out as the kept folder of the base, and drops that of the target, which is live now.
func (e engine) keep(ctx context.Context, p *plan) error {
	dir := e.store.path("forks", p.Fork.Dir)
	if p.Kept {
		if err := e.records.drop("kept", string(p.Target)); err != nil {
			return err
		}
	}
	if p.RawBase != nil { // the raw snapshot is a copy of this folder
		return e.store.remove(ctx, dir)
	}
	end, err := e.server.ReadControl(ctx, dir)
	if err != nil {
		return err
	}
	if _, err := e.records.marker(p.Base); errs.KindOf(err) == errs.NotFound || end.State != pgserver.ShutDown {
		return e.store.remove(ctx, dir)
	} else if undamaged(err) != nil {
		return err
	}
	return e.records.put("kept", string(p.Base), kept{Marker: p.Base, Dir: p.Fork.Dir, Inode: p.Live, End: end})
}

// keepAgain keeps a folder that was live between Commit and Undo only if nothing was changed in it meanwhile.
func (e engine) keepAgain(ctx context.Context, p *plan) error {
	now, err := e.server.ReadControl(ctx, e.store.path("forks", p.Fork.Dir))
	if err == nil && now.Same(p.Fork.End) {
		return nil
	}
	if err := e.records.drop("kept", string(p.Target)); err != nil {
		return err
	}
	return e.store.remove(ctx, e.store.path("forks", p.Fork.Dir))
}

// Sweep removes the snapshots and restores that gone names, and everything in the store that no record of the driver refers to.
// It does not change the live state, and starts a server that an interrupted salvage, or a restore that ended without a plan, stopped.
func (d *Driver) Sweep(ctx context.Context, gone snap.Gone) error {
	const op = "sweep cluster snapshots"
	d.bases.taking.Lock() // a base backup that is being copied has no record yet
	defer d.bases.taking.Unlock()
	return d.Do(ctx, op, func() error { return d.sweep(ctx, gone) })
}

// sweep does the work of Sweep. The caller must hold both locks.
func (d *Driver) sweep(ctx context.Context, gone snap.Gone) error {
	if err := d.server.Sweep(ctx); err != nil && errs.KindOf(err) != errs.Unavailable { // the next program that is started does it, too
		return err
	}
	if err := d.raws.restart(ctx, ""); err != nil {
		return err
	}
	for _, id := range gone.Snapshots {
		if err := d.records.forget(id); err != nil {
			return err
		}
	}
	if err := d.SweepSwitches(ctx, gone.Restores); err != nil {
		return err
	}
	if err := d.retention.sweepStore(ctx); err != nil {
		return err
	}
	if _, err := os.Lstat(d.store.Archive()); errors.Is(err, fs.ErrNotExist) {
		return nil // physical mode is not enabled for the cluster
	}
	if err := d.records.sweepConf(); err != nil {
		return err
	}
	return d.retention.prune(ctx)
}
