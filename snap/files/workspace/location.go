// Package workspace opens the folder of an app. It checks which folders may be a workspace and whether the folder is still the
// registered one, and says which paths in it are excluded.
package workspace

import (
	"errors"
	"io/fs"
	"path/filepath"

	"golang.org/x/sys/unix"

	"mulligan/durable"
	"mulligan/errs"
	"mulligan/snap/beneath"
	"mulligan/snap/files/inode"
)

// Workspace is the folder of an app, with the rules that say which paths of it belong to the files driver.
type Workspace struct {
	Dir      string
	stateDir string // where the location is stored
	owner    int    // uid that must own the folder; -1: not checked
	Exclude  *Rules
	location location
}

// New returns the workspace dir, without the paths that patterns (gitignore syntax) exclude and the paths in skip. Every
// operation opens the folder and checks its owner again.
func New(dir, stateDir string, owner int, patterns, skip []string) (*Workspace, error) {
	w := &Workspace{Dir: dir, stateDir: stateDir, owner: owner, Exclude: NewRules(patterns, skip)}
	return w, w.noteLocation()
}

// location describes the mount and the filesystem of a workspace when it was first protected. It distinguishes the workspace
// from a filesystem that was mounted over it later, and from the empty folder below a mount that is gone. It has no device
// numbers, because they change with a reboot.
type location struct {
	MountPoint bool
	Filesystem int64 // magic number (statfs(2))
}

const locationFile = "location.json"

func locate(root *beneath.Root) (location, error) {
	st, err := inode.StatAt(root.FD(), "")
	if err != nil {
		return location{}, err
	}
	var fs unix.Statfs_t
	err = unix.Fstatfs(root.FD(), &fs)
	return location{st.Mount, int64(fs.Type)}, err
}

// noteLocation loads the location that was stored when the workspace was first protected. If none is stored, it stores the
// present one.
func (w *Workspace) noteLocation() error {
	path := filepath.Join(w.stateDir, locationFile)
	err := durable.ReadJSON(path, &w.location)
	if err == nil {
		return nil
	}
	if !errors.Is(err, fs.ErrNotExist) && errs.KindOf(err) != errs.Corrupt {
		return err
	}
	root, err := beneath.Open(w.Dir)
	if err != nil {
		return err
	}
	defer root.Close()
	if w.location, err = locate(root); err != nil {
		return err
	}
	return durable.WriteJSON(path, w.location)
}

// checkLocation returns an error if the location of the opened workspace differs from the stored one.
func (w *Workspace) checkLocation(root *beneath.Root) error {
	now, err := locate(root)
	if err != nil || now == w.location {
		return err
	}
	what, todo := "is on another filesystem than when it was registered", "mount the filesystem that it was on"
	switch {
	case now.MountPoint && !w.location.MountPoint:
		what, todo = "has something mounted on it that was not there when it was registered", "unmount that"
	case w.location.MountPoint && !now.MountPoint:
		what, todo = "was a mount point when it was registered, and nothing is mounted there now", "mount it again"
	}
	return errs.New(errs.Denied, "open workspace", "%s %s", w.Dir, what).
		WithHint("%s; if the workspace is to stay like this, an administrator removes %s and starts mulligand anew", todo, filepath.Join(w.stateDir, locationFile))
}

// Open opens the workspace, and checks its owner and its location. A difference is an error of kind errs.Denied.
func (w *Workspace) Open() (*beneath.Root, error) {
	root, err := beneath.Open(w.Dir)
	if err != nil {
		return nil, err
	}
	st, err := inode.StatAt(root.FD(), "")
	if err == nil && !w.owned(st.Uid) {
		err = errs.New(errs.Denied, "open workspace", "%s belongs to uid %d, not to the app's owner (uid %d)", w.Dir, st.Uid, w.owner).
			WithHint("give the folder back to its owner, or register the app anew")
	}
	if err == nil {
		err = w.checkLocation(root)
	}
	if err != nil {
		root.Close()
		return nil, err
	}
	return root, nil
}

func (w *Workspace) owned(uid uint32) bool {
	return w.owner < 0 || int(uid) == w.owner
}

// RootID returns the inode that is the workspace's folder at present.
func (w *Workspace) RootID() (inode.ID, error) {
	root, err := w.Open()
	if err != nil {
		return inode.ID{}, err
	}
	defer root.Close()
	st, err := inode.StatAt(root.FD(), "")
	return st.ID, err
}
