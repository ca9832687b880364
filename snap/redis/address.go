package redis

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"mulligan/ipc/errs"
)

// address is where a server is, and how to log in.
type address struct {
	network, addr  string // "tcp" or "unix"
	tls            *tls.Config
	user, password string
	db             int
}

// String names the server, without credentials.
func (a address) String() string { return a.addr }

// parseDSN reads a DSN. No error of it repeats any of the DSN: it may hold a password.
func parseDSN(dsn string) (address, error) {
	bad := func(what string) error {
		return errs.New(errs.Invalid, "", "the dsn %s", what).
			WithHint("write redis://[user:password@]host[:port][/db], or redis:///?socket=/run/redis/redis.sock")
	}
	u, err := url.Parse(dsn)
	if err != nil || u.Opaque != "" || u.Scheme != "redis" && u.Scheme != "rediss" {
		return address{}, bad("is not a redis:// URL")
	}
	a := address{network: "tcp", user: u.User.Username()}
	a.password, _ = u.User.Password()
	if n := strings.Trim(u.Path, "/"); n != "" {
		if a.db, err = strconv.Atoi(n); err != nil || a.db < 0 {
			return address{}, bad("ends with a path that is not a database's number")
		}
	}
	if socket := u.Query().Get("socket"); socket != "" {
		if !filepath.IsAbs(socket) || u.Host != "" || u.Scheme == "rediss" {
			return address{}, bad("names a socket, which takes an absolute path, no host and no TLS")
		}
		a.network, a.addr = "unix", socket
		return a, nil
	}
	host, port := u.Hostname(), u.Port()
	if host == "" {
		host = "localhost"
	}
	if port == "" {
		port = "6379"
	}
	a.addr = net.JoinHostPort(host, port)
	if u.Scheme == "rediss" {
		a.tls = &tls.Config{ServerName: host, MinVersion: tls.VersionTLS12}
	}
	return a, nil
}

// connect opens a connection. A unix socket is opened with the owner's rights,
// so that nobody gets at a server by way of the daemon that is closed to them.
func (d *Driver) connect(ctx context.Context) (net.Conn, error) {
	dial := func() (net.Conn, error) {
		return (&net.Dialer{Timeout: d.cfg.Timeout}).DialContext(ctx, d.server.network, d.server.addr)
	}
	var c net.Conn
	var err error
	if d.server.network == "unix" && os.Geteuid() == 0 && d.cfg.UID > 0 {
		c, err = asUser(d.cfg.UID, d.cfg.GID, dial)
	} else {
		c, err = dial()
	}
	if err != nil || d.server.tls == nil {
		return c, err
	}
	t := tls.Client(c, d.server.tls)
	if err := t.HandshakeContext(ctx); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return t, nil
}

// asUser calls f in a thread that has the rights of a user, and that ends with it.
func asUser(uid, gid int, f func() (net.Conn, error)) (c net.Conn, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlocked: the thread dies with the goroutine
		if err = dropRights(uid, gid); err == nil {
			c, err = f()
		}
	}()
	<-done
	return c, err
}

// dropRights takes root's rights from the calling thread alone.
func dropRights(uid, gid int) error {
	if _, _, e := unix.RawSyscall(unix.SYS_SETGROUPS, 0, 0, 0); e != 0 {
		return e
	}
	if _, _, e := unix.RawSyscall(unix.SYS_SETRESGID, uintptr(gid), uintptr(gid), uintptr(gid)); e != 0 {
		return e
	}
	if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid)); e != 0 {
		return e
	}
	return nil
}
