package inode

import (
	"bytes"
	"encoding/binary"
	"os"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"mulligan/snap/beneath"
)

// List returns the sorted names in the folder fd.
// Nobody else may list the same open folder meanwhile: they would share one place in it.
func List(fd int) ([]string, error) {
	if _, err := unix.Seek(fd, 0, unix.SEEK_SET); err != nil {
		return nil, err
	}
	buf := listBuffers.Get().(*[]byte)
	defer listBuffers.Put(buf)
	var names []string
	for {
		n, err := unix.ReadDirent(fd, *buf)
		if err == unix.EINTR {
			continue
		}
		if err != nil || n <= 0 {
			slices.Sort(names)
			names = slices.Compact(names) // an entry that is made anew meanwhile may be listed twice
			pack(names)
			return names, err
		}
		_, _, names = unix.ParseDirent((*buf)[:n], -1, names)
	}
}

// ListedKind returns the type that the folder fd lists name with, which is known even if the disk cannot read the file itself. Where the filesystem lists
// no types, ListedKind returns that of a regular file. As with List, nothing else may read from fd meanwhile.
func ListedKind(fd int, name string) uint32 {
	buf := listBuffers.Get().(*[]byte)
	defer listBuffers.Put(buf)
	_, err := unix.Seek(fd, 0, unix.SEEK_SET)
	for err == nil {
		var n int
		if n, err = unix.ReadDirent(fd, *buf); n <= 0 {
			break
		}
		for rest := (*buf)[:n]; len(rest) > 0; {
			entry := rest[:binary.NativeEndian.Uint16(rest[16:])] // struct linux_dirent64, see getdents(2)
			rest = rest[len(entry):]
			if is, _, _ := bytes.Cut(entry[19:], []byte{0}); string(is) == name && entry[18] != unix.DT_UNKNOWN {
				return uint32(entry[18]) << 12
			}
		}
	}
	return unix.S_IFREG
}

// pack copies all names into one piece of memory.
func pack(names []string) {
	all := strings.Join(names, "")
	for i, n := range names {
		names[i], all = all[:len(n)], all[len(n):]
	}
}

var listBuffers = sync.Pool{New: func() any { b := make([]byte, 32<<10); return &b }}

// OpenAny opens a regular file for reading. It opens everything else only as a path (O_PATH), which has no effect on a fifo or
// a device.
func OpenAny(dir *beneath.Root, name string, file bool) (*os.File, error) {
	if file {
		return dir.OpenFile(name, unix.O_RDONLY, 0)
	}
	return OpenPath(dir, name)
}

// OpenPath opens name in dir with O_PATH, and follows no link. name must not have a slash.
func OpenPath(dir *beneath.Root, name string) (*os.File, error) {
	fd, err := unix.Openat(dir.FD(), name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// Readlink returns the target of the symbolic link that is open with O_PATH as fd.
func Readlink(fd int) (string, error) {
	buf := make([]byte, 4096+1) // PATH_MAX limits a target
	n, err := unix.Readlinkat(fd, "", buf)
	if err != nil {
		return "", err
	}
	return string(buf[:n]), nil
}
