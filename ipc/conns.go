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

// Conns limits the connections of a server, in total and for each peer: a uid on a unix socket, an address on TCP. When a limit
// is reached, a new connection replaces the oldest one of the lowest rank: one of the same peer or, for the total, of any peer.
// So clients that hold idle connections, or that are not authenticated, cannot exclude others.
type Conns struct {
	total, perPeer int

	mu   sync.Mutex
	seq  int64
	open map[net.Conn]*held
	per  map[string]int
}

type held struct {
	peer   string
	seq    int64 // increases with each connection
	busy   bool  // between the headers of a request and the end of its answer
	caller standing
}

// standing is what the last request on a connection revealed about its client.
type standing int

const (
	nobody     standing = iota // without valid credentials so far
	guest                      // with the id of a guest, which is not authenticated
	vouchedFor                 // with valid credentials, or identified by the kernel
)

// never is the rank of connections that are not replaced.
const never = 4

// rank orders the connections: the lowest is replaced first. Requests of unknown callers, and then those of guests, are ended
// for a new connection; those of known callers are not. A known caller's idle connection is replaced last, because its next
// request may already be on its way.
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

// NewConns returns limits of total connections, and of perPeer for each peer.
func NewConns(total, perPeer int) *Conns {
	return &Conns{total: total, perPeer: perPeer, open: map[net.Conn]*held{}, per: map[string]int{}}
}

// Listen returns a listener on l with the limits.
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
		conn.Close() // nothing was sent on it
	}
}

// add counts conn, and replaces another connection if necessary. It returns false if none can be replaced.
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

// evict closes the connection with the lowest rank, of the peer or, for "", of all. Of several it takes one of the peer with
// the most connections, and of these the oldest.
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

// state records the state that the server reports for a connection. A connection is StateActive from the headers of a request
// until its answer is written.
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

// Identify records the caller of the request with the context ctx; nil means an unknown caller. Until then the connection has
// the rank of its previous request.
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

// withConn returns the context of a connection's requests, which Identify needs.
func withConn(ctx context.Context, conn net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, underTLS(conn))
}

// underTLS returns the connection that was accepted, below TLS.
func underTLS(conn net.Conn) net.Conn {
	if t, ok := conn.(*tls.Conn); ok {
		return t.NetConn()
	}
	return conn
}

// peerName returns the name of the peer and its standing before the first request.
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
