// Package pgwire bounds the memory that a PostgreSQL server can make the client library use. It
// parses messages above TLS and below the library, which holds each message, and all rows of
// most answers, in memory.
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

// Limits of what a server may send, in bytes. COPY rows are not bounded: the library receives
// them in messages of at most copyPiece, however long a row is.
const (
	MaxMessage = 1 << 20  // an error, a notice, a description: every message but rows
	MaxLogin   = 64 << 10 // a message before the login is done
	MaxAnswer  = 32 << 20 // the rows of one answer, with the memory to hold them

	maxUnread = 8 << 20 // received while a write is under way
	maxFields = 1664    // of a row: the limit of real servers
	copyPiece = 64 << 10

	perRow, perField, perSetting = 40, 16, 200 // their memory beside their bytes
)

// Refusal records the limit for which a connection was closed, since the client library's own
// error may not say so. It is safe for concurrent use.
type Refusal struct{ err atomic.Pointer[error] }

// Take returns the newest refusal in place of err, and forgets it. It returns err itself if err
// is nil or already has a kind.
func (r *Refusal) Take(err error) error {
	var known *errs.Error
	said := r.err.Swap(nil)
	if err == nil || said == nil || errors.As(err, &known) {
		return err
	}
	return *said
}

// Guard bounds the connections of a configuration.
func Guard(cfg *pgx.ConnConfig, refusal *Refusal) {
	cfg.AfterNetConnect = func(_ context.Context, _ *pgconn.Config, c net.Conn) (net.Conn, error) {
		return newConn(c, refusal), nil
	}
	cfg.OnNotification = func(*pgconn.PgConn, *pgconn.Notification) {} // otherwise the library keeps notifications
}

// conn is a connection that parses messages. It supports one concurrent reader and writer.
type conn struct {
	net.Conn
	reading sync.Mutex // held by Read, which net.Conn allows several goroutines to call; guards the fields below
	r       *bufio.Reader
	head    []byte // header of the current message that is still to be read
	left    int    // unread bytes of its body
	rest    int    // unread bytes of a COPY row, delivered as further messages
	ready   bool   // the login is done
	room    int    // remaining bytes for the rows of this answer, or for the login
	broken  error
	refusal *Refusal
	writing atomic.Pointer[chan struct{}] // closed at the end of the current write; nil if there is none
	unread  int                           // bytes received during the current write
}

func newConn(c net.Conn, refusal *Refusal) *conn {
	return &conn{Conn: c, r: bufio.NewReaderSize(c, 64<<10), room: MaxMessage, refusal: refusal}
}

// Write writes p. It bounds the bytes received meanwhile, which the library keeps: a server that
// does not read could otherwise send without end.
func (c *conn) Write(p []byte) (int, error) {
	done := make(chan struct{})
	c.writing.Store(&done)
	defer func() {
		c.writing.Store(nil)
		close(done)
	}()
	return c.Conn.Write(p)
}

// Read returns messages unchanged, except that COPY rows are split.
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

// writeTime bounds how long a write may go on after the server has answered a lot. If the server
// reads, the write ends at once.
const writeTime = 5 * time.Second

// ended waits for the end of a write, and reports whether it ended.
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

// some reads more of the current message.
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

// next reads the header of a message. It may be called again after a timeout.
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

// piece begins a message that holds a piece of a COPY row.
func (c *conn) piece() {
	c.left = min(c.rest, copyPiece)
	c.rest -= c.left
	c.head = frame('d', c.left)
}

func frame(kind byte, size int) []byte {
	return binary.BigEndian.AppendUint32([]byte{kind}, uint32(size+4))
}

var errProtocol = errs.New(errs.Invalid, "", "the server at this address is not PostgreSQL, or violates its protocol").
	WithHint("check the dsn's host and port")

func tooLong(what string, most int) error {
	size, unit := most>>10, "KiB"
	if size >= 1<<10 {
		size, unit = size>>10, "MiB"
	}
	return errs.New(errs.Unsupported, "", "the server sent %s of more than %d %s", what, size, unit).
		WithHint("is it the right server? if so, divide the database into several")
}

// admit returns an error if a message exceeds a limit.
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
	case kind == 'T', kind == 'C': // the answer to one of several statements
		if c.room -= size + perRow + perSetting*fields; c.room < 0 {
			return tooLong("an answer", MaxAnswer)
		}
	case kind == 'Z':
		c.ready, c.room = true, MaxAnswer
	}
	return nil
}

// refuse closes the connection and records err as the reason.
func (c *conn) refuse(err error) error {
	c.broken = err
	c.refusal.err.Store(&err)
	_ = c.Close() // err is more useful
	return err
}

// Kept counts the bytes of a server's answers that a driver keeps, in the JSON encoding, in
// which some characters take six bytes.
type Kept int

// MaxKept bounds the bytes that a driver keeps of a database's definitions.
const MaxKept = 32 << 20

// Add counts texts, and returns an error if the total exceeds MaxKept.
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
