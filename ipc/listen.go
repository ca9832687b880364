package ipc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"mulligan/errs"
)

const opListen = "listen"

// maxSocketPath is the longest path that a unix socket's address holds, in
// bytes (unix(7): sun_path is 108 bytes, the last one a NUL).
const maxSocketPath = 107

// Listen makes the socket path with the permissions mode and listens on it. Its
// folder is made where it is missing, for the user's socket with mode 0700;
// there it must also be the user's own. One daemon holds path+".lock" as long
// as it listens: for a second one Listen fails with errs.Busy. What a daemon
// that died left behind is removed. Close removes the socket.
func Listen(path string, mode os.FileMode) (net.Listener, error) {
	if len(path) > maxSocketPath {
		return nil, errs.New(errs.Invalid, opListen, "the socket's path is longer than %d bytes: %s", maxSocketPath, path).
			WithHint("name a shorter one with --socket")
	}
	if err := makeFolder(path); err != nil {
		return nil, err
	}
	lock, err := lockSocket(path)
	if err != nil {
		return nil, err
	}
	l, err := bind(path, mode)
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return &listener{l, lock}, nil
}

// listener is a socket and the lock that goes with it.
type listener struct {
	*net.UnixListener
	lock *os.File
}

// Close removes the socket and lets go of the lock, in this order. The lock's
// file stays: were it removed, two daemons could lock two files of one name.
func (l *listener) Close() error {
	// A child that another goroutine is just starting holds the lock file open
	// until its exec: closing alone would leave the lock with it.
	unlock := unix.Flock(int(l.lock.Fd()), unix.LOCK_UN)
	return errors.Join(l.UnixListener.Close(), unlock, l.lock.Close())
}

func makeFolder(path string) error {
	dir := filepath.Dir(path)
	if path != UserSocket() {
		return errs.Wrap(errs.Unavailable, opListen, os.MkdirAll(dir, 0o755))
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return errs.Wrap(errs.Unavailable, opListen, err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return errs.Wrap(errs.Unavailable, opListen, err)
	}
	return checkPrivate(dir)
}

// lockSocket takes the lock of the socket path and writes the own pid into it.
// The lock goes with the process, however that ends.
func lockSocket(path string) (*os.File, error) {
	f, err := os.OpenFile(path+".lock", os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, errs.Wrap(errs.Unavailable, opListen, err)
	}
	if err := claim(f, path); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func claim(f *os.File, path string) error {
	err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		b, _ := io.ReadAll(io.LimitReader(f, 32)) // for the message; without it there is no pid in it
		pid, _ := strconv.Atoi(strings.TrimSpace(string(b)))
		return taken(path, pid)
	}
	if err != nil {
		return errs.Wrap(errs.Unavailable, opListen, err)
	}
	if err := f.Truncate(0); err != nil {
		return errs.Wrap(errs.Unavailable, opListen, err)
	}
	_, err = f.WriteAt(fmt.Appendf(nil, "%d\n", os.Getpid()), 0)
	return errs.Wrap(errs.Unavailable, opListen, err)
}

// taken says that another daemon, of that pid if it is not 0, has the socket.
func taken(path string, pid int) error {
	e := errs.New(errs.Busy, opListen, "another daemon uses %s", path)
	if pid > 0 {
		e.Message += fmt.Sprintf(" (pid %d)", pid)
	}
	return e.WithHint("stop it first, or name another socket with --socket and another state folder with --state-dir")
}

// bind makes the socket. Whoever calls holds its lock.
func bind(path string, mode os.FileMode) (*net.UnixListener, error) {
	if err := removeStale(path); err != nil {
		return nil, err
	}
	// A socket's file takes its mode from the unbound socket, less the umask:
	// set there, no moment passes in which it is open to more than mode says.
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var chmodErr error
		err := c.Control(func(fd uintptr) { chmodErr = unix.Fchmod(int(fd), uint32(mode.Perm())) })
		return errors.Join(err, chmodErr)
	}}
	l, err := lc.Listen(context.Background(), "unix", path)
	if err != nil {
		return nil, errs.Wrap(errs.Unavailable, opListen, err)
	}
	if err := os.Chmod(path, mode.Perm()); err != nil { // what the umask took away
		return nil, errors.Join(errs.Wrap(errs.Unavailable, opListen, err), l.Close())
	}
	return l.(*net.UnixListener), nil
}

// removeStale removes a socket on which nobody listens any more.
func removeStale(path string) error {
	fi, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return errs.Wrap(errs.Unavailable, opListen, err)
	}
	if fi.Mode().Type() != fs.ModeSocket {
		return errs.New(errs.Conflict, opListen, "%s exists and is not a socket", path).WithHint("move it away, or name another with --socket")
	}
	conn, err := net.DialTimeout("unix", path, time.Second)
	if err == nil { // a daemon without the lock: one that systemd listens for
		peer, _ := peerOf(conn)
		return errors.Join(taken(path, peer.PID), conn.Close())
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return errs.Wrap(errs.Busy, opListen, err)
	}
	return errs.Wrap(errs.Unavailable, opListen, os.Remove(path))
}
