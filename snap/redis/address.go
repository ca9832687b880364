package redis

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"

	"mulligan/errs"
)

// address is the address of a server, with the credentials.
type address struct {
	network, addr  string // "tcp" or "unix"
	tls            *tls.Config
	user, password string
	db             int
}

// String returns the address without credentials.
func (a address) String() string { return a.addr }

// parseDSN parses a DSN. Its errors never repeat the DSN, which may contain a password.
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

// connect opens a connection with the owner's rights, so that the daemon does not help anybody to connect to a server without
// permission.
func (d *Driver) connect(ctx context.Context) (net.Conn, error) {
	dial := d.cfg.Owner.Dial
	if d.cfg.Dial != nil {
		dial = d.cfg.Dial
	}
	c, err := dial(ctx, d.server.network, d.server.addr)
	if err != nil || d.server.tls == nil {
		return c, err
	}
	t := tls.Client(c, d.server.tls)
	if err := t.HandshakeContext(ctx); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return t, nil
}
