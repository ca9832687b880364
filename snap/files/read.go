package files

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/beneath"
)

// entry reads the one name; of a folder only what stat tells.
func (s *scan) entry(dir *beneath.Root, path, name string, st stat) (*node, error) {
	n := &node{entry: newEntry(name, st)}
	if n.mount {
		s.mounted(path, n)
		return n, nil
	}
	if n.isDir() {
		return n, nil
	}
	err := s.read(dir, path, n, st)
	if errors.Is(err, unix.EXDEV) {
		s.mounted(path, n)
		return n, nil
	}
	return n, err
}

// read completes n with what lies behind stat: content, target, attributes.
func (s *scan) read(dir *beneath.Root, path string, n *node, st stat) error {
	if (s.fresh == nil || !s.fresh(path)) && !s.mapped[st.id.ino] {
		if s.mind.find(path, st, &n.entry) && (n.hash.IsZero() || s.has(n.hash)) {
			s.note(n, st)
			n.sure = true
			return nil
		}
	}
	for range fileTries {
		at := time.Now()
		st, err := s.readOnce(dir, path, n)
		if err == nil {
			s.note(n, st)
			s.mind.add(st, &n.entry, at)
			n.sure = settled(st, at)
			return nil
		}
		if !errors.Is(err, errGrew) {
			return err
		}
	}
	if s.lax != nil && n.isFile() {
		if st, ok, err := s.readPrefix(dir, path, n); ok || err != nil {
			s.note(n, st)
			return err
		}
	}
	return snap.Changed(s.op, s.shown(path))
}

// readPrefix reads a file that others append to: what two readings one after
// the other agree on was its content at some time between, as long as it was
// not shorter then.
func (s *scan) readPrefix(dir *beneath.Root, path string, n *node) (st stat, ok bool, err error) {
	f, err := openAny(dir, n.name, true)
	if err != nil {
		return st, false, s.failed(path, err)
	}
	defer f.Close()
	fd := int(f.Fd())
	if st, err = statAt(fd, ""); err != nil {
		return st, false, s.failed(path, err)
	}
	n.entry = newEntry(n.name, st)
	xattrs, err := readXattrs(fd)
	if err != nil {
		return st, false, s.failed(path, err)
	}
	n.setXattrs(xattrs)
	var hashes [2]snap.Hash
	for i := range hashes {
		if hashes[i], err = readFirst(versions(s.sink, path), f, st.size); err != nil {
			return st, false, nil
		}
	}
	after, err := statAt(fd, "")
	if err != nil {
		return st, false, s.failed(path, err)
	}
	n.hash = hashes[0]
	same := hashes[0] == hashes[1] && after.mode == st.mode && after.uid == st.uid && after.gid == st.gid
	return st, same && after.size >= st.size, nil
}

func (s *scan) note(n *node, st stat) {
	s.mark(st)
	n.id, n.ctime, n.nlink = st.id, st.ctime, st.nlink
	if st.nlink > 1 {
		n.tie = fmt.Sprint(st.id.dev, ":", st.id.ino)
	}
}

// readOnce opens the name and reads it; errGrew says that it changed meanwhile.
func (s *scan) readOnce(dir *beneath.Root, path string, n *node) (stat, error) {
	f, err := openAny(dir, n.name, n.isFile())
	if err != nil {
		return stat{}, s.failed(path, err)
	}
	defer f.Close()
	fd := int(f.Fd())
	before, err := statAt(fd, "")
	if err != nil {
		return stat{}, s.failed(path, err)
	}
	if before.kind() != n.kind() {
		return stat{}, errMoved
	}
	if n.isFile() && before.size > maxFile {
		return stat{}, errs.New(errs.Invalid, s.op, "%s has a size of %d bytes, holes included, and a file may have %d", s.shown(path), before.size, int64(maxFile)).
			WithHint("truncate it, or exclude it")
	}
	n.entry = newEntry(n.name, before)
	var link string
	var xattrs []xattr
	switch {
	case n.isFile():
		if n.hash, err = readContent(versions(s.sink, path), f, before.size); err == nil {
			xattrs, err = readXattrs(fd)
		}
	case n.symlink():
		if link, err = readlink(fd); err == nil {
			xattrs, err = readXattrsPath(fd)
		}
	default:
		xattrs, err = readXattrsPath(fd)
	}
	if err != nil {
		return stat{}, s.failed(path, err)
	}
	n.setLink(link)
	n.setXattrs(xattrs)
	after, err := statAt(fd, "")
	if err == nil && !before.same(after) {
		err = errGrew
	}
	return after, err
}

// openAny opens a regular file for reading, and anything else without opening
// the thing itself (O_PATH): a fifo or a device must not notice.
func openAny(dir *beneath.Root, name string, file bool) (*os.File, error) {
	if file {
		return dir.OpenFile(name, unix.O_RDONLY, 0)
	}
	return openPath(dir, name)
}

// openPath opens name, which has no slash, with O_PATH, following nothing.
func openPath(dir *beneath.Root, name string) (*os.File, error) {
	fd, err := unix.Openat(dir.FD(), name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// readlink gives the target of the link that is open with O_PATH.
func readlink(fd int) (string, error) {
	buf := make([]byte, 4096+1) // PATH_MAX bounds a target
	n, err := unix.Readlinkat(fd, "", buf)
	if err != nil {
		return "", err
	}
	return string(buf[:n]), nil
}
