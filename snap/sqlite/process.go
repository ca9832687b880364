package sqlite

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// by returns a process for a message: " by process 12 (node)".
func by(pid int) string {
	if pid <= 0 {
		return " by another process"
	}
	comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil {
		return fmt.Sprintf(" by process %d", pid)
	}
	return fmt.Sprintf(" by process %d (%s)", pid, bytes.TrimSpace(comm))
}

// opener returns a process other than this one that has the file open, or 0. It skips processes
// that this one may not inspect.
func opener(file unix.Stat_t) int {
	for _, pid := range processes() {
		list, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
		for _, fd := range list {
			// AT_STATX_DONT_SYNC: statx takes what the kernel knows. Otherwise the call would block if any process on the host has a file open on a
			// network filesystem or in FUSE whose server does not answer.
			var st unix.Statx_t
			err := unix.Statx(unix.AT_FDCWD, fd, unix.AT_STATX_DONT_SYNC, unix.STATX_INO, &st)
			if err == nil && unix.Mkdev(st.Dev_major, st.Dev_minor) == file.Dev && st.Ino == file.Ino {
				return pid
			}
		}
	}
	return 0
}

// procPath returns a path to the file of a descriptor of this process.
func procPath(fd int) string { return fmt.Sprintf("/proc/self/fd/%d", fd) }

// mapped reports whether a process may have the file mapped into memory, where it could write without
// changing the file's times. A process that cannot be inspected counts if the file's mode lets
// others write; processes of root never count for a daemon that is not root.
func mapped(file unix.Stat_t) bool {
	inode := " " + strconv.FormatUint(file.Ino, 10) + " "
	for _, pid := range processes() {
		maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
		if errors.Is(err, os.ErrPermission) && file.Mode&0o022 != 0 {
			return true
		}
		if strings.Contains(string(maps), inode) {
			return true
		}
	}
	return false
}

// processes lists all other processes.
func processes() []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var list []int
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil && pid != os.Getpid() {
			list = append(list, pid)
		}
	}
	return list
}
