package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"mulligan/daemon/accounts"
	"mulligan/daemon/gitref"
	"mulligan/daemon/layer"
	"mulligan/daemon/store"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/privsep"
	"mulligan/snap"
	"mulligan/snap/beneath"
)

// Gaps returns what of the app cannot be captured or could not be restored.
func (a *App) Gaps(ctx context.Context) (list []ipc.Gap) {
	for _, l := range a.Layers() {
		s, ok := l.Driver.(snap.GapFinder)
		if !ok {
			continue
		}
		found, err := s.FindGaps(ctx)
		if err != nil {
			found = []snap.Gap{{What: fmt.Sprintf("mulligan could not find out what it cannot capture: %v.", err), Remedy: "try again"}}
		}
		for _, g := range found {
			list = append(list, ipc.Gap{Layer: string(l.Name), What: g.What, Remedy: g.Remedy, Blocks: g.Blocks})
		}
	}
	list = append(list, containerGaps(ctx, a)...)
	for _, g := range repositoryGaps(a.Rec()) {
		list = append(list, ipc.Gap{Layer: string(snap.Files), What: g.What, Remedy: g.Remedy})
	}
	return list
}

// containerGaps returns what is not captured of the app's containers.
func containerGaps(ctx context.Context, a *App) (list []ipc.Gap) {
	of, ok := a.HostPart().(*layer.Containers)
	if !ok {
		return nil
	}
	var captured []string
	for _, v := range a.Rec().Volumes {
		captured = append(captured, v.FullName)
	}
	all, err := of.Uncovered(ctx, captured, a.Rec().Workspace)
	if err != nil { // that they cannot be asked is a problem of the app's state, which is reported there
		return nil
	}
	for _, u := range all {
		list = append(list, ipc.Gap{Layer: "containers", What: u.What, Remedy: u.Remedy})
	}
	return list
}

// repositoryGaps returns the parts of the workspace's git repository that lie outside of the
// workspace.
func repositoryGaps(rec store.App) []gitref.Gap {
	root, err := OpenWorkspace(rec)
	if err != nil {
		return nil // every operation reports this error itself
	}
	defer root.Close()
	return gitref.Outside(root)
}

// RepositoryWarnings returns repositoryGaps as warnings of a checkpoint.
func RepositoryWarnings(rec store.App) (words []string) {
	for _, g := range repositoryGaps(rec) {
		words = append(words, "files: "+g.What+" What to do: "+g.Remedy+".")
	}
	return words
}

// FolderTimeout bounds how long opening a folder takes. Its filesystem may be under the owner's
// control, and never answer.
const FolderTimeout = 15 * time.Second

// Within reports whether path lies below dir.
func Within(path, dir string) bool {
	rel, err := filepath.Rel(dir, path)
	return err == nil && rel != "." && filepath.IsLocal(rel)
}

// OpenWorkspace opens an app's workspace. It fails if the folder belongs to another user than at
// the registration.
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
		return nil, errs.Also(errs.New(errs.Denied, "open workspace", "%s belongs to another user than at its registration", rec.Workspace).
			WithHint("give the folder back to its former owner, or register the app anew"), root.Close())
	}
	return root, nil
}

// NoteFolder sets the owner of the workspace in a record of an older daemon, which has none: the
// app's owner, or root.
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

// HeadOf returns the commit that the workspace's git repository has checked out, or nil.
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

// makeFolder creates the folder at path, and returns its ID. No link is followed on the way to its parent.
var makeFolder = privsep.Define("daemon.makeFolder", func(_ context.Context, path string) (id string, err error) {
	parent, err := beneath.Open(filepath.Dir(path))
	if err != nil {
		return "", err
	}
	defer parent.Close()
	if err := unix.Mkdirat(parent.FD(), filepath.Base(path), 0o755); err != nil {
		return "", err
	}
	return idIn(parent, filepath.Base(path))
}).Within(FolderTimeout)

// RemakeWorkspace creates the workspace of an app that the caller has acquired again, empty, if it was deleted. A worker with the
// rights of the folder's former owner does it. made reports whether it was created.
func (s *Set) RemakeWorkspace(ctx context.Context, a *App) (made bool, err error) {
	rec := a.Rec()
	root, err := beneath.Open(rec.Workspace)
	if err == nil {
		return false, root.Close()
	}
	if !errors.Is(err, unix.ENOENT) {
		return false, nil // something else is at the path: the files driver reports what
	}
	if rec.Fork != nil && rec.Fork.Pinned != "" { // it has to be mounted there
		return false, nil
	}
	acc, err := s.AccountOf(rec)
	if err != nil {
		return false, err
	}
	whose := acc.User()
	if rec.FolderUID == 0 {
		whose = privsep.Self
	}
	id, err := makeFolder.Call(ctx, whose, rec.Workspace)
	if err != nil {
		return false, (&errs.Error{Kind: errs.Failed, Op: "make the workspace anew", Message: rec.Workspace, Err: err}).
			WithHint("make that folder, with the owner that it had, and try again")
	}
	if rec.Fork != nil { // or the fork's removal would take the folder for another one
		err = s.ChangeFork(ctx, a, func(f *ipc.Fork) { f.Folder = id })
	}
	return true, err
}

// FreeFolder returns whether the folder at path would have to be made for a clone, with the rights of its owner; if not, an empty one is there.
// With do, it makes the folder.
func (s *Set) FreeFolder(ctx context.Context, acc accounts.Account, path string, do bool) (missing bool, err error) {
	missing, err = freeFolder.Call(ctx, acc.User(), wantedFolder{path, do})
	if err != nil && errs.KindOf(err) == errs.Internal {
		return missing, (&errs.Error{Kind: errs.Failed, Message: "the folder " + path + " cannot be made", Err: err}).
			WithHint("choose another, or make an empty one that belongs to the app's owner")
	}
	return missing, err
}

// wantedFolder is a folder that a clone needs. Make has it made.
type wantedFolder struct {
	Path string
	Make bool
}

// freeFolder looks for an empty folder, and may make one. No link is followed on the way to its parent.
var freeFolder = privsep.Define("daemon.freeFolder", func(_ context.Context, f wantedFolder) (missing bool, err error) {
	parent, err := beneath.Open(filepath.Dir(f.Path))
	if err != nil {
		return false, err
	}
	defer parent.Close()
	dir, err := parent.OpenFile(filepath.Base(f.Path), unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if errors.Is(err, unix.ENOENT) && f.Make {
		return true, unix.Mkdirat(parent.FD(), filepath.Base(f.Path), 0o755)
	}
	if errors.Is(err, unix.ENOENT) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	defer dir.Close()
	switch _, err := dir.Readdirnames(1); {
	case err == nil:
		return false, errs.New(errs.Conflict, "", "the folder %q is not empty", f.Path).WithHint("choose one that does not exist, or is empty")
	case !errors.Is(err, io.EOF):
		return false, err
	}
	return false, nil
}).Within(FolderTimeout)

// RemoveEmptyFolder removes a folder that was made for a clone, unless something is in it.
func (s *Set) RemoveEmptyFolder(ctx context.Context, acc accounts.Account, path string) error {
	_, err := removeEmptyFolder.Call(ctx, acc.User(), path)
	return err
}

var removeEmptyFolder = privsep.Define("daemon.removeEmptyFolder", func(_ context.Context, path string) (struct{}, error) {
	return struct{}{}, removeEmpty(path)
}).Within(FolderTimeout)
