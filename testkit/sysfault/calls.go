package sysfault

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// call is a system call that is watched.
type call struct {
	name   string
	object func(*notification) (string, bool) // what it is done to
}

// calls are those that are watched, by number.
var calls = map[int32]call{
	unix.SYS_OPENAT:          {"open", pathAt(0, 1)},
	unix.SYS_OPENAT2:         {"open", pathAt(0, 1)},
	unix.SYS_READ:            {"read", openFile(0)},
	unix.SYS_PREAD64:         {"read", openFile(0)},
	unix.SYS_GETDENTS64:      {"list", openFile(0)},
	unix.SYS_WRITE:           {"write", openFile(0)},
	unix.SYS_PWRITE64:        {"write", openFile(0)},
	unix.SYS_PWRITEV2:        {"write", openFile(0)},
	unix.SYS_COPY_FILE_RANGE: {"write", openFile(2)},
	unix.SYS_FTRUNCATE:       {"truncate", openFile(0)},
	unix.SYS_FALLOCATE:       {"allocate", openFile(0)},
	unix.SYS_FSYNC:           {"sync", openFile(0)},
	unix.SYS_FDATASYNC:       {"sync", openFile(0)},
	unix.SYS_SYNCFS:          {"syncfs", openFile(0)},
	unix.SYS_FCHMOD:          {"chmod", openFile(0)},
	unix.SYS_FCHMODAT:        {"chmod", pathAt(0, 1)},
	unix.SYS_FCHOWNAT:        {"chown", pathAt(0, 1)},
	unix.SYS_UTIMENSAT:       {"utimes", pathAt(0, 1)},
	unix.SYS_RENAMEAT:        {"rename", pathAt(2, 3)},
	unix.SYS_RENAMEAT2:       {"rename", pathAt(2, 3)},
	unix.SYS_LINKAT:          {"link", pathAt(2, 3)},
	unix.SYS_SYMLINKAT:       {"symlink", pathAt(1, 2)},
	unix.SYS_UNLINKAT:        {"unlink", pathAt(0, 1)},
	unix.SYS_MKDIRAT:         {"mkdir", pathAt(0, 1)},
	unix.SYS_EXECVE:          {"exec", pathArg(0)},
	unix.SYS_CONNECT:         {"connect", openFile(0)},
	unix.SYS_SENDTO:          {"write", openFile(0)},
	unix.SYS_RECVFROM:        {"read", openFile(0)},
}

// pathAt is a path argument, relative to the folder that another one holds.
func pathAt(dir, arg int) func(*notification) (string, bool) {
	return func(n *notification) (string, bool) {
		rel, ok := n.text(arg)
		if !ok || filepath.IsAbs(rel) {
			return rel, ok
		}
		base := "cwd"
		if fd := int32(n.args[dir]); fd != unix.AT_FDCWD {
			base = fmt.Sprintf("fd/%d", fd)
		}
		at, err := os.Readlink(fmt.Sprintf("/proc/%d/%s", n.pid, base))
		return filepath.Join(at, rel), err == nil
	}
}

func pathArg(arg int) func(*notification) (string, bool) {
	return func(n *notification) (string, bool) { return n.text(arg) }
}

// openFile is what a descriptor is open on. What a runtime keeps for itself
// (pipes, event counters) cannot fail.
func openFile(arg int) func(*notification) (string, bool) {
	return func(n *notification) (string, bool) {
		to, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", n.pid, int32(n.args[arg])))
		if err != nil || strings.HasPrefix(to, "pipe:") || strings.HasPrefix(to, "anon_inode:") ||
			strings.HasPrefix(to, "/dev/") && !strings.HasPrefix(to, "/dev/shm/") {
			return "", false
		}
		return to, true
	}
}

// shutDown ends the connection of the socket that is the call's first argument. Without that, only the call fails.
func (n *notification) shutDown() {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", n.pid)) // n.pid can be any thread's
	if err != nil {
		return
	}
	_, after, _ := strings.Cut(string(status), "\nTgid:")
	word, _, _ := strings.Cut(strings.TrimSpace(after), "\n")
	pid, err := strconv.Atoi(word)
	if err != nil {
		return
	}
	process, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return
	}
	defer unix.Close(process)
	socket, err := unix.PidfdGetfd(process, int(int32(n.args[0])), 0)
	if err != nil {
		return
	}
	defer unix.Close(socket)
	_ = unix.Shutdown(socket, unix.SHUT_RDWR) // of a socket with no connection there is nothing to end
}

// text reads a string argument.
func (n *notification) text(arg int) (string, bool) {
	mem, err := os.Open(fmt.Sprintf("/proc/%d/mem", n.pid))
	if err != nil {
		return "", false
	}
	defer mem.Close()
	b := make([]byte, unix.PathMax)
	at := int64(n.args[arg])
	got, _ := mem.ReadAt(b, at) // the page after the string's may not be there
	if got <= 0 {
		got, _ = mem.ReadAt(b[:4096-at%4096], at)
	}
	s, _, ok := bytes.Cut(b[:max(got, 0)], []byte{0})
	return string(s), ok
}
