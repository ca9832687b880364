package watch

import (
	"io"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"mulligan/snap/files/inode"
)

// mounts is the kernel's table of mounts, as far as it is about the workspace. inotify has no event for a mount or for the end of one, but who
// polls the table learns that it changed (proc_pid_mounts(5)).
type mounts struct {
	table *os.File
	dir   string
	at    map[string]bool // the mount points in the workspace, relative to it
}

// openMounts reads the table. The caller must close it.
func openMounts(dir string) (*mounts, error) {
	const table = "/proc/self/mountinfo"
	fd, err := unix.Open(table, unix.O_RDONLY|unix.O_CLOEXEC, 0) // os.Open would let the runtime poll it, which takes the news away
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: table, Err: err}
	}
	m := &mounts{table: os.NewFile(uintptr(fd), table), dir: dir}
	if m.at, err = m.read(); err != nil {
		m.close()
		return nil, err
	}
	return m, nil
}

func (m *mounts) close() {
	if m != nil {
		_ = m.table.Close()
	}
}

func (m *mounts) read() (map[string]bool, error) {
	if _, err := m.table.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	list, err := inode.Mounts(m.table)
	at := map[string]bool{}
	for _, x := range list {
		if path, below := strings.CutPrefix(x.Path, strings.TrimSuffix(m.dir, "/")+"/"); below {
			at[path] = true
		}
	}
	return at, err
}

// changed returns the paths that became mount points, or are no more, since the last call.
func (m *mounts) changed() (paths []string, err error) {
	table := []unix.PollFd{{Fd: int32(m.table.Fd()), Events: unix.POLLPRI}}
	for n := -1; n < 0; {
		if n, err = unix.Poll(table, 0); err != nil && err != unix.EINTR {
			return nil, os.NewSyscallError("poll", err)
		}
		if n == 0 {
			return nil, nil
		}
	}
	now, err := m.read()
	if err != nil {
		return nil, err
	}
	for _, half := range [][2]map[string]bool{{now, m.at}, {m.at, now}} {
		for p := range half[0] {
			if !half[1][p] {
				paths = append(paths, p)
			}
		}
	}
	m.at = now
	slices.Sort(paths)
	return paths, nil
}

// remounts takes in what was mounted and unmounted in the workspace.
func (s *session) remounts() error {
	paths, err := s.mounts.changed()
	for _, p := range paths {
		if err == nil {
			err = s.remounted(p)
		}
	}
	return err
}

// remounted looks again at a path where something was mounted or unmounted. If the folder it is in is not watched, it is in another mount, or is
// excluded, or still to be probed.
func (s *session) remounted(path string) error {
	in, names := s.top, strings.Split(path, "/")
	last := len(names) - 1
	for _, name := range names[:last] {
		if in = in.kids[name]; in == nil {
			return nil
		}
	}
	s.report(path, false)
	return s.probe(in, names[last])
}
