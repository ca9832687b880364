package walk

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/beneath"
	"mulligan/snap/files/inode"
	"mulligan/snap/files/manifest"
	"mulligan/snap/files/relpath"
)

// ReadEntry reads the entry name of the folder dir. For a folder it sets only the fields that stat returns.
func (s *Scan) ReadEntry(dir *beneath.Root, path, name string, st inode.Stat) (*manifest.Node, error) {
	n := &manifest.Node{Entry: manifest.NewEntry(name, st)}
	if len(path) > manifest.MaxPath {
		return n, errs.New(errs.Invalid, s.op, "%s has paths of more than %d bytes in it", s.shown(relpath.Beginning(path)), manifest.MaxPath).
			WithHint("exclude it, or what is deep in it")
	}
	if s.W.Before != nil {
		if err := s.W.Before(path); err != nil {
			return n, err
		}
	}
	if n.Mount {
		s.Mounted(path, n)
		return n, nil
	}
	if n.IsDir() {
		return n, nil
	}
	err := s.read(dir, path, n, st)
	if errors.Is(err, unix.EXDEV) {
		s.Mounted(path, n)
		return n, nil
	}
	return n, err
}

// read sets the content hash, link target and attributes of n, whose stat is st. It takes them from the memory of earlier scans
// if they are reliable there, and otherwise reads the file.
func (s *Scan) read(dir *beneath.Root, path string, n *manifest.Node, st inode.Stat) error {
	if (s.Fresh == nil || !s.Fresh(path)) && !s.Mapped[st.ID.Ino] {
		if s.Memory.Find(path, st, &n.Entry) && (n.Hash.IsZero() || s.has(n.Hash)) {
			s.note(n, st)
			n.Sure = true
			return nil
		}
	}
	for range fileTries {
		at := time.Now()
		st, err := s.readOnce(dir, path, n)
		if err == nil {
			s.note(n, st)
			s.Memory.Add(st, &n.Entry, at)
			n.Sure = Reliable(st, at)
			return nil
		}
		if !errors.Is(err, errGrew) {
			return err
		}
	}
	if s.Skip != nil && n.IsFile() {
		if st, ok, err := s.readPrefix(dir, path, n); ok || err != nil {
			s.note(n, st)
			return err
		}
	}
	return snap.Changed(s.op, s.shown(path))
}

// readPrefix reads a file that is being appended to. It reads the first part twice. If both readings are equal, they are the
// content at some moment between them, provided that the file did not shrink. ok reports this.
func (s *Scan) readPrefix(dir *beneath.Root, path string, n *manifest.Node) (st inode.Stat, ok bool, err error) {
	f, err := inode.OpenAny(dir, n.Name, true)
	if err != nil {
		return st, false, s.Failed(path, err)
	}
	defer f.Close()
	fd := int(f.Fd())
	if st, err = inode.StatAt(fd, ""); err != nil {
		return st, false, s.Failed(path, err)
	}
	n.Entry = manifest.NewEntry(n.Name, st)
	xattrs, err := inode.ReadXattrs(fd)
	if err != nil {
		return st, false, s.Failed(path, err)
	}
	n.SetXattrs(xattrs)
	var hashes [2]snap.Hash
	for i := range hashes {
		if hashes[i], err = readFirst(versions(s.sink, path), f, st.Size); err != nil {
			return st, false, nil
		}
	}
	after, err := inode.StatAt(fd, "")
	if err != nil {
		return st, false, s.Failed(path, err)
	}
	n.Hash = hashes[0]
	same := hashes[0] == hashes[1] && after.Mode == st.Mode && after.Uid == st.Uid && after.Gid == st.Gid
	return st, same && after.Size >= st.Size, nil
}

func (s *Scan) note(n *manifest.Node, st inode.Stat) {
	n.ID, n.Ctime, n.Nlink = st.ID, st.Ctime, st.Nlink
	if st.Nlink > 1 {
		n.LinkKey = fmt.Sprint(st.ID.Dev, ":", st.ID.Ino, ":", st.Birth.Nanos())
	}
}

// readOnce opens and reads the entry. The error is errGrew if the entry changed meanwhile.
func (s *Scan) readOnce(dir *beneath.Root, path string, n *manifest.Node) (inode.Stat, error) {
	f, err := inode.OpenAny(dir, n.Name, n.IsFile())
	if err != nil {
		return inode.Stat{}, s.Failed(path, err)
	}
	defer f.Close()
	fd := int(f.Fd())
	before, err := inode.StatAt(fd, "")
	if err != nil {
		return inode.Stat{}, s.Failed(path, err)
	}
	if before.Kind() != n.Kind() {
		return inode.Stat{}, ErrMoved
	}
	if n.IsFile() && before.Size > manifest.MaxFile {
		return inode.Stat{}, errs.New(errs.Invalid, s.op, "%s has a size of %d bytes, holes included, and a file may have %d", s.shown(path), before.Size, int64(manifest.MaxFile)).
			WithHint("truncate it, or exclude it")
	}
	n.Entry = manifest.NewEntry(n.Name, before)
	var link string
	var xattrs []inode.Xattr
	switch {
	case n.IsFile():
		if n.Hash, err = s.readContent(path, f, before.Size); err == nil {
			xattrs, err = inode.ReadXattrs(fd)
		}
		s.W.Flags.look(fd, path)
	case n.Symlink():
		if link, err = inode.Readlink(fd); err == nil {
			xattrs, err = inode.ReadXattrsPath(fd)
		}
	default:
		xattrs, err = inode.ReadXattrsPath(fd)
	}
	if err != nil {
		return inode.Stat{}, s.Failed(path, err)
	}
	n.SetLink(link)
	n.SetXattrs(xattrs)
	after, err := inode.StatAt(fd, "")
	if err == nil && !before.Same(after) {
		err = errGrew
	}
	return after, err
}
