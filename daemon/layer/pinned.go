package layer

import (
	"context"
	"os"
	"path/filepath"

	"mulligan/daemon/store"
	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/files"
	"mulligan/snap/files/overlay"
)

// MakePinned makes a copy of a parent's files as in a snapshot, over which the folders of its forks can be mounted, in a folder that does not exist. The error is
// of kind errs.Unsupported where that is not possible. Whatever the error, RemovePinned must follow.
func (b *Binder) MakePinned(ctx context.Context, parent *Setup, id snap.SnapshotID, path string) error {
	l, _ := parent.Layer(snap.Files)
	from, ok := l.Driver.(*files.Driver)
	if os.Geteuid() != 0 || !ok {
		return errs.New(errs.Unsupported, "", "the daemon may not mount the folders of forks")
	}
	acc, err := b.AccountOf(parent.Rec)
	if err != nil {
		return err
	}
	_, gid := numbers(acc.User())
	if err := overlay.Make(path, max(parent.Rec.FolderUID, 0), gid); err != nil {
		return errs.Wrap(errs.Unsupported, "", err)
	}
	if err := b.opt.Failpoint.At("fork: folder to pin made"); err != nil {
		return err
	}
	to, err := from.Pinned(overlay.Base(path), filepath.Join(b.pinnedState(path), "files"))
	if err == nil {
		err = to.Pin(ctx, from, id)
	}
	if err == nil {
		err = b.opt.Failpoint.At("fork: files pinned")
	}
	return err
}

// RemovePinned removes a copy that MakePinned made, whole or not, and what is mounted over it.
func (b *Binder) RemovePinned(path string) error {
	if err := overlay.Remove(path); err != nil {
		return err
	}
	return os.RemoveAll(b.pinnedState(path))
}

// pinnedState is the daemon's own folder for a pinned copy.
func (b *Binder) pinnedState(path string) string {
	return filepath.Join(b.opt.StateDir, "pinned", filepath.Base(path))
}

// mountOf is the mount of a fork over a pinned copy.
func mountOf(rec store.App) overlay.Mount {
	return overlay.Mount{Pinned: rec.Fork.Pinned, Name: string(rec.ID), At: rec.Workspace, Owner: rec.FolderUID, Fresh: rec.Fork.Making}
}

// EnsureFiles mounts the folder of a fork that is based on a pinned copy, unless it is mounted: a reboot ends mounts. Below is an empty folder.
func (b *Binder) EnsureFiles(rec store.App) error {
	if rec.Fork == nil || rec.Fork.Pinned == "" {
		return nil
	}
	return mountOf(rec).Ensure()
}

// ReleaseFiles unmounts the folder of such a fork, and removes what it has of its own.
func (b *Binder) ReleaseFiles(rec store.App) error {
	if rec.Fork == nil || rec.Fork.Pinned == "" {
		return nil
	}
	if err := mountOf(rec).Remove(); err != nil {
		return err
	}
	return b.opt.Failpoint.At("fork: folder unmounted")
}
