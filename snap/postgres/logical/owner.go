package logical

import (
	"context"
	"net"
	"os"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// asOwner calls f on a thread that has the rights of the app's owner, so that
// the daemon, being root, opens nothing that the owner could not. The thread
// never gets root's rights back: it ends. f must not start goroutines.
func (d *Driver) asOwner(f func() error) error {
	if d.cfg.UID <= 0 || os.Geteuid() != 0 {
		return f()
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // for good: a goroutine that ends locked takes its thread along
		err := dropRights(d.cfg.UID, d.cfg.GID)
		if err == nil {
			err = f()
		}
		done <- err
	}()
	return <-done
}

// dropRights gives the calling thread, and no other, the rights of uid and gid.
// The functions of package syscall would change all threads.
func dropRights(uid, gid int) error {
	if _, _, e := unix.RawSyscall(unix.SYS_SETGROUPS, 0, 0, 0); e != 0 {
		return os.NewSyscallError("setgroups", e)
	}
	if _, _, e := unix.RawSyscall(unix.SYS_SETRESGID, uintptr(gid), uintptr(gid), uintptr(gid)); e != 0 {
		return os.NewSyscallError("setresgid", e)
	}
	if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid)); e != 0 {
		return os.NewSyscallError("setresuid", e)
	}
	return nil
}

// credential is whom child processes run as: nil for the daemon itself.
func (d *Driver) credential() *syscall.Credential {
	if d.cfg.UID <= 0 || os.Geteuid() != 0 {
		return nil
	}
	return &syscall.Credential{Uid: uint32(d.cfg.UID), Gid: uint32(d.cfg.GID)}
}

const connectTimeout = 10 * time.Second

// dial connects to the server. On a unix socket the server sees the thread's
// user (SO_PEERCRED), and so lets the owner in by peer login.
func (d *Driver) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	if network != "unix" {
		return (&net.Dialer{Timeout: connectTimeout, KeepAlive: time.Minute}).DialContext(ctx, network, addr)
	}
	var conn net.Conn
	err := d.asOwner(func() (err error) {
		conn, err = dialUnix(addr)
		return err
	})
	return conn, err
}

// dialUnix connects on the calling thread.
func dialUnix(path string) (net.Conn, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close() // FileConn has a duplicate
	timeout := unix.NsecToTimeval(int64(connectTimeout))
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &timeout); err != nil {
		return nil, os.NewSyscallError("setsockopt", err)
	}
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		return nil, &net.OpError{Op: "dial", Net: "unix", Addr: &net.UnixAddr{Name: path, Net: "unix"}, Err: os.NewSyscallError("connect", err)}
	}
	return net.FileConn(f)
}
