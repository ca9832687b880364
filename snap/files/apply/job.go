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

// Job is one worker of a restore. Several may work side by side, on different paths.
type Job struct {
	*job
	dirPath string // the folder that was last opened
	dir     *beneath.Root
}

// folder opens the folder path, which stays open until another one is asked for.
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

// forget closes the folder that was last opened. It must be called when a
// folder is made or removed: the name may mean another one then.
func (h *Job) forget() {
	if h.dir != nil {
		h.dir.Close() // opened for reading: nothing can be lost
	}
	h.dir = nil
}

// writable opens the folder path to change it. Where mulligand is not root, a
// folder without the bits gets them for now; finishFolders puts it right.
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

// look gives what is at path now, content and all, or nil.
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

// verdict is what a path was found to be.
type verdict int

const (
	isOld verdict = iota
	isNew
)

// judge looks at d's path. Folders are judged by their being folders: their
// times move with every step of the work.
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

// matches compares what is there with what a manifest says, but for groups.
func matches(e, m *manifest.Entry) bool {
	if e == nil || m == nil {
		return e == nil && m == nil
	}
	if m.IsDir() {
		return e.IsDir()
	}
	return e.SameBody(m) && e.SameMeta(m)
}

// sideBySide calls do for 0 to n-1, with several workers.
func (h *Job) sideBySide(n int, do func(w *Job, i int) error) error {
	return parallel.InRuns(n, func() (func(int) error, func()) {
		w := &Job{job: h.job}
		return func(i int) error { return do(w, i) }, w.forget
	})
}
