package watch

import (
	"encoding/binary"
	"errors"
	"maps"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"mulligan/durable"
	"mulligan/snap/files/inode"
)

// folder is a watched folder. Its path is that at the time of the events that were read so far.
type folder struct {
	parent *folder // nil: the workspace itself
	name   string
	kids   map[string]*folder
	watch  int
	id     inode.ID
	gone   bool
}

// path is relative to the workspace.
func (f *folder) path() string {
	if f.parent == nil {
		return "."
	}
	var names []string
	for ; f.parent != nil; f = f.parent {
		names = append(names, f.name)
	}
	slices.Reverse(names)
	return strings.Join(names, "/")
}

func join(dir, name string) string {
	if dir == "." {
		return name
	}
	return dir + "/" + name
}

// place is a name in a folder that may be that of a folder.
type place struct {
	in   *folder
	name string
}

// probe watches the entry with this name if it is a folder of the workspace, and adds the folders in it to the list of places
// to probe. It first forgets the former entry of this name.
func (s *session) probe(in *folder, name string) error {
	if in.gone {
		return nil
	}
	if old := in.kids[name]; old != nil {
		s.drop(old)
	}
	path := join(in.path(), name)
	if s.excluded(path, true) {
		return nil
	}
	dir, err := s.root.OpenFile(path, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return s.probed(in, name, err)
	}
	defer dir.Close()
	f := &folder{parent: in, name: name}
	if err := s.add(f, dir); err != nil || f.gone {
		return err
	}
	if s.ready { // until then, All is reported anyway
		s.w.markTree(path)
	}
	return s.probed(in, name, s.list(f, dir))
}

// probed distinguishes an error about the name from one of the watcher. What a disk or a server fails to open or to list now is probed again
// later, since no event says that it succeeds again.
func (s *session) probed(in *folder, name string, err error) error {
	isOneOf := func(list ...error) bool {
		return slices.ContainsFunc(list, func(is error) bool { return errors.Is(err, is) })
	}
	switch {
	case isOneOf(unix.ESTALE) || durable.Unreadable(err):
		if f := in.kids[name]; f != nil {
			s.drop(f)
		}
		s.failed[place{in, name}] = true
	case !isOneOf(unix.ENOENT, unix.ENOTDIR, unix.ELOOP, unix.EXDEV, unix.EACCES, unix.EPERM):
		return err
	}
	return nil
}

// retry adds the places that failed to the list of places to probe.
func (s *session) retry() {
	s.todo = slices.AppendSeq(s.todo, maps.Keys(s.failed))
	clear(s.failed)
}

// add watches f, which is open as dir. If no watch is left, f is not watched, and s.missing is set.
func (s *session) add(f *folder, dir *os.File) error {
	fd := int(dir.Fd())
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	f.id = inode.ID{Dev: st.Dev, Ino: st.Ino}
	if old := s.inodes[f.id]; old != nil {
		// The folder was moved here, and the event of the move has not been read yet. The kernel has one watch per inode, so it would
		// return the old one.
		s.drop(old)
		if f.parent != nil && f.parent.gone { // its parent was dropped too, beginning with the folders below
			f.gone = true
			return nil
		}
	}
	if !s.w.opt.Budget.take() {
		s.missing = f
		s.enter(f)
		return nil
	}
	switch watch, err := s.queue.add(fd); {
	case err == nil:
		f.watch = watch
		s.ids[watch], s.inodes[f.id] = f, f
	case errors.Is(err, unix.ENOSPC):
		s.w.opt.Budget.give(1)
		s.missing = f
	default:
		s.w.opt.Budget.give(1)
		return err
	}
	s.enter(f)
	return nil
}

// enter makes f one of the folders in its parent.
func (s *session) enter(f *folder) {
	if f.parent == nil {
		return
	}
	if f.parent.kids == nil {
		f.parent.kids = map[string]*folder{}
	}
	f.parent.kids[f.name] = f
}

// list adds the folders in f, which is open as dir, to the list of places to probe. f must be watched already, so that later
// folders cause an event.
func (s *session) list(f *folder, dir *os.File) error {
	names, err := subfolders(int(dir.Fd()), s.buf)
	for _, name := range names {
		s.todo = append(s.todo, place{f, name})
	}
	return err
}

// drop forgets f and everything below it.
func (s *session) drop(f *folder) {
	if f.parent != nil && f.parent.kids[f.name] == f {
		delete(f.parent.kids, f.name)
	}
	s.forget(f)
}

func (s *session) forget(f *folder) {
	f.gone = true
	if s.ids[f.watch] == f {
		delete(s.ids, f.watch)
		s.queue.remove(f.watch)
		s.w.opt.Budget.give(1)
	}
	if s.inodes[f.id] == f {
		delete(s.inodes, f.id)
	}
	for _, k := range f.kids {
		s.forget(k)
	}
	f.kids = nil
}

// subfolders returns the names in the folder fd that may be those of folders.
func subfolders(fd int, buf []byte) ([]string, error) {
	var names []string
	for {
		n, err := unix.ReadDirent(fd, buf)
		if err == unix.EINTR {
			continue
		}
		if err != nil || n <= 0 {
			return names, err
		}
		for b := buf[:n]; len(b) > 19; { // struct linux_dirent64: getdents64(2)
			size := binary.NativeEndian.Uint16(b[16:])
			if kind := b[18]; kind == unix.DT_DIR || kind == unix.DT_UNKNOWN {
				name, _, _ := strings.Cut(string(b[19:size]), "\x00")
				if name != "." && name != ".." {
					names = append(names, name)
				}
			}
			b = b[size:]
		}
	}
}
