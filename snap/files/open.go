package files

import (
	"context"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/beneath"
	"mulligan/snap/files/inode"
	"mulligan/snap/files/manifest"
	"mulligan/snap/files/relpath"
	"mulligan/snap/files/rights"
	"mulligan/snap/files/workspace"
)

var _ snap.Opener = (*Driver)(nil)

// OpenPath opens a regular file of a snapshot, or of the workspace if id is empty, and returns its size in bytes.
func (d *Driver) OpenPath(ctx context.Context, id snap.SnapshotID, path string) (io.ReadCloser, int64, error) {
	const op = "open file"
	if !relpath.Valid(path) {
		return nil, 0, errs.New(errs.Invalid, op, "%q is not a path in the workspace", path)
	}
	if d.ws.Exclude.Covers(path) {
		return nil, 0, noFile(op, d.cfg.Dir, path)
	}
	if id == "" {
		return d.openLive(op, path)
	}
	m, err := d.stored(ctx, op, id)
	if err != nil {
		return nil, 0, err
	}
	e, err := findFor(m, d.cfg.Reader, path)
	if err != nil {
		return nil, 0, errs.Wrap(errs.Failed, op, err)
	}
	if e == nil || !e.IsFile() {
		return nil, 0, noFile(op, d.cfg.Dir, path)
	}
	return manifest.OpenContent(d.cfg.Store, *e), e.Size, nil
}

// noFile returns the error for a path at which there is no regular file. dir is the workspace.
func noFile(op, dir, path string) error {
	return errs.New(errs.NotFound, op, "%s is not a regular file", workspace.Shown(dir, path))
}

// openLive opens a file of the workspace. It opens the folders on the way one by one, and checks the type of each entry before
// it opens the entry for reading, because opening a device may have effects.
func (d *Driver) openLive(op, path string) (io.ReadCloser, int64, error) {
	root, err := d.ws.Open()
	if err != nil {
		return nil, 0, err
	}
	f, size, err := d.openFor(op, root, path)
	return f, size, errs.Wrap(errs.Failed, op, errs.Also(err, root.Close()))
}

func (d *Driver) openFor(op string, root *beneath.Root, path string) (*os.File, int64, error) {
	if err := d.checkReader(root.FD(), path); err != nil {
		return nil, 0, err
	}
	dir, rest := root, path
	for {
		name, below := relpath.Cut(rest)
		if below == "" {
			break
		}
		next, err := dir.OpenDir(name)
		if err != nil {
			return nil, 0, notOpened(op, d.cfg.Dir, path, err)
		}
		defer next.Close()
		if err := d.checkReader(next.FD(), path); err != nil {
			return nil, 0, err
		}
		dir, rest = next, below
	}
	at, err := dir.OpenFile(rest, unix.O_PATH, 0)
	if err != nil {
		return nil, 0, notOpened(op, d.cfg.Dir, path, err)
	}
	defer at.Close()
	st, err := inode.StatAt(int(at.Fd()), "")
	if err == nil && st.Kind() != unix.S_IFREG {
		err = noFile(op, d.cfg.Dir, path)
	}
	if err == nil {
		err = d.checkReader(int(at.Fd()), path)
	}
	if err != nil {
		return nil, 0, err
	}
	f, err := os.Open(inode.ProcPath(int(at.Fd()))) // the same file, even if its name refers to another one now
	if err != nil {
		return nil, 0, notOpened(op, d.cfg.Dir, path, err)
	}
	return f, st.Size, nil
}

// notOpened returns the error for a path that could not be opened.
func notOpened(op, dir, path string, err error) error {
	if os.IsPermission(err) {
		return errs.Wrap(errs.Denied, op, err)
	}
	return noFile(op, dir, path)
}

// checkReader returns an error if the reader may not read the file, or look up
// names in the folder, that is open behind fd.
func (d *Driver) checkReader(fd int, path string) error {
	if d.cfg.Reader.All() {
		return nil
	}
	st, err := inode.StatAt(fd, "")
	if err != nil {
		return err
	}
	xattrs, err := inode.ReadXattrsPath(fd)
	if err != nil {
		return err
	}
	e := manifest.NewEntry("", st)
	e.Mode, e.Uid, e.Gid = st.Mode, st.Uid, st.Gid // also of a mount point
	e.SetXattrs(xattrs)
	if !d.cfg.Reader.May(&e, rights.Needed(&e)) {
		return notReadable(path)
	}
	return nil
}

func notReadable(path string) error {
	return errs.New(errs.Denied, "", "%q may not be read by the app's owner", path).WithHint("ask root to read it")
}

// findFor finds an entry, and checks that the reader may look into the folders on the way.
func findFor(m *manifest.Manifest, reader rights.Reader, path string) (*manifest.Entry, error) {
	for i := range len(path) + 1 {
		at := path[:i]
		switch {
		case reader.All(), i > 0 && i < len(path) && path[i] != '/':
			continue
		case i == 0:
			at = "."
		}
		e, err := m.Find(at)
		if err != nil || e == nil {
			return nil, err
		}
		if !reader.May(e, rights.Needed(e)) {
			return nil, notReadable(path)
		}
	}
	return m.Find(path)
}
