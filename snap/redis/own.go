package redis

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"

	"mulligan/errs"
	"mulligan/snap"
)

// The ports of a server of an app's own, in its network namespace, where nothing else listens.
const (
	ownPort = 6379
	ownCall = 6380
)

// Callback is how a server in a network namespace of its own reaches the driver, which is its master during a restore.
type Callback struct {
	Port   int    // of 127.0.0.1, as the server sees it
	Socket string // where the driver listens
}

// OwnServer says how to run an empty server that answers the clients of the server at dsn.
func OwnServer(dsn string) (s snap.Server, err error) {
	a, err := parseDSN(dsn)
	if err != nil {
		return s, err
	}
	s = snap.Server{
		Programs: []string{"redis-server", "valkey-server"}, Args: []string{snap.ServerConfig},
		Config: ownConfig(a), Listen: ownPort, Call: ownCall,
	}
	if a.network == "unix" {
		s.Socket = a.addr
		return s, nil
	}
	host, port, err := net.SplitHostPort(a.addr)
	if err != nil {
		return s, err
	}
	switch ip := net.ParseIP(host); {
	case a.tls != nil:
		return s, errs.New(errs.Unsupported, "", "its clients use TLS, and a fork's own server has no certificate")
	case host != "localhost" && (ip == nil || !ip.IsLoopback()):
		return s, errs.New(errs.Unsupported, "", "it is at %s, and a fork's own server has an address of the loopback", host)
	}
	s.Port, err = strconv.Atoi(port)
	return s, err
}

// OwnDSN is the DSN of such a server behind a Unix socket.
func OwnDSN(dsn, socket string) (string, error) {
	u, err := url.Parse(dsn)
	if err != nil {
		return "", errs.New(errs.Invalid, "", "the dsn is not a URL")
	}
	u.Host, u.RawQuery = "", url.Values{"socket": {socket}}.Encode()
	return u.String(), nil
}

// ownConfig is the server's configuration. It keeps all data on disk: an append-only file from the beginning loses nothing, since the
// server is filled by replication, after which it rewrites the file.
func ownConfig(a address) []byte {
	var b strings.Builder
	fmt.Fprintf(&b, "bind 127.0.0.1\nport %d\ndir %s\nprotected-mode no\ndaemonize no\nlogfile \"\"\n", ownPort, snap.ServerData)
	b.WriteString("save \"\"\nappendonly yes\nrepl-diskless-sync-delay 0\ndatabases 256\n")
	switch {
	case a.password != "" && (a.user == "" || a.user == "default"):
		fmt.Fprintf(&b, "requirepass %s\n", quoted(a.password))
	case a.user != "" && a.password != "":
		fmt.Fprintf(&b, "user %s on #%x ~* +@all\n", quoted(a.user), sha256.Sum256([]byte(a.password)))
	case a.user != "":
		fmt.Fprintf(&b, "user %s on nopass ~* +@all\n", quoted(a.user))
	}
	return []byte(b.String())
}

// quoted writes any text as a value of a configuration file.
func quoted(s string) string {
	var b strings.Builder
	for i := range len(s) {
		fmt.Fprintf(&b, `\x%02x`, s[i])
	}
	return `"` + b.String() + `"`
}

// Answers returns nil when the server answers and is not loading data.
func (d *Driver) Answers(ctx context.Context) error {
	c, err := d.dial(ctx)
	if err != nil {
		return d.classify("ask the server", err)
	}
	defer c.close()
	_, err = c.info("replication")
	return d.classify("ask the server", err)
}

// calledBack is a listener at a socket, with the address under which the server knows it.
type calledBack struct {
	*net.UnixListener
	addr net.Addr
}

func (l calledBack) Addr() net.Addr { return l.addr }

// listen makes the socket anew. Whoever can reach it may connect: the master asks for a password.
func (b Callback) listen() (net.Listener, error) {
	if err := os.Remove(b.Socket); err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: b.Socket, Net: "unix"})
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(b.Socket, 0o666); err != nil {
		return nil, errs.Also(err, l.Close())
	}
	return calledBack{l, &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: b.Port}}, nil
}
