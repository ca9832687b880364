// Package pgwire bounds what a PostgreSQL server may send, where its messages are
// told apart: above TLS and below the client library, which holds each message
// whole, and all rows of most answers.
package pgwire

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"mulligan/errs"
)

// Limits of what a server may send, in bytes. The rows of COPY are not held: the
// library gets them in messages of at most copyPiece, however long a row is.
const (
	MaxMessage = 1 << 20  // an error, a notice, a description: all but rows
	MaxLogin   = 64 << 10 // a message before the login is done
	MaxAnswer  = 32 << 20 // the rows of one answer, with what it takes to hold them

	maxUnread = 8 << 20 // what is taken in while something is written
	maxFields = 1664    // of a row: what servers allow
	copyPiece = 64 << 10

	perRow, perField, perSetting = 40, 16, 200 // what they take in memory beside their bytes
)

// Refusal is why a connection was ended, if a limit was the reason: the client library's
// own error may not say so. It is safe for concurrent use.
type Refusal struct{ err atomic.Pointer[error] }

// Take gives the newest refusal in the place of err, and forgets it. An err that is
// of a kind already, or nil, is given back.
func (r *Refusal) Take(err error) error {
	var known *errs.Error
	said := r.err.Swap(nil)
	if err == nil || said == nil || errors.As(err, &known) {
		return err
	}
	return *said
}

// Guard has the connections of a configuration bounded.
func Guard(cfg *pgx.ConnConfig, refusal *Refusal) {
	cfg.AfterNetConnect = func(_ context.Context, _ *pgconn.Config, c net.Conn) (net.Conn, error) {
		return newConn(c, refusal), nil
	}
	cfg.OnNotification = func(*pgconn.PgConn, *pgconn.Notification) {} // or they would be kept
}

// conn is a connection on which messages are told apart. It is for one reader and one writer.
type conn struct {
	net.Conn
	reading sync.Mutex // held by Read, as of a net.Conn it may be called by several goroutines; guards what follows
	r       *bufio.Reader
	head    []byte // of a message, that is still to be read
	left    int    // of its body
	rest    int    // of a row of COPY, that comes as further messages
	ready   bool   // the login is done
	room    int    // for the rows of this answer, or what is told in the login
	broken  error
	refusal *Refusal
	writing atomic.Pointer[chan struct{}] // closed at the end of the write under way; nil: there is none
	unread  int                           // bytes that were read during a write
}

func newConn(c net.Conn, refusal *Refusal) *conn {
	return &conn{Conn: c, r: bufio.NewReaderSize(c, 64<<10), room: MaxMessage, refusal: refusal}
}

// Write writes. A server that does not read may not send without end either: the
// library keeps what comes meanwhile.
func (c *conn) Write(p []byte) (int, error) {
	done := make(chan struct{})
	c.writing.Store(&done)
	defer func() {
		c.writing.Store(nil)
		close(done)
	}()
	return c.Conn.Write(p)
}

// Read gives messages as they are, but for rows of COPY.
func (c *conn) Read(p []byte) (int, error) {
	c.reading.Lock()
	defer c.reading.Unlock()
	if c.broken != nil {
		return 0, c.broken
	}
	if len(c.head) == 0 && c.left == 0 {
		if err := c.next(); err != nil {
			return 0, err
		}
	}
	n, err := c.some(p)
	if write := c.writing.Load(); write == nil {
		c.unread = 0
	} else if c.unread += max(n, len(p)); c.unread > maxUnread {
		if !ended(*write) {
			return 0, c.refuse(tooLong("an answer to what it does not read", maxUnread))
		}
		c.unread = 0
	}
	return n, err
}

// writeTime is how long a write may go on after the server has answered a lot. One that the server
// has read is over at once, as soon as the host comes to it.
const writeTime = 5 * time.Second

// ended waits for the end of a write, and reports whether it came.
func ended(write <-chan struct{}) bool {
	limit := time.NewTimer(writeTime)
	defer limit.Stop()
	select {
	case <-write:
		return true
	case <-limit.C:
		return false
	}
}

// some gives more of the present message.
func (c *conn) some(p []byte) (int, error) {
	if len(c.head) > 0 {
		n := copy(p, c.head)
		c.head = c.head[n:]
		return n, nil
	}
	n, err := c.r.Read(p[:min(len(p), c.left)])
	c.left -= n
	return n, err
}

// next begins a message. After a timeout it may be called again.
func (c *conn) next() error {
	if c.rest > 0 {
		c.piece()
		return nil
	}
	head, err := c.r.Peek(5)
	if err != nil {
		return err
	}
	kind, size := head[0], int(int32(binary.BigEndian.Uint32(head[1:])))-4
	fields := 0
	if size < 0 {
		return c.refuse(errProtocol)
	}
	if kind == 'D' || kind == 'T' {
		if size < 2 {
			return c.refuse(errProtocol)
		}
		if head, err = c.r.Peek(7); err != nil {
			return err
		}
		fields = int(binary.BigEndian.Uint16(head[5:]))
	}
	if err := c.admit(kind, size, fields); err != nil {
		return c.refuse(err)
	}
	if _, err := c.r.Discard(5); err != nil {
		return err
	}
	if c.rest = size; kind == 'd' && size > 0 {
		c.piece()
		return nil
	}
	c.head, c.left, c.rest = frame(kind, size), size, 0
	return nil
}

// piece begins a message that is a piece of a row of COPY.
func (c *conn) piece() {
	c.left = min(c.rest, copyPiece)
	c.rest -= c.left
	c.head = frame('d', c.left)
}

func frame(kind byte, size int) []byte {
	return binary.BigEndian.AppendUint32([]byte{kind}, uint32(size+4))
}

var errProtocol = errs.New(errs.Invalid, "", "what answers there is not a PostgreSQL server, or does not keep to the protocol").
	WithHint("check the dsn's host and port")

func tooLong(what string, most int) error {
	size, unit := most>>10, "KiB"
	if size >= 1<<10 {
		size, unit = size>>10, "MiB"
	}
	return errs.New(errs.Unsupported, "", "the server sent %s of more than %d %s", what, size, unit).
		WithHint("is it the right server? if so, divide the database into several")
}

// admit refuses a message that is too long, or one too many.
func (c *conn) admit(kind byte, size, fields int) error {
	switch {
	case !c.ready && size > MaxLogin:
		return tooLong("a message before the login", MaxLogin)
	case fields > maxFields:
		return errProtocol
	case kind == 'D':
		if c.room -= size + perRow + perField*fields; c.room < 0 {
			return tooLong("an answer", MaxAnswer)
		}
	case kind == 'd':
		if !c.ready {
			return errProtocol
		}
	case size > MaxMessage:
		return tooLong("a message", MaxMessage)
	case kind == 'S': // settings, which the library keeps
		if c.room -= size + perSetting; c.room < 0 {
			return tooLong("settings", MaxMessage)
		}
	case kind == 'T', kind == 'C': // of one of several statements
		if c.room -= size + perRow + perSetting*fields; c.room < 0 {
			return tooLong("an answer", MaxAnswer)
		}
	case kind == 'Z':
		c.ready, c.room = true, MaxAnswer
	}
	return nil
}

// refuse ends the connection.
func (c *conn) refuse(err error) error {
	c.broken = err
	c.refusal.err.Store(&err)
	_ = c.Close() // err is the one to tell
	return err
}

// Kept counts what a driver keeps of a server's answers to several statements, as JSON
// writes it: some characters take six bytes.
type Kept int

// MaxKept is the most that may be kept of a database's definitions, in bytes.
const MaxKept = 32 << 20

// Add counts texts, and returns an error if they are too much.
func (k *Kept) Add(texts ...string) error {
	*k += perRow
	for _, text := range texts {
		*k += perField
		for _, c := range []byte(text) {
			switch {
			case c < ' ', c >= 0x7f, c == '<', c == '>', c == '&':
				*k += 6
			default:
				*k++
			}
		}
	}
	if *k > MaxKept {
		return tooLong("definitions", MaxKept)
	}
	return nil
}
