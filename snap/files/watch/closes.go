package watch

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// closes asks for one more event than fsnotify does: that a file was closed
// which had been opened for writing. No other comes of stores through a shared
// mapping; this one comes when the mapping is gone and the descriptor closed,
// after the last of them. fsnotify passes on whatever the kernel tells it, under
// an Op that has no name, but has no way to ask for this: so it is asked for
// through its own descriptor (inotify(7), IN_MASK_ADD).
type closes struct{ fd int }

// closesOf finds the inotify descriptor that watches the folder dir, which no
// other does.
func closesOf(dir string) (*closes, error) {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return nil, err
	}
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return nil, err
	}
	for _, e := range list {
		to, err := os.Readlink(filepath.Join("/proc/self/fd", e.Name()))
		if err != nil || to != "anon_inode:inotify" || !watches(e.Name(), st.Ino) {
			continue
		}
		fd, err := strconv.Atoi(e.Name())
		if err == nil {
			fd, err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		}
		return &closes{fd}, err
	}
	return nil, fmt.Errorf("no inotify descriptor watches %s", dir)
}

// watches reports whether the inotify descriptor has a watch of the inode.
func watches(fd string, ino uint64) bool {
	f, err := os.Open(filepath.Join("/proc/self/fdinfo", fd))
	if err != nil {
		return false
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if strings.Contains(lines.Text(), fmt.Sprintf(" ino:%x ", ino)) {
			return true
		}
	}
	return false
}

// add asks for the event of a folder that fsnotify watches.
func (c *closes) add(path string) {
	if c != nil { // a folder that is gone already needs none
		_, _ = unix.InotifyAddWatch(c.fd, path, unix.IN_CLOSE_WRITE|unix.IN_MASK_ADD|unix.IN_ONLYDIR)
	}
}

func (c *closes) close() {
	if c != nil {
		unix.Close(c.fd)
	}
}
