package layer

import (
	"context"
	"os"
	"path/filepath"

	"mulligan/daemon/store"
	"mulligan/engine"
	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/files"
	"mulligan/snap/files/overlay"
)

// Mounts makes the copies of files that folders of forks are mounted over, and mounts these.
type Mounts struct{ b *Binder }

// SeenBy reports whether what runs a parent, and is to run its forks, sees folders that are mounted while it runs. An engine may not, and starts containers before
// the daemon has mounted anything; nor does a systemd whose root folder is not the daemon's: the mounts are not made there.
func (m Mounts) SeenBy(ctx context.Context, parent store.App) bool {
	switch {
	case parent.Unit == "":
		return true
	case engine.Names(parent.Unit):
		return false
	}
	s, err := m.b.Systemd(ctx)
	return err == nil && !s.HasOwnRoot() // without a systemd, the fork of a unit cannot be started anyway
}

// Make makes a copy of a parent's files as in a snapshot, over which the folders of its forks can be mounted, in a folder that does not exist. The error is
// of kind errs.Unsupported where that is not possible. Whatever the error, Remove must follow.
func (m Mounts) Make(ctx context.Context, parent *Setup, id snap.SnapshotID, path string) error {
	l, _ := parent.Layer(snap.Files)
	from, ok := l.Driver.(*files.Driver)
	if os.Geteuid() != 0 || !ok {
		return errs.New(errs.Unsupported, "", "the daemon may not mount the folders of forks")
	}
	acc, err := m.b.AccountOf(parent.Rec)
	if err != nil {
		return err
	}
	_, gid := numbers(acc.User())
	if err := overlay.Make(path, max(parent.Rec.FolderUID, 0), gid); err != nil {
		return errs.Wrap(errs.Unsupported, "", err)
	}
	if err := m.b.opt.Failpoint.At("fork: folder to pin made"); err != nil {
		return err
	}
	to, err := files.Pinned(from, overlay.Base(path), filepath.Join(m.state(path), "files"))
	if err == nil {
		err = files.Pin(ctx, to, from, id)
	}
	if err == nil {
		err = m.b.opt.Failpoint.At("fork: files pinned")
	}
	return err
}

// Remove removes a copy that Make made, whole or not, and what is mounted over it.
func (m Mounts) Remove(path string) error {
	if err := overlay.Remove(path); err != nil {
		return err
	}
	return os.RemoveAll(m.state(path))
}

// state is the daemon's own folder for a pinned copy.
func (m Mounts) state(path string) string {
	return filepath.Join(m.b.opt.StateDir, "pinned", filepath.Base(path))
}

// mountOf is the mount of a fork over a pinned copy.
func mountOf(rec store.App) overlay.Mount {
	return overlay.Mount{Pinned: rec.Fork.Pinned, Name: string(rec.ID), At: rec.Workspace, Owner: rec.FolderUID, Fresh: rec.Fork.Making}
}

// Ensure mounts the folder of a fork that is based on a pinned copy, unless it is mounted: a reboot ends mounts. Below is an empty folder.
func (Mounts) Ensure(rec store.App) error {
	if rec.Fork == nil || rec.Fork.Pinned == "" {
		return nil
	}
	return mountOf(rec).Ensure()
}

// Release unmounts the folder of such a fork, and removes what it has of its own.
func (m Mounts) Release(rec store.App) error {
	if rec.Fork == nil || rec.Fork.Pinned == "" {
		return nil
	}
	if err := mountOf(rec).Remove(); err != nil {
		return err
	}
	return m.b.opt.Failpoint.At("fork: folder unmounted")
}
