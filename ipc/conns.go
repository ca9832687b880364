package ipc

import (
	"crypto/tls"
	"net"
	"net/http"
	"strconv"
	"sync"
)

// Conns caps the connections of a server, in all and for each peer: a uid on a
// unix socket, an address on TCP. Who connects when the cap is reached takes the
// place of the oldest connection, of that peer or of the one with most, that
// is not in the middle of a request: so clients that hold connections and say
// nothing, or half of something, shut nobody out.
type Conns struct {
	total, perPeer int

	mu   sync.Mutex
	seq  int64
	open map[net.Conn]*held
	per  map[string]int
}

type held struct {
	peer string
	seq  int64 // the order of connecting
	busy bool  // a whole request came, and its answer is not out
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
	peer := peerName(conn)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.per[peer] >= c.perPeer && !c.evict(peer) {
		return false
	}
	if len(c.open) >= c.total && !c.evict(c.largest()) {
		return false
	}
	c.seq++
	c.open[conn] = &held{peer: peer, seq: c.seq}
	c.per[peer]++
	return true
}

// largest is the peer with most connections.
func (c *Conns) largest() (peer string) {
	for p, n := range c.per {
		if n > c.per[peer] {
			peer = p
		}
	}
	return peer
}

// evict closes the peer's oldest connection that has no request under way.
func (c *Conns) evict(peer string) bool {
	var oldest net.Conn
	for conn, h := range c.open {
		if h.peer == peer && !h.busy && (oldest == nil || h.seq < c.open[oldest].seq) {
			oldest = conn
		}
	}
	if oldest == nil {
		return false
	}
	c.remove(oldest)
	oldest.Close() // the server notices
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
	if t, ok := conn.(*tls.Conn); ok {
		conn = t.NetConn()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch s {
	case http.StateClosed, http.StateHijacked:
		c.remove(conn)
	default:
		if h, ok := c.open[conn]; ok {
			h.busy = s == http.StateActive
		}
	}
}

func peerName(conn net.Conn) string {
	if who, err := peerOf(conn); err == nil {
		return "uid " + strconv.Itoa(who.UID)
	}
	host, _, err := net.SplitHostPort(conn.RemoteAddr().String())
	if err != nil {
		return ""
	}
	return host
}
