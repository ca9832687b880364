package registry

import (
	"context"
	"path/filepath"
	"sync"

	"mulligan/daemon/accounts"
	"mulligan/daemon/app"
	"mulligan/daemon/records"
	"mulligan/daemon/store"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/snap"
)

// A pinned copy has the files of a parent's checkpoint, and the folders of forks are mounted over it. The order to remove it is stored before it is made, and carried
// out when no fork's record names the copy and nobody makes forks over it.

// pinned counts, by the paths of pinned copies, who makes forks over them at present, or removes them.
type pinned struct {
	mu    sync.Mutex
	holds map[string]int
}

func (p *pinned) hold(path string) {
	if p.holds == nil {
		p.holds = map[string]int{}
	}
	p.holds[path]++
}

func (p *pinned) release(path string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.holds[path]--; p.holds[path] == 0 {
		delete(p.holds, path)
	}
}

// claim holds the copy at path unless somebody holds it, or a fork is based on it.
func (p *pinned) claim(path string, forks []store.App) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.holds[path] > 0 {
		return false
	}
	for _, rec := range forks {
		if rec.Fork != nil && rec.Fork.Pinned == path {
			return false
		}
	}
	p.hold(path)
	return true
}

// Pinned returns the path of a pinned copy of the parent's files in a checkpoint, over which forks can be mounted until release is called: one that forks
// are based on, or, with anew, one that it makes. Without one, or where there can be none, the path is "", and forks are copied.
func (svc *Service) Pinned(ctx context.Context, parent *app.App, origin store.Checkpoint, dir string, anew bool) (path string, release func(), err error) {
	none := func() {}
	if !svc.binder.Mounts.SeenBy(ctx, parent.Rec()) {
		return "", none, nil
	}
	if path = svc.findPinned(parent.Rec().ID, origin.ID); path != "" {
		return path, func() { svc.Unpin(ctx, path) }, nil
	}
	held, ok := origin.Snapshot(snap.Files)
	if !anew || !ok || held.Raw {
		return "", none, nil
	}
	path = filepath.Join(dir, "."+records.NewID("pinned-"))
	svc.pinned.mu.Lock()
	svc.pinned.hold(path)
	svc.pinned.mu.Unlock()
	release = func() { svc.Unpin(ctx, path) }
	if err = svc.pin(ctx, parent, held.ID, path); err == nil {
		return path, release, nil
	}
	release()
	if errs.KindOf(err) == errs.Unsupported {
		svc.opt.Log.Info("forks are copied", "app", parent.Rec().Slug, "why", err)
		err = nil
	}
	return "", none, err
}

// findPinned holds and returns a copy that a whole fork of the checkpoint is based on.
func (svc *Service) findPinned(parent ipc.AppID, origin ipc.CheckpointID) (path string) {
	svc.pinned.mu.Lock()
	defer svc.pinned.mu.Unlock()
	for _, rec := range svc.apps.Records() {
		if f := rec.Fork; f != nil && f.Parent == parent && f.Origin == origin && f.Pinned != "" && !f.Making {
			svc.pinned.hold(f.Pinned)
			return f.Pinned
		}
	}
	return ""
}

// pin makes the copy, and the folder around it.
func (svc *Service) pin(ctx context.Context, parent *app.App, id snap.SnapshotID, path string) error {
	release, err := svc.apps.AcquireBrief(ctx, parent, "fork")
	if err != nil {
		return err
	}
	defer release()
	order := store.Disposal{Kind: store.DisposePinned, ID: path, AppID: parent.Rec().ID, Cause: "forks"}
	if err := svc.store.PutDisposals(ctx, order); err != nil {
		return err
	}
	if err := svc.opt.Failpoint.At("fork: pinned copy announced"); err != nil {
		return err
	}
	if err := svc.apps.MakeFolderAround(ctx, parent.Rec(), path); err != nil {
		return err
	}
	return svc.binder.Mounts.Make(ctx, parent.Now.Load(), id, path)
}

// Unpin ends the hold of Pinned, and removes the copy if nothing is based on it.
func (svc *Service) Unpin(ctx context.Context, path string) {
	svc.pinned.release(path)
	svc.SweepPinned(ctx)
}

// SweepPinned removes the pinned copies that nothing is based on. What cannot be removed now is tried again every minute.
func (svc *Service) SweepPinned(ctx context.Context) {
	all, err := svc.store.Disposals(ctx)
	for i := 0; err == nil && i < len(all); i++ {
		if o := all[i]; o.Kind == store.DisposePinned {
			if left := svc.removePinned(ctx, o); left != nil {
				svc.opt.Log.Warn("the copy that forks were mounted over could not be removed", "folder", o.ID, "err", left)
			}
		}
	}
	if err != nil {
		svc.opt.Log.Warn("the copies that forks are mounted over are not known", "err", err)
	}
}

func (svc *Service) removePinned(ctx context.Context, o store.Disposal) error {
	if !svc.pinned.claim(o.ID, svc.apps.Records()) {
		return nil
	}
	defer svc.pinned.release(o.ID)
	if err := svc.binder.Mounts.Remove(o.ID); err != nil {
		return err
	}
	if err := svc.opt.Failpoint.At("fork: pinned copy removed"); err != nil {
		return err
	}
	if parent, err := svc.apps.Find(accounts.Self(), string(o.AppID)); err == nil {
		_ = svc.apps.RemoveFolderAround(ctx, parent.Rec(), o.ID) // an empty folder that its owner's rights cannot remove
	}
	return svc.store.EndDisposals(ctx, o)
}
