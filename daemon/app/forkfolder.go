package app

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"mulligan/daemon/store"
	"mulligan/errs"
	"mulligan/ipc"
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
	id, err = makeFolder.Call(ctx, acc.User(), rec.Workspace)
	if err != nil {
		return "", noFolder(rec.Workspace, err)
	}
	return id, nil
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

// idIn identifies what is called name in a folder among all that was ever called so, by its inode and its birth, which is zero where the filesystem
// does not know it. A device number would change with a reboot.
func idIn(parent *beneath.Root, name string) (id string, err error) {
	var st unix.Statx_t
	if err := unix.Statx(parent.FD(), name, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_INO|unix.STATX_BTIME, &st); err != nil {
		return "", os.NewSyscallError("statx", err)
	}
	if st.Mask&unix.STATX_BTIME == 0 {
		st.Btime = unix.StatxTimestamp{}
	}
	return fmt.Sprintf("%d born %d.%09d", st.Ino, st.Btime.Sec, st.Btime.Nsec), nil
}

// sameFolder reports whether a folder's ID is the noted one. What an older daemon noted are the numbers of the device and the inode.
func sameFolder(id, noted string) bool {
	if _, inode, old := strings.Cut(noted, ":"); old {
		return strings.HasPrefix(id, inode+" ")
	}
	return id == noted
}

// forkFolder is the folder of a fork, and what identifies it. Without an ID, it may only be removed if it is empty: it is one that nobody noted, or one
// that is mounted, which is empty below the mount.
type forkFolder struct{ Path, ID string }

func folderOf(rec store.App) forkFolder {
	if rec.Fork.Pinned != "" {
		return forkFolder{Path: rec.Workspace}
	}
	return forkFolder{rec.Workspace, rec.Fork.Folder}
}

// findFolder returns whether something is at the path of a fork's folder, and whether that is another folder than the fork's.
var findFolder = privsep.Define("daemon.findForkFolder", func(_ context.Context, f forkFolder) (found foundFolder, err error) {
	parent, err := beneath.Open(filepath.Dir(f.Path))
	if errors.Is(err, unix.ENOENT) {
		return found, nil
	}
	if err != nil {
		return found, err
	}
	defer parent.Close()
	id, err := idIn(parent, filepath.Base(f.Path))
	if errors.Is(err, unix.ENOENT) {
		return found, nil
	}
	return foundFolder{There: true, Other: f.ID != "" && !sameFolder(id, f.ID)}, err
}).Within(FolderTimeout)

type foundFolder struct{ There, Other bool }

// removeFolder removes a fork's folder with all that is in it, which takes its time, or an empty one without an ID. stays reports that such a one is not empty.
var removeFolder = privsep.Define("daemon.removeForkFolder", func(_ context.Context, f forkFolder) (stays bool, err error) {
	parent, err := beneath.Open(filepath.Dir(f.Path))
	if err != nil {
		return true, err
	}
	defer parent.Close()
	name := filepath.Base(f.Path)
	if f.ID != "" {
		return false, parent.RemoveAll(name)
	}
	err = unix.Unlinkat(parent.FD(), name, unix.AT_REMOVEDIR)
	return err != nil && !errors.Is(err, unix.ENOENT), nil
})

// ChangeFork changes what the record of a fork says of it. The caller has acquired the fork.
func (s *Set) ChangeFork(ctx context.Context, a *App, change func(*ipc.Fork)) error {
	rec := a.Rec()
	fork := *rec.Fork
	rec.Fork = &fork
	change(&fork)
	rec.Rev++
	if err := s.store.PutApp(ctx, rec); err != nil {
		return err
	}
	next := *a.Now.Load()
	next.Rec = rec
	a.SetSetup(&next)
	return nil
}

// folderSince asks whether something in a folder was changed after a time.
type folderSince struct {
	Path  string
	Since time.Time
}

// walkTimeout bounds a walk through a fork's folder.
const walkTimeout = time.Hour

// changedSince returns when a file or folder below a fork's folder was written, made, renamed or removed after a time; zero: none was.
var changedSince = privsep.Define("daemon.forkChangedSince", func(ctx context.Context, f folderSince) (at time.Time, err error) {
	root, err := os.OpenRoot(f.Path)
	if err != nil {
		return at, err
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
		if ok && time.Unix(st.Ctim.Unix()).After(f.Since) { //nolint:unconvert // of another type on other machines
			at = time.Unix(st.Ctim.Unix())
			return fs.SkipAll
		}
		return nil
	})
	return at, err
}).Within(walkTimeout)

// ForkChangedSince reports whether something in a fork's folder was changed after a time. What it finds, it notes in the app: until that is so old,
// nobody has to look again.
func (s *Set) ForkChangedSince(ctx context.Context, a *App, since time.Time) (bool, error) {
	rec := a.Rec()
	acc, err := s.AccountOf(rec)
	if err != nil {
		return false, err
	}
	at, err := changedSince.Call(ctx, acc.User(), folderSince{rec.Workspace, since})
	if err != nil || at.IsZero() {
		return false, err
	}
	a.LastChanged.Store(at.UnixNano())
	return true, nil
}

// removeEmpty removes a folder if it is there and empty.
func removeEmpty(path string) error {
	parent, err := beneath.Open(filepath.Dir(path))
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
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

// FindForkFolder reports whether a fork's folder is there. It returns an error if another folder is in its place.
func (s *Set) FindForkFolder(ctx context.Context, rec store.App) (there bool, err error) {
	acc, err := s.AccountOf(rec)
	if err != nil {
		return false, err
	}
	found, err := findFolder.Call(ctx, acc.User(), folderOf(rec))
	if err == nil && found.Other {
		err = errs.New(errs.Conflict, "", "%s is not the folder that was made for the fork %s, and stays", rec.Workspace, rec.Slug).
			WithHint("move it away or remove it, and drop the fork again")
	}
	return found.There, err
}

// RemoveForkFolder removes a fork's folder with the rights of its owner, and the folder around it if nothing else is there. If the fork's folder is
// one that is mounted, the caller must have unmounted it.
func (s *Set) RemoveForkFolder(ctx context.Context, rec store.App) error {
	there, err := s.FindForkFolder(ctx, rec)
	if err != nil {
		return err
	}
	if there {
		acc, err := s.AccountOf(rec)
		if err != nil {
			return err
		}
		switch stays, err := removeFolder.Call(ctx, acc.User(), folderOf(rec)); {
		case err != nil:
			return err
		case stays && rec.Fork.Folder != "": // and if none was noted, the fork has not made it
			return errs.New(errs.Conflict, "", "%s has files that are not known to be those of the fork %s, and stays", rec.Workspace, rec.Slug).
				WithHint("move it away or remove it, and drop the fork again")
		}
	}
	return s.RemoveFolderAround(ctx, rec, rec.Workspace)
}
