package files

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/beneath"
	"mulligan/snap/files/inode"
)

// entry reads the one name; of a folder only what stat tells.
func (s *scan) entry(dir *beneath.Root, path, name string, st inode.Stat) (*node, error) {
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
func (s *scan) read(dir *beneath.Root, path string, n *node, st inode.Stat) error {
	if (s.fresh == nil || !s.fresh(path)) && !s.mapped[st.ID.Ino] {
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
func (s *scan) readPrefix(dir *beneath.Root, path string, n *node) (st inode.Stat, ok bool, err error) {
	f, err := inode.OpenAny(dir, n.name, true)
	if err != nil {
		return st, false, s.failed(path, err)
	}
	defer f.Close()
	fd := int(f.Fd())
	if st, err = inode.StatAt(fd, ""); err != nil {
		return st, false, s.failed(path, err)
	}
	n.entry = newEntry(n.name, st)
	xattrs, err := inode.ReadXattrs(fd)
	if err != nil {
		return st, false, s.failed(path, err)
	}
	n.setXattrs(xattrs)
	var hashes [2]snap.Hash
	for i := range hashes {
		if hashes[i], err = readFirst(versions(s.sink, path), f, st.Size); err != nil {
			return st, false, nil
		}
	}
	after, err := inode.StatAt(fd, "")
	if err != nil {
		return st, false, s.failed(path, err)
	}
	n.hash = hashes[0]
	same := hashes[0] == hashes[1] && after.Mode == st.Mode && after.Uid == st.Uid && after.Gid == st.Gid
	return st, same && after.Size >= st.Size, nil
}

func (s *scan) note(n *node, st inode.Stat) {
	s.mark(st)
	n.id, n.ctime, n.nlink = st.ID, st.Ctime, st.Nlink
	if st.Nlink > 1 {
		n.tie = fmt.Sprint(st.ID.Dev, ":", st.ID.Ino)
	}
}

// readOnce opens the name and reads it; errGrew says that it changed meanwhile.
func (s *scan) readOnce(dir *beneath.Root, path string, n *node) (inode.Stat, error) {
	f, err := inode.OpenAny(dir, n.name, n.isFile())
	if err != nil {
		return inode.Stat{}, s.failed(path, err)
	}
	defer f.Close()
	fd := int(f.Fd())
	before, err := inode.StatAt(fd, "")
	if err != nil {
		return inode.Stat{}, s.failed(path, err)
	}
	if before.Kind() != n.kind() {
		return inode.Stat{}, errMoved
	}
	if n.isFile() && before.Size > maxFile {
		return inode.Stat{}, errs.New(errs.Invalid, s.op, "%s has a size of %d bytes, holes included, and a file may have %d", s.shown(path), before.Size, int64(maxFile)).
			WithHint("truncate it, or exclude it")
	}
	n.entry = newEntry(n.name, before)
	var link string
	var xattrs []inode.Xattr
	switch {
	case n.isFile():
		if n.hash, err = readContent(versions(s.sink, path), f, before.Size); err == nil {
			xattrs, err = inode.ReadXattrs(fd)
		}
	case n.symlink():
		if link, err = inode.Readlink(fd); err == nil {
			xattrs, err = inode.ReadXattrsPath(fd)
		}
	default:
		xattrs, err = inode.ReadXattrsPath(fd)
	}
	if err != nil {
		return inode.Stat{}, s.failed(path, err)
	}
	n.setLink(link)
	n.setXattrs(xattrs)
	after, err := inode.StatAt(fd, "")
	if err == nil && !before.Same(after) {
		err = errGrew
	}
	return after, err
}
