package app

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"mulligan/daemon/store"
	"mulligan/errs"
	"mulligan/privsep"
	"mulligan/snap/beneath"
)

// MakeForkFolder makes the folder of a fork, which must not exist, and the folder around it, which may, with the rights of the fork's
// owner. It returns what identifies the folder.
func (s *Set) MakeForkFolder(ctx context.Context, rec store.App) (id string, err error) {
	acc, err := s.AccountOf(rec)
	if err != nil {
		return "", err
	}
	if err := s.MakeFolderAround(ctx, rec, rec.Workspace); err != nil {
		return "", err
	}
	if _, err := makeFolder.Call(ctx, acc.User(), rec.Workspace); err != nil {
		return "", noFolder(rec.Workspace, err)
	}
	root, err := beneath.Open(rec.Workspace)
	if err != nil {
		return "", err
	}
	defer root.Close()
	return folderID(root.FD())
}

// MakeFolderAround makes the folder around a path, unless it exists, with the rights of an app's owner.
func (s *Set) MakeFolderAround(ctx context.Context, rec store.App, path string) error {
	acc, err := s.AccountOf(rec)
	if err != nil {
		return err
	}
	around := filepath.Dir(path)
	if _, err := makeFolder.Call(ctx, acc.User(), around); err != nil && !errors.Is(err, unix.EEXIST) {
		return noFolder(around, err)
	}
	return nil
}

// RemoveFolderAround removes the folder around a path if it is empty, with the rights of an app's owner.
func (s *Set) RemoveFolderAround(ctx context.Context, rec store.App, path string) error {
	acc, err := s.AccountOf(rec)
	if err != nil {
		return err
	}
	return s.RemoveEmptyFolder(ctx, acc, filepath.Dir(path))
}

func noFolder(path string, err error) error {
	return (&errs.Error{Kind: errs.Failed, Op: "make the fork's folder", Message: path, Err: err}).
		WithHint("choose another folder with --dir: one that does not exist, in a folder of yours")
}

// folderID identifies an open folder among all of the host.
func folderID(fd int) (string, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return "", os.NewSyscallError("fstat", err)
	}
	return fmt.Sprintf("%d:%d", st.Dev, st.Ino), nil
}

// forkFolder is the folder of a fork, and what identifies it.
type forkFolder struct{ Path, ID string }

// removeFolder removes a fork's folder with all that is in it, and the folder around it if nothing else is there. A folder that is
// another one than the fork's stays. Without an ID, which is noted once the folder is made, only an empty one is removed.
var removeFolder = privsep.Define("daemon.removeForkFolder", func(ctx context.Context, f forkFolder) (stays bool, err error) {
	parent, err := beneath.Open(filepath.Dir(f.Path))
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer parent.Close()
	name := filepath.Base(f.Path)
	if f.ID == "" {
		err := unix.Unlinkat(parent.FD(), name, unix.AT_REMOVEDIR)
		return err != nil && !errors.Is(err, unix.ENOENT), removeEmpty(filepath.Dir(f.Path))
	}
	dir, err := parent.OpenDir(name)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if err != nil {
		return true, err
	}
	id, err := folderID(dir.FD())
	if err = errs.Also(err, dir.Close()); err != nil || id != f.ID {
		return true, err
	}
	if err := parent.RemoveAll(name); err != nil {
		return true, err
	}
	return false, removeEmpty(filepath.Dir(f.Path))
})

// folderSince asks whether something in a folder was changed after a time.
type folderSince struct {
	Path  string
	Since time.Time
}

// changedSince reports whether a file or folder below a fork's folder was written, made, renamed or removed after a time.
var changedSince = privsep.Define("daemon.forkChangedSince", func(ctx context.Context, f folderSince) (changed bool, err error) {
	root, err := os.OpenRoot(f.Path)
	if err != nil {
		return false, err
	}
	defer root.Close()
	err = fs.WalkDir(root.FS(), ".", func(path string, e fs.DirEntry, err error) error {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err // it was removed just now, which the next walk sees
		}
		st, ok := info.Sys().(*syscall.Stat_t)
		if changed = ok && time.Unix(st.Ctim.Unix()).After(f.Since); changed { //nolint:unconvert // of another type on other machines
			return fs.SkipAll
		}
		return nil
	})
	return changed, err
})

// ForkChangedSince reports whether something in a fork's folder was changed after a time.
func (s *Set) ForkChangedSince(ctx context.Context, rec store.App, since time.Time) (bool, error) {
	acc, err := s.AccountOf(rec)
	if err != nil {
		return false, err
	}
	return changedSince.Call(ctx, acc.User(), folderSince{rec.Workspace, since})
}

// removeEmpty removes a folder if it is empty.
func removeEmpty(path string) error {
	parent, err := beneath.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer parent.Close()
	err = unix.Unlinkat(parent.FD(), filepath.Base(path), unix.AT_REMOVEDIR)
	for _, stays := range []error{unix.ENOTEMPTY, unix.ENOENT, unix.EACCES, unix.EPERM, unix.EBUSY} {
		if errors.Is(err, stays) {
			return nil
		}
	}
	return err
}

// RemoveForkFolder removes a fork's folder with the rights of its owner. If it is one that is mounted, the caller must have unmounted it. stays reports that another folder is in its place.
func (s *Set) RemoveForkFolder(ctx context.Context, rec store.App) (stays bool, err error) {
	acc, err := s.AccountOf(rec)
	if err != nil {
		return true, err
	}
	folder := forkFolder{rec.Workspace, rec.Fork.Folder}
	if rec.Fork.Pinned != "" { // below the mount, it is empty
		folder.ID = ""
	}
	return removeFolder.Call(ctx, acc.User(), folder)
}
