package registry

import (
	"context"
	"os"
	"slices"

	"mulligan/daemon/app"
	"mulligan/daemon/layer"
	"mulligan/daemon/store"
	"mulligan/errs"
	"mulligan/ipc"
)

// AddFork registers a fork whose record was made from its parent's, with an empty folder. The fork is not started, and its record
// says that it is being made until ForkMade.
func (d *Service) AddFork(ctx context.Context, who ipc.Caller, rec store.App) (*app.App, error) {
	if err := d.checkAppQuota(ctx, who); err != nil {
		return nil, err
	}
	a := app.New(rec)
	if err := d.apps.Claim(a); err != nil {
		return nil, err
	}
	err := d.openFork(ctx, a, rec)
	if err != nil {
		d.apps.Disown(a)
	}
	a.LetGo()
	return a, err
}

func (d *Service) openFork(ctx context.Context, a *app.App, rec store.App) (err error) {
	// The record comes first: it says what there may be to remove.
	if err := d.store.PutApp(ctx, rec); err != nil {
		return err
	}
	a.Now.Store(&layer.Setup{Rec: rec})
	folder, err := d.apps.MakeForkFolder(ctx, rec)
	if err == nil {
		err = d.opt.Failpoint.At("fork: folder made")
	}
	if err != nil {
		return errs.Also(err, d.disposeFork(ctx, a))
	}
	fork := *rec.Fork
	fork.Folder, rec.Fork = folder, &fork
	rec.Rev++
	if err := d.store.PutApp(ctx, rec); err != nil {
		return errs.Also(err, d.disposeFork(ctx, a))
	}
	a.Now.Store(&layer.Setup{Rec: rec})
	if err := os.MkdirAll(d.binder.StateDir(rec.ID), 0o700); err == nil {
		err = d.upkeep.Settle(ctx, a)
	}
	if err != nil {
		return errs.Also(err, d.disposeFork(ctx, a))
	}
	return nil
}

// forksOf names the forks of an app.
func (d *Service) forksOf(id ipc.AppID) (names []string) {
	for _, rec := range d.apps.Records() {
		if rec.Fork != nil && rec.Fork.Parent == id {
			names = append(names, rec.Fork.Name)
		}
	}
	slices.Sort(names)
	return names
}

// ForkMade notes that a fork is whole, and follows its files from then on where its parent's are followed.
func (d *Service) ForkMade(ctx context.Context, a *app.App) error {
	if err := d.markFork(ctx, a, false); err != nil {
		return err
	}
	d.turns.StartTracker(ctx, a)
	return nil
}

func (d *Service) markFork(ctx context.Context, a *app.App, making bool) error {
	rec := a.Rec()
	fork := *rec.Fork
	fork.Making, rec.Fork = making, &fork
	rec.Rev++
	if err := d.store.PutApp(ctx, rec); err != nil {
		return err
	}
	next := *a.Now.Load()
	next.Rec = rec
	a.SetSetup(&next)
	return nil
}

// RemoveFork ends a fork's processes and removes its folder, its checkpoints and its record. The record says first that the fork is not
// whole, so that a drop that was cut short is finished.
func (d *Service) RemoveFork(ctx context.Context, who ipc.Caller, a *app.App) error {
	release, err := d.apps.Acquire(ctx, a, "drop fork", who)
	if err != nil {
		return err
	}
	defer release()
	if err := d.markFork(ctx, a, true); err != nil {
		return err
	}
	if err := d.stopFork(ctx, a); err != nil {
		return err
	}
	if err := d.opt.Failpoint.At("fork: stopped"); err != nil {
		return err
	}
	if stays, err := d.apps.RemoveForkFolder(ctx, a.Rec()); err != nil {
		return err
	} else if stays {
		d.opt.Log.Warn("another folder is in the place of a fork's folder, and stays", "app", a.Rec().Slug, "folder", a.Rec().Workspace)
	}
	if err := d.opt.Failpoint.At("fork: folder removed"); err != nil {
		return err
	}
	return d.remove(ctx, who, a, true)
}

// stopFork ends what runs in a fork, so that nothing writes to its folder.
func (d *Service) stopFork(ctx context.Context, a *app.App) error {
	d.turns.StopTracker(a)
	if a.HostPart() == nil {
		return nil
	}
	return d.apps.StopCommand(ctx, a)
}

// disposeFork removes what openFork has made.
func (d *Service) disposeFork(ctx context.Context, a *app.App) error {
	_, err := d.apps.RemoveForkFolder(ctx, a.Rec())
	d.apps.CloseDrivers(a)
	return errs.Also(errs.Also(err, d.unrecord(ctx, a)), os.RemoveAll(d.binder.StateDir(a.Rec().ID)))
}

// FinishForks drops the forks that a crash left half made or half dropped.
func (d *Service) FinishForks(ctx context.Context, who ipc.Caller) {
	for _, a := range d.apps.All() {
		if f := a.Rec().Fork; f == nil || !f.Making {
			continue
		}
		if err := d.RemoveFork(ctx, who, a); err != nil {
			d.opt.Log.Error("a fork that is not whole could not be dropped", "app", a.Rec().Slug, "err", err)
			continue
		}
		a.NoteRecovered("a fork that was cut short was dropped")
	}
}
