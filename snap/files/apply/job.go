package apply

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"mulligan/snap/beneath"
	"mulligan/snap/files/diff"
	"mulligan/snap/files/inode"
	"mulligan/snap/files/manifest"
	"mulligan/snap/files/parallel"
	"mulligan/snap/files/relpath"
	"mulligan/snap/files/walk"
)

// Job is a worker of a restore. Several may work in parallel on different paths.
type Job struct {
	*job
	dirPath string // the folder that was last opened
	dir     *beneath.Root
}

// folder opens the folder path, which stays open until the next call with another path.
func (h *Job) folder(path string) (*beneath.Root, error) {
	if h.dir != nil && h.dirPath == path {
		return h.dir, nil
	}
	h.forget()
	dir, err := h.openFolder(path)
	if err != nil {
		return nil, err
	}
	h.dir, h.dirPath = dir, path
	return dir, nil
}

// forget closes the folder that was opened last. It must be called after a folder was made or removed, because the path may
// then refer to another folder.
func (h *Job) forget() {
	if h.dir != nil {
		h.dir.Close() // opened for reading: nothing can be lost
	}
	h.dir = nil
}

// writable opens the folder path for changes. If mulligand is not root, it adds missing permissions of the folder temporarily;
// finishFolders removes them again.
func (h *Job) writable(path string) (*beneath.Root, error) {
	dir, err := h.folder(path)
	if err != nil || os.Geteuid() == 0 {
		return dir, err
	}
	st, err := inode.StatAt(dir.FD(), "")
	if err == nil && st.Mode&0o300 != 0o300 {
		err = unix.Fchmod(dir.FD(), st.Mode&0o7777|0o700)
	}
	return dir, err
}

// look returns the present entry at path with its content, or nil.
func (h *Job) look(path string) (*manifest.Node, inode.Stat, error) {
	folder, name := relpath.Split(path)
	dir, err := h.folder(folder)
	if err == nil {
		var st inode.Stat
		if st, err = inode.StatAt(dir.FD(), name); err == nil {
			n, err := h.scan.ReadEntry(dir, path, name, st)
			if errors.Is(err, walk.ErrMoved) {
				err = h.changed(path)
			}
			return n, st, err
		}
	}
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return nil, inode.Stat{}, nil
	}
	if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.EXDEV) {
		return nil, inode.Stat{}, h.changed(path)
	}
	return nil, inode.Stat{}, h.failed(path, err)
}

// verdict is the state in which a path was found.
type verdict int

const (
	isOld verdict = iota
	isNew
)

// judge compares the path of d with its old and new state. Of a folder it compares only the type, because its time changes with
// every step of the restore.
func (h *Job) judge(d *diff.Delta) (verdict, inode.Stat, error) {
	n, st, err := h.look(d.Path)
	if err != nil {
		return 0, st, err
	}
	var e *manifest.Entry
	if n != nil {
		e = &n.Entry
	}
	switch {
	case d.Remake && e == nil:
		return isOld, st, nil
	case d.Remake && manifest.IsFolder(e) != manifest.IsFolder(d.New):
		return 0, st, h.changed(d.Path)
	case matches(e, d.New) && !manifest.IsFolder(e):
		return isNew, st, nil
	case matches(e, d.Old), e == nil && manifest.IsFolder(d.Old) != manifest.IsFolder(d.New):
		return isOld, st, nil
	case matches(e, d.New):
		return isNew, st, nil
	}
	return 0, st, h.changed(d.Path)
}

// matches reports whether the entry e is as in the manifest entry m, except for hard-link groups.
func matches(e, m *manifest.Entry) bool {
	if e == nil || m == nil {
		return e == nil && m == nil
	}
	if m.IsDir() {
		return e.IsDir()
	}
	return e.SameBody(m) && e.SameMeta(m)
}

// sideBySide calls do for 0 to n-1 with several workers.
func (h *Job) sideBySide(n int, do func(w *Job, i int) error) error {
	return parallel.InRuns(n, func() (func(int) error, func()) {
		w := &Job{job: h.job}
		return func(i int) error { return do(w, i) }, w.forget
	})
}
