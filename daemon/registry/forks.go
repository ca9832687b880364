package registry

import (
	"context"
	"io"
	"os"
	"slices"
	"strings"

	"mulligan/daemon/accounts"
	"mulligan/daemon/app"
	"mulligan/daemon/layer"
	"mulligan/daemon/store"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/snap"
	"mulligan/snap/files/overlay"
)

// ClaimFork registers a fork whose record was made from its parent's, before anything of it is made. The record says that it is being made
// until ForkMade. OpenFork must follow.
func (svc *Service) ClaimFork(ctx context.Context, who ipc.Caller, rec store.App) (*app.App, error) {
	if err := svc.checkAppQuota(ctx, who); err != nil {
		return nil, err
	}
	a := app.New(rec)
	if err := svc.apps.Claim(a); err != nil {
		return nil, err
	}
	// The record is written first, because after a crash it says what may have to be removed.
	if err := svc.store.PutApp(ctx, rec); err != nil {
		a.Release()
		svc.apps.Unregister(a)
		return nil, err
	}
	return a, nil
}

// OpenFork makes the empty folder of a fork that was claimed, and its servers; seed makes what has to exist before they are started. The
// fork is not started. If that fails, nothing is left of the fork.
func (svc *Service) OpenFork(ctx context.Context, a *app.App, seed func() error) error {
	defer a.Release()
	err := svc.openFork(ctx, a, a.Rec(), seed)
	if err == nil {
		return nil
	}
	if left := svc.disposeFork(ctx, a); left != nil { // the record stays, and it is tried again
		noteUndropped(a, left)
		return errs.Also(err, left)
	}
	svc.apps.Unregister(a)
	return err
}

func (svc *Service) openFork(ctx context.Context, a *app.App, rec store.App, seed func() error) error {
	a.Now.Store(&layer.Setup{Rec: rec})
	folder, err := svc.apps.MakeForkFolder(ctx, rec)
	if err == nil {
		err = svc.opt.Failpoint.At("fork: folder made")
	}
	if err != nil {
		return err
	}
	fork := *rec.Fork
	fork.Folder, rec.Fork = folder, &fork
	rec.Rev++
	if err := svc.store.PutApp(ctx, rec); err != nil {
		return err
	}
	a.Now.Store(&layer.Setup{Rec: rec})
	if err = os.MkdirAll(svc.binder.StateDir(rec.ID), 0o700); err == nil {
		err = seed()
	}
	if err == nil {
		err = svc.opt.Failpoint.At("fork: servers seeded")
	}
	if err == nil {
		err = svc.upkeep.Recover(ctx, a)
	}
	return err
}

// forksOf returns the names of an app's forks.
func (svc *Service) forksOf(id ipc.AppID) (names []string) {
	for _, rec := range svc.apps.Records() {
		if rec.Fork != nil && rec.Fork.Parent == id {
			names = append(names, rec.Fork.Name)
		}
	}
	slices.Sort(names)
	return names
}

// ForkMade records that a fork is complete. From then on its files are watched if its parent's are.
func (svc *Service) ForkMade(ctx context.Context, a *app.App) error {
	release, err := svc.apps.AcquireBrief(ctx, a, "fork") // somebody may change the fork's settings, and with them its record
	if err != nil {
		return err
	}
	defer release()
	if err := svc.apps.ChangeFork(ctx, a, func(f *ipc.Fork) { f.Making = false }); err != nil {
		return err
	}
	svc.turns.StartTracker(ctx, a)
	return nil
}

// GiveContainers makes containers that have been made for a fork its own: rec is the fork's record with them. The caller has acquired the fork.
func (svc *Service) GiveContainers(ctx context.Context, a *app.App, rec store.App) error {
	rec.Rev++
	if err := svc.store.PutApp(ctx, rec); err != nil {
		return err
	}
	svc.apps.CloseDrivers(a)
	next, err := svc.binder.SetUp(ctx, rec)
	if err != nil {
		return err
	}
	a.SetSetup(next)
	return nil
}

// RemoveFork ends a fork's processes and removes its folder, its checkpoints and its record. It first records that the fork is
// not complete, so that an interrupted drop is finished later, and one that failed is tried again.
func (svc *Service) RemoveFork(ctx context.Context, who ipc.Caller, a *app.App) error {
	return svc.removeFork(ctx, who, a, app.Alone)
}

// AbandonFork removes a fork that is not complete, and that nobody makes any more, as RemoveFork does. It waits for what others do with the
// fork. Whatever makes it fail, it is tried again.
func (svc *Service) AbandonFork(ctx context.Context, who ipc.Caller, a *app.App) error {
	err := svc.removeFork(ctx, who, a, app.Brief)
	noteUndropped(a, err)
	return err
}

func (svc *Service) removeFork(ctx context.Context, who ipc.Caller, a *app.App, way app.Way) (err error) {
	const op = "drop fork"
	if err := svc.CheckDrop(ctx, a); err != nil {
		return err
	}
	release, err := svc.apps.AcquireAs(ctx, a, op, who, way)
	if err != nil && errs.KindOf(err) != errs.Busy {
		release, err = svc.apps.Hold(ctx, a, op, who, way) // its folder may be missing
	}
	if err != nil {
		return err
	}
	defer release()
	svc.store.GiveToDelete()
	if !a.Rec().Fork.Making {
		if err := svc.apps.ChangeFork(ctx, a, func(f *ipc.Fork) { f.Making = true }); err != nil {
			return err
		}
	}
	defer func() { noteUndropped(a, err) }()
	if _, err := svc.apps.EndInside(ctx, a); err != nil { // nobody is let in again, also if the drop fails and is tried again
		return err
	}
	if a.Rec().Fork.Project != "" { // its containers need not be all there to be removed
		svc.turns.StopTracker(a)
		snap.Begin(ctx, "removing the containers of the fork")
		err = svc.binder.Projects.Drop(ctx, a.Rec())
	} else if err = svc.stopFork(ctx, a); err == nil {
		err = svc.removeCopy(ctx, a)
	}
	if err != nil {
		return err
	}
	if err := svc.dropGuest(ctx, a); err != nil {
		return err
	}
	if err := svc.opt.Failpoint.At("fork: stopped"); err != nil {
		return err
	}
	snap.Begin(ctx, "removing the folder of the fork")
	if err := svc.binder.Mounts.Release(a.Rec()); err != nil {
		return err
	}
	if err := svc.apps.RemoveForkFolder(ctx, a.Rec()); err != nil {
		return err
	}
	if err := svc.opt.Failpoint.At("fork: folder removed"); err != nil {
		return err
	}
	if err := svc.remove(ctx, who, a, true); err != nil || a.Rec().Fork.Pinned == "" {
		return err
	}
	svc.SweepPinned(ctx)
	return nil
}

// noteUndropped records that a fork could not be dropped, or that it could (err is nil).
func noteUndropped(a *app.App, err error) {
	if err == nil {
		a.Undropped.Store(nil)
		return
	}
	why := errs.Words(err)
	a.Undropped.Store(&why)
}

// CheckDrop refuses to drop a fork that has forks of its own: they are listed by it, and their disks rest on its. It also refuses if something is
// mounted in the fork's folder, which may be anybody's, or if another folder is in its place.
func (svc *Service) CheckDrop(ctx context.Context, a *app.App) error {
	if forks := svc.forksOf(a.Rec().ID); len(forks) > 0 {
		return errs.New(errs.Conflict, "", "the fork %s has forks itself: %s", a.Rec().Slug, strings.Join(forks, ", ")).
			WithHint("drop them first: `mulligan drop --all --app %s`", a.Rec().Slug)
	}
	mounts, err := overlay.Below(a.Rec().Workspace)
	if err == nil && len(mounts) > 0 {
		return errs.New(errs.Conflict, "", "something is mounted in the folder of the fork %s, and would be emptied: %s", a.Rec().Slug, strings.Join(mounts, ", ")).
			WithHint("umount it first")
	}
	if err == nil {
		_, err = svc.apps.FindForkFolder(ctx, a.Rec())
	}
	return err
}

// ClearFork ends the processes of a fork, and removes its temporary files.
func (svc *Service) ClearFork(ctx context.Context, a *app.App) error {
	release, err := svc.apps.Acquire(ctx, a, "clear fork", accounts.Self())
	if err != nil {
		return err
	}
	defer release()
	admit, err := svc.apps.EndInside(ctx, a)
	if err != nil {
		return err
	}
	defer admit()
	if err := svc.stopFork(ctx, a); err != nil {
		return err
	}
	if err := os.RemoveAll(svc.binder.TempDir(a.Rec().ID)); err != nil { // it removes links, and does not follow them
		return err
	}
	return svc.opt.Failpoint.At("fork: cleared")
}

// stopFork ends the processes of a fork, so that nothing writes to its folder. It also works for a fork whose setup failed.
func (svc *Service) stopFork(ctx context.Context, a *app.App) error {
	svc.turns.StopTracker(a)
	if a.HostPart() != nil {
		return svc.apps.StopCommand(ctx, a)
	}
	unit, err := svc.binder.UnitOf(ctx, a.Rec())
	if err != nil || unit == nil {
		return err
	}
	if c, ok := unit.(io.Closer); ok {
		defer c.Close()
	}
	return unit.Stop(ctx)
}

// writeCopy writes the copy of the parent's unit, if the fork has one.
func writeCopy(ctx context.Context, svc *Service, a *app.App) error {
	if a.Rec().Unit == "" || a.Rec().Fork.Project != "" {
		return nil
	}
	unit, err := svc.binder.UnitOf(ctx, a.Rec())
	if err != nil {
		return err
	}
	if c, ok := unit.(interface{ Write(context.Context) error }); ok {
		return c.Write(ctx)
	}
	return nil
}

// removeCopy removes the copy of the parent's unit, if the fork has one.
func (svc *Service) removeCopy(ctx context.Context, a *app.App) error {
	if a.Rec().Unit == "" {
		return nil
	}
	unit, err := svc.binder.UnitOf(ctx, a.Rec())
	if err != nil {
		return err
	}
	if c, ok := unit.(interface{ Remove(context.Context) error }); ok {
		return c.Remove(ctx)
	}
	return nil
}

// dropGuest removes the domain of a fork. The fork's setup then has no disks.
func (svc *Service) dropGuest(ctx context.Context, a *app.App) error {
	if a.Rec().Domain == "" {
		return nil
	}
	next := *a.Now.Load()
	next.Layers = nil
	for _, l := range a.Layers() {
		if l.Kind != layer.Disk {
			next.Layers = append(next.Layers, l)
		} else if c, ok := l.Driver.(io.Closer); ok {
			if err := c.Close(); err != nil {
				return err
			}
		}
	}
	a.SetSetup(&next)
	var setup *layer.Setup
	if parent, err := svc.apps.Find(accounts.Self(), string(a.Rec().Fork.Parent)); err == nil {
		setup = parent.Now.Load()
	}
	return svc.binder.DropGuest(ctx, a.Rec(), setup)
}

// CheckForkedUnit refuses to fork an app whose unit cannot be copied.
func (svc *Service) CheckForkedUnit(ctx context.Context, slug, unit string) error {
	if svc.opt.User {
		return errs.New(errs.Unsupported, "", "%s is run by the unit %s, and a user's own daemon cannot fork units", slug, unit).
			WithHint("let mulligan run it: `mulligan app set --app %s run=COMMAND`", slug)
	}
	m, err := svc.binder.Systemd(ctx)
	if err != nil {
		return err
	}
	return m.CheckCopy(ctx, unit)
}

// CheckOwnServers refuses a fork, by its record, whose databases need servers that it cannot have.
func (svc *Service) CheckOwnServers(rec store.App) error { return svc.binder.CheckOwnServers(rec) }

// disposeFork removes everything that openFork made, and at last the fork's record.
func (svc *Service) disposeFork(ctx context.Context, a *app.App) error {
	err := svc.binder.Mounts.Release(a.Rec())
	if err == nil {
		err = svc.apps.RemoveForkFolder(ctx, a.Rec())
	}
	err = errs.Also(err, svc.binder.DropServers(ctx, a.Rec()))
	svc.apps.CloseDrivers(a)
	if err = errs.Also(err, svc.dropGuest(ctx, a)); err != nil {
		return err
	}
	return errs.Also(svc.unrecord(ctx, a), layer.RemoveState(svc.binder.StateDir(a.Rec().ID)))
}

// FinishForks drops those of the apps that are forks which were being made or dropped at a crash. It writes the units of the other forks, which a
// reboot removes.
func (svc *Service) FinishForks(ctx context.Context, who ipc.Caller, apps []*app.App) {
	for _, a := range apps {
		f := a.Rec().Fork
		if f == nil {
			continue
		}
		if f.Pinned != "" { // mulligan.db may have been made anew
			order := store.Disposal{Kind: store.DisposePinned, ID: f.Pinned, AppID: f.Parent, Cause: "forks"}
			if err := svc.store.PutDisposals(ctx, order); err != nil {
				svc.opt.Log.Error("the copy that a fork is mounted over could not be noted", "app", a.Rec().Slug, "err", err)
			}
		}
		if !f.Making {
			if err := writeCopy(ctx, svc, a); err != nil {
				svc.opt.Log.Error("the unit of a fork could not be written", "app", a.Rec().Slug, "err", err)
			}
			if err := svc.startLent(ctx, a); err != nil {
				svc.opt.Log.Error("a fork that was stopped to be kept could not be started", "app", a.Rec().Slug, "err", err)
			}
			continue
		}
		if err := svc.AbandonFork(ctx, who, a); err != nil {
			svc.opt.Log.Error("a fork that is not whole could not be dropped", "app", a.Rec().Slug, "err", err)
			continue
		}
		a.AddRecovery("a fork that was cut short was dropped")
	}
}

// startLent starts a fork that was stopped to be kept, which a crash cut short. With its start it gets its own dotenv lines back.
func (svc *Service) startLent(ctx context.Context, a *app.App) error {
	if !a.Rec().Fork.Lent {
		return nil
	}
	release, err := svc.apps.AcquireBrief(ctx, a, "start fork")
	if err != nil {
		return err
	}
	defer release()
	if err := svc.apps.StartAgain(ctx, a, true); err != nil {
		return err
	}
	return svc.apps.ChangeFork(ctx, a, func(f *ipc.Fork) { f.Lent = false })
}
