package mysql

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"time"

	client "github.com/go-sql-driver/mysql"

	"mulligan/errs"
)

// wire is a connection that splits the protocol into packets (https://mariadb.com/kb/en/0-packet/). The client library does
// only the login. wire itself reads the answers to commands, so that the server does not decide how much memory they take. It
// is not safe for concurrent use.
type wire struct {
	net.Conn // over TLS, if that was agreed on
	r        *bufio.Reader
	seq      byte // sequence number of the next packet
	left     int  // unread bytes of the packet's current piece
	more     bool // another piece follows
	broken   error
}

// maxPiece is the size in bytes of a full piece of a packet; a shorter piece is the last one.
const maxPiece = 1<<24 - 1

var errProtocol = errs.New(errs.Invalid, "", "the server at this address is not MariaDB or MySQL, or violates its protocol").
	WithHint("check the dsn's host and port")

func newWire(c net.Conn) *wire { return &wire{Conn: c, r: bufio.NewReaderSize(c, 64<<10)} }

// during calls f, and closes the connection if ctx ends meanwhile. After an error that is not an answer of the server, the
// connection cannot be used any more.
func (w *wire) during(ctx context.Context, f func() error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if w.broken != nil {
		return w.broken
	}
	stop := context.AfterFunc(ctx, func() { _ = w.Conn.Close() })
	err := f()
	if !stop() {
		err = ctx.Err()
	}
	var said *client.MySQLError
	if err != nil && !errors.As(err, &said) {
		w.broken = err
		_ = w.Conn.Close()
	}
	return err
}

// begin reads the header of a packet or of its next piece.
func (w *wire) begin() error {
	var head [4]byte
	if _, err := io.ReadFull(w.r, head[:]); err != nil {
		return err
	}
	if head[3] != w.seq {
		return errProtocol
	}
	w.seq++
	w.left = int(head[0]) | int(head[1])<<8 | int(head[2])<<16
	w.more = w.left == maxPiece
	return nil
}

// Read reads the current packet; it returns io.EOF at its end.
func (w *wire) Read(p []byte) (int, error) {
	for w.left == 0 {
		if !w.more {
			return 0, io.EOF
		}
		if err := w.begin(); err != nil {
			return 0, unexpected(err)
		}
	}
	n, err := w.r.Read(p[:min(len(p), w.left)])
	w.left -= n
	return n, unexpected(err)
}

func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// packet reads a whole packet. It returns an error if the packet has more than most bytes; what names it in the error.
func (w *wire) packet(what string, most int) ([]byte, error) {
	if err := w.begin(); err != nil {
		return nil, err
	}
	return w.rest(what, most)
}

// rest reads the rest of the current packet. It returns an error if the rest has more than most bytes.
func (w *wire) rest(what string, most int) ([]byte, error) {
	if w.left > most {
		return nil, tooLong(what, int64(most))
	}
	p, err := io.ReadAll(io.LimitReader(w, int64(most)+1))
	if err == nil && len(p) > most {
		err = tooLong(what, int64(most))
	}
	return p, err
}

// peek returns the first byte of the current packet, if it has one.
func (w *wire) peek() (byte, bool, error) {
	if w.left == 0 {
		return 0, false, nil
	}
	p, err := w.r.Peek(1)
	if err != nil {
		return 0, false, unexpected(err)
	}
	return p[0], true, nil
}

// send writes a packet.
func (w *wire) send(p []byte) error {
	for {
		n := min(len(p), maxPiece)
		head := net.Buffers{{byte(n), byte(n >> 8), byte(n >> 16), w.seq}, p[:n]}
		if _, err := head.WriteTo(w.Conn); err != nil {
			return err
		}
		w.seq++
		if p = p[n:]; n < maxPiece {
			return nil
		}
	}
}

// command sends a command. The caller reads the answer.
func (w *wire) command(kind byte, p []byte) error {
	w.seq = 0
	return w.send(append([]byte{kind}, p...))
}

// Commands (https://mariadb.com/kb/en/2-text-protocol/).
const (
	comQuit        = 0x01
	comQuery       = 0x03
	comStmtPrepare = 0x16
	comStmtExecute = 0x17
	comStmtLong    = 0x18
	comStmtClose   = 0x19
)

// close ends the session. It ignores errors, because nothing can be lost.
func (w *wire) close() {
	if w.broken == nil {
		_ = w.SetWriteDeadline(time.Now().Add(time.Second))
		_ = w.command(comQuit, nil)
	}
	w.broken = net.ErrClosed
	_ = w.Conn.Close()
}

// The first bytes of answers.
const (
	headOK    = 0x00
	headLocal = 0xfb
	headEOF   = 0xfe
	headError = 0xff
)

// refusal returns the error in an error packet.
func refusal(p []byte) error {
	if len(p) < 3 {
		return errProtocol
	}
	e := &client.MySQLError{Number: binary.LittleEndian.Uint16(p[1:])}
	p = p[3:]
	if len(p) >= 6 && p[0] == '#' {
		copy(e.SQLState[:], p[1:6])
		p = p[6:]
	}
	e.Message = string(p[:min(len(p), 1<<10)]) // messages of the servers have at most half of this length
	return e
}

// plain reads the answer to a command without rows, and returns the packet.
func (w *wire) plain() ([]byte, error) {
	p, err := w.packet("an answer", maxHead)
	switch {
	case err != nil:
		return nil, err
	case len(p) > 0 && p[0] == headError:
		return nil, refusal(p)
	case len(p) == 0 || p[0] != headOK:
		return nil, errProtocol
	}
	return p, nil
}

// lenenc parses the length-encoded integer at the beginning of p. n is its size, or 0 if p has none.
func lenenc(p []byte) (v uint64, n int) {
	if len(p) == 0 {
		return 0, 0
	}
	size := map[byte]int{0xfc: 2, 0xfd: 3, 0xfe: 8}[p[0]]
	switch {
	case p[0] < 0xfb:
		return uint64(p[0]), 1
	case size == 0 || len(p) < 1+size:
		return 0, 0
	}
	for i := range size {
		v |= uint64(p[1+i]) << (8 * i)
	}
	return v, 1 + size
}
