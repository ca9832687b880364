package app

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"mulligan/daemon/gitref"
	"mulligan/daemon/store"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/privsep"
	"mulligan/snap"
	"mulligan/snap/beneath"
)

// Gaps says what of the app cannot be captured or could not be given back.
func (a *App) Gaps(ctx context.Context) (list []ipc.Gap) {
	for _, l := range a.Layers() {
		s, ok := l.Driver.(snap.Surveyor)
		if !ok {
			continue
		}
		found, err := s.Survey(ctx)
		if err != nil {
			found = []snap.Gap{{What: fmt.Sprintf("mulligan could not find out what it cannot capture: %v.", err), Remedy: "try again"}}
		}
		for _, g := range found {
			list = append(list, ipc.Gap{Layer: string(l.Name), What: g.What, Remedy: g.Remedy, Blocks: g.Blocks})
		}
	}
	for _, g := range repositoryGaps(a.Rec()) {
		list = append(list, ipc.Gap{Layer: string(snap.Files), What: g.What, Remedy: g.Remedy})
	}
	return list
}

// repositoryGaps says what of the workspace's git repository lies outside of the workspace.
func repositoryGaps(rec store.App) []gitref.Gap {
	root, err := OpenWorkspace(rec)
	if err != nil {
		return nil // every operation says so
	}
	defer root.Close()
	return gitref.Outside(root)
}

// RepositoryWarnings is what a checkpoint's warnings say of repositoryGaps.
func RepositoryWarnings(rec store.App) (words []string) {
	for _, g := range repositoryGaps(rec) {
		words = append(words, "files: "+g.What+" What to do: "+g.Remedy+".")
	}
	return words
}

// FolderTimeout bounds how long a folder takes to be opened: its filesystem may be its owner's.
const FolderTimeout = 15 * time.Second

// Within reports whether path lies below dir.
func Within(path, dir string) bool {
	rel, err := filepath.Rel(dir, path)
	return err == nil && rel != "." && filepath.IsLocal(rel)
}

// OpenWorkspace opens an app's folder, if it still belongs to whom it did.
func OpenWorkspace(rec store.App) (*beneath.Root, error) {
	root, err := beneath.Open(rec.Workspace)
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(root.FD(), &st); err != nil {
		return nil, errs.Also(err, root.Close())
	}
	if rec.FolderUID >= 0 && int(st.Uid) != rec.FolderUID {
		return nil, errs.Also(errs.New(errs.Denied, "open workspace", "%s belongs to somebody else than before", rec.Workspace).
			WithHint("give it back to its owner, or register the app anew"), root.Close())
	}
	return root, nil
}

// NoteFolder notes whom a workspace belongs to that was registered before this
// was noted: its owner, or root.
func NoteFolder(rec *store.App) {
	if rec.FolderUID >= 0 {
		return
	}
	var st unix.Stat_t
	if unix.Lstat(rec.Workspace, &st) == nil && (int(st.Uid) == rec.OwnerUID || st.Uid == 0 && os.Geteuid() == 0) {
		rec.FolderUID = int(st.Uid)
		return
	}
	rec.FolderUID = rec.OwnerUID
}

// HeadOf is the commit that the workspace's git repository has checked out, if any.
func HeadOf(rec store.App) *string {
	root, err := OpenWorkspace(rec)
	if err != nil {
		return nil
	}
	defer root.Close()
	if sha, ok := gitref.Head(root); ok {
		return &sha
	}
	return nil
}

// makeFolder makes the folder at path, whose parent is reached without links.
var makeFolder = privsep.Define("daemon.makeFolder", func(_ context.Context, path string) (struct{}, error) {
	parent, err := beneath.Open(filepath.Dir(path))
	if err != nil {
		return struct{}{}, err
	}
	defer parent.Close()
	return struct{}{}, unix.Mkdirat(parent.FD(), filepath.Base(path), 0o755)
}).Within(FolderTimeout)

// MakeForkFolder makes the folder of a fork, which must not exist, and the folder around it, which may, with the rights of the fork's
// owner. It returns what identifies the folder.
func (s *Set) MakeForkFolder(ctx context.Context, rec store.App) (id string, err error) {
	acc, err := s.AccountOf(rec)
	if err != nil {
		return "", err
	}
	around := filepath.Dir(rec.Workspace)
	if _, err := makeFolder.Call(ctx, acc.User(), around); err != nil && !errors.Is(err, unix.EEXIST) {
		return "", noFolder(around, err)
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
		return errors.Is(err, unix.ENOTEMPTY), removeEmpty(filepath.Dir(f.Path))
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
	// The root's folder is the one that was opened, wherever it is moved to.
	root, err := os.OpenRoot(fmt.Sprintf("/proc/self/fd/%d", parent.FD()))
	if err != nil {
		return true, err
	}
	defer root.Close()
	if err := root.RemoveAll(name); err != nil {
		return true, err
	}
	return false, removeEmpty(filepath.Dir(f.Path))
})

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

// RemoveForkFolder removes a fork's folder with the rights of its owner. stays reports that another folder is in its place.
func (s *Set) RemoveForkFolder(ctx context.Context, rec store.App) (stays bool, err error) {
	acc, err := s.AccountOf(rec)
	if err != nil {
		return true, err
	}
	return removeFolder.Call(ctx, acc.User(), forkFolder{rec.Workspace, rec.Fork.Folder})
}

// RemakeWorkspace makes an app's folder again, empty, if somebody deleted it, with the rights
// of whom it belonged to. made reports whether it did.
func (s *Set) RemakeWorkspace(ctx context.Context, rec store.App) (made bool, err error) {
	root, err := beneath.Open(rec.Workspace)
	if err == nil {
		return false, root.Close()
	}
	if !errors.Is(err, unix.ENOENT) {
		return false, nil // what it is instead, the driver of the files says
	}
	acc, err := s.AccountOf(rec)
	if err != nil {
		return false, err
	}
	whose := acc.User()
	if rec.FolderUID == 0 {
		whose = privsep.Self
	}
	if _, err := makeFolder.Call(ctx, whose, rec.Workspace); err != nil {
		return false, (&errs.Error{Kind: errs.Failed, Op: "make the workspace anew", Message: rec.Workspace, Err: err}).
			WithHint("make that folder, with the owner that it had, and try again")
	}
	return true, nil
}
