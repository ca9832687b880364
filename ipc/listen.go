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

	"mulligan/durable"
	"mulligan/errs"
)

const opListen = "listen"

// maxSocketPath is the maximal length of a unix socket's path in bytes (unix(7): sun_path has 108 bytes, the last one a NUL).
const maxSocketPath = 107

// Listen makes the socket path with the permissions mode and listens on it. It makes the socket's folder if it is missing; that
// of a user's socket has mode 0700 and must belong to the user. A daemon locks path+".lock" while it listens: for a second
// daemon, Listen fails with errs.Busy. Listen removes the socket of a daemon that died. Close removes the socket.
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

// listener is a socket with its lock.
type listener struct {
	*net.UnixListener
	lock *os.File
}

// Close removes the socket and then releases the lock. The lock's file stays: if it were removed, two daemons could lock two
// files of the same name.
func (l *listener) Close() error {
	// A child that another goroutine is starting has the lock file open until its exec. If Close only closed the file, the child
	// would keep the lock.
	return errors.Join(l.UnixListener.Close(), unix.Flock(int(l.lock.Fd()), unix.LOCK_UN), l.lock.Close())
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

// lockSocket locks the socket path and writes this process's pid into the lock file. The kernel releases the lock when the
// process ends.
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
	err := durable.Lock(f) // waits a little: a child that a killed daemon was just starting may have the lock until its exec
	if errors.Is(err, unix.EWOULDBLOCK) {
		b, _ := io.ReadAll(io.LimitReader(f, 32)) // for the message, which has no pid if this fails
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

// taken returns the error that another daemon has the socket. pid is 0 if it is not known.
func taken(path string, pid int) error {
	e := errs.New(errs.Busy, opListen, "another daemon uses %s", path)
	if pid > 0 {
		e.Message += fmt.Sprintf(" (pid %d)", pid)
	}
	return e.WithHint("stop it first, or name another socket with --socket and another state folder with --state-dir")
}

// bind makes the socket. The caller must have its lock.
func bind(path string, mode os.FileMode) (*net.UnixListener, error) {
	if err := removeStale(path); err != nil {
		return nil, err
	}
	// A socket's file gets its mode from the unbound socket, minus the umask. Because the mode is set there, the socket is never
	// open to more users than mode allows.
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var chmodErr error
		err := c.Control(func(fd uintptr) { chmodErr = unix.Fchmod(int(fd), uint32(mode.Perm())) })
		return errors.Join(err, chmodErr)
	}}
	l, err := lc.Listen(context.Background(), "unix", path)
	if err != nil {
		return nil, errs.Wrap(errs.Unavailable, opListen, err)
	}
	if err := os.Chmod(path, mode.Perm()); err != nil { // restores the bits that the umask removed
		return nil, errors.Join(errs.Wrap(errs.Unavailable, opListen, err), l.Close())
	}
	return l.(*net.UnixListener), nil
}

// removeStale removes a socket on which no process listens.
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
	if err == nil { // a daemon without the lock, for which systemd listens
		peer, _ := peerOf(conn)
		return errors.Join(taken(path, peer.PID), conn.Close())
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return errs.Wrap(errs.Busy, opListen, err)
	}
	return errs.Wrap(errs.Unavailable, opListen, os.Remove(path))
}
