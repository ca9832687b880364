package ipc

import (
	"cmp"
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"strconv"
	"sync"
)

// Conns caps the connections of a server, in all and for each peer: a uid on a
// unix socket, an address on TCP. A connection that comes when a cap is reached
// takes the place of another, of the same peer or, for the cap of all, of any:
// the oldest of the lowest rank. So clients that hold connections and say
// nothing, or half of something, or that nobody knows, shut nobody out.
type Conns struct {
	total, perPeer int

	mu   sync.Mutex
	seq  int64
	open map[net.Conn]*held
	per  map[string]int
}

type held struct {
	peer   string
	seq    int64 // the order of connecting
	busy   bool  // a request's headers came, and its answer is not out
	caller standing
}

// standing is what is known of who uses a connection, from its last request.
type standing int

const (
	nobody     standing = iota // sent no credentials yet, or wrong ones
	guest                      // sent an id that anybody can make up
	vouchedFor                 // sent good credentials, or is known to the kernel
)

// never is the rank of connections that keep their places.
const never = 4

// rank says which connections give way first. The requests of callers that
// nobody knows, and then those of guests, end for a new connection; those of known
// callers don't. A known caller's connection without a request is the last to
// go: its next request may be under way to it.
func (h *held) rank() int {
	switch {
	case h.caller == nobody:
		return 0
	case h.caller == guest && !h.busy:
		return 1
	case h.caller == guest:
		return 2
	case !h.busy:
		return 3
	}
	return never
}

// NewConns makes caps of total connections, and of perPeer for each peer.
func NewConns(total, perPeer int) *Conns {
	return &Conns{total: total, perPeer: perPeer, open: map[net.Conn]*held{}, per: map[string]int{}}
}

// Listen is l, capped.
func (c *Conns) Listen(l net.Listener) net.Listener { return &cappedListener{l, c} }

type cappedListener struct {
	net.Listener
	conns *Conns
}

func (l *cappedListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if l.conns.add(conn) {
			return conn, nil
		}
		conn.Close() // nothing was said on it
	}
}

// add counts conn in, if need be for another; false where there is no room.
func (c *Conns) add(conn net.Conn) bool {
	peer, caller := peerName(conn)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.per[peer] >= c.perPeer && !c.evict(peer) {
		return false
	}
	if len(c.open) >= c.total && !c.evict("") {
		return false
	}
	c.seq++
	c.open[conn] = &held{peer: peer, seq: c.seq, caller: caller}
	c.per[peer]++
	return true
}

// evict closes the connection that gives way first, of the peer or, for "", of
// all: of those with the lowest rank one of the peer that has most connections,
// and of these the oldest.
func (c *Conns) evict(peer string) bool {
	var first net.Conn
	order := func(conn net.Conn) (rank, others int, seq int64) {
		h := c.open[conn]
		return h.rank(), -c.per[h.peer], h.seq
	}
	for conn, h := range c.open {
		if peer != "" && h.peer != peer || h.rank() == never {
			continue
		}
		if first == nil {
			first = conn
			continue
		}
		r1, n1, s1 := order(conn)
		r2, n2, s2 := order(first)
		if cmp.Or(cmp.Compare(r1, r2), cmp.Compare(n1, n2), cmp.Compare(s1, s2)) < 0 {
			first = conn
		}
	}
	if first == nil {
		return false
	}
	c.remove(first)
	first.Close() // the server notices
	return true
}

func (c *Conns) remove(conn net.Conn) {
	h, ok := c.open[conn]
	if !ok {
		return
	}
	delete(c.open, conn)
	if c.per[h.peer]--; c.per[h.peer] == 0 {
		delete(c.per, h.peer)
	}
}

// state follows what a server does with a connection. One is StateActive from
// when its request's headers are read until the answer is written.
func (c *Conns) state(conn net.Conn, s http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	conn = underTLS(conn)
	switch s {
	case http.StateClosed, http.StateHijacked:
		c.remove(conn)
	default:
		if h, ok := c.open[conn]; ok {
			h.busy = s == http.StateActive
		}
	}
}

// Identify notes who the request with the context ctx comes from, nil for nobody
// that is known. Until then its connection has the rank of the request before.
func (c *Conns) Identify(ctx context.Context, who *Caller) {
	conn, _ := ctx.Value(connKey{}).(net.Conn)
	c.mu.Lock()
	defer c.mu.Unlock()
	h, ok := c.open[conn]
	switch {
	case !ok:
	case who == nil:
		h.caller = nobody
	case who.Guest != "":
		h.caller = guest
	default:
		h.caller = vouchedFor
	}
}

type connKey struct{}

// withConn is the context of a connection's requests, for Identify.
func withConn(ctx context.Context, conn net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, underTLS(conn))
}

// underTLS is the connection that was accepted.
func underTLS(conn net.Conn) net.Conn {
	if t, ok := conn.(*tls.Conn); ok {
		return t.NetConn()
	}
	return conn
}

// peerName names the other end, and says what is known of it already.
func peerName(conn net.Conn) (string, standing) {
	if who, err := peerOf(conn); err == nil {
		return "uid " + strconv.Itoa(who.UID), vouchedFor
	}
	host, _, err := net.SplitHostPort(conn.RemoteAddr().String())
	if err != nil {
		host = "unknown"
	}
	return host, nobody
}
