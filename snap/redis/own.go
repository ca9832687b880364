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

// The ports of a server in the network namespace of a fork, where nothing else listens.
const (
	ownPort = 6379
	ownCall = 6380
)

// Callback is the way from a server in another network namespace to the driver, which is the server's master during a restore.
type Callback struct {
	Port   int    // port of 127.0.0.1 in the server's network namespace
	Socket string // path of the Unix socket on which the driver listens
}

// OwnServer returns how to run an empty server in place of the server of a parent, for the clients in a fork. The error is of kind
// errs.Unsupported if the clients use TLS or another address than one of the loopback.
func OwnServer(of ...snap.Parent) (s snap.Server, err error) {
	a, err := parseDSN(of[0].DSN)
	if err != nil {
		return s, err
	}
	s = snap.Server{
		Programs: []string{"redis-server", "valkey-server"}, Install: "redis-server", Args: []string{snap.ServerConfig},
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

// OwnDSN returns the DSN of the server of OwnServer behind a Unix socket.
func OwnDSN(of snap.Parent, socket string) (string, error) {
	u, err := url.Parse(of.DSN)
	if err != nil {
		return "", errs.New(errs.Invalid, "", "the dsn is not a URL")
	}
	u.Host, u.RawQuery = "", url.Values{"socket": {socket}}.Encode()
	return u.String(), nil
}

// ownConfig returns the server's configuration. The server keeps all data on disk: it has an append-only file from the
// beginning. Nothing is lost when replication fills the server, because it rewrites the file afterwards.
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

// quoted returns any text as a value for a configuration file.
func quoted(s string) string {
	var b strings.Builder
	for i := range len(s) {
		fmt.Fprintf(&b, `\x%02x`, s[i])
	}
	return `"` + b.String() + `"`
}

// ServerKind returns "", because a server of any version can replace another.
func (d *Driver) ServerKind(context.Context) (string, error) { return "", nil }

// Answers returns nil if the server answers and is not loading data.
func (d *Driver) Answers(ctx context.Context) error {
	c, err := d.dial(ctx)
	if err != nil {
		return d.classify("ask the server", err)
	}
	defer c.close()
	_, err = c.info("replication")
	return d.classify("ask the server", err)
}

// calledBack is a listener on a socket, whose Addr is the address that the server uses for it.
type calledBack struct {
	*net.UnixListener
	addr net.Addr
}

func (l calledBack) Addr() net.Addr { return l.addr }

// listen creates the socket again and listens on it. Everybody may connect, because the master requires a password.
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
