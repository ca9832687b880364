package mysql

import (
	"bytes"
	"context"
	"crypto/tls"
	"database/sql/driver"
	"encoding/binary"
	"net"
	"slices"
	"time"

	client "github.com/go-sql-driver/mysql"

	"mulligan/errs"
)

// Capabilities that are told in the server's greeting
// (https://mariadb.com/kb/en/connection/#capabilities).
const (
	capLongPassword = 1 << 0 // on a server that is not MariaDB's own
	capCompress     = 1 << 5
	capLocalFiles   = 1 << 7
	capProtocol41   = 1 << 9
	capTLS          = 1 << 11
	capNoEOF        = 1 << 24
)

// loginTime is how long a login may take.
const loginTime = 30 * time.Second

// enter connects and logs in as cfg says. TLS is begun here and not by the client library, so that
// packets can be told apart above it.
func enter(ctx context.Context, cfg *client.Config) (*wire, error) {
	ctx, cancel := context.WithTimeout(ctx, loginTime)
	defer cancel()
	c, err := cfg.DialFunc(ctx, cfg.Net, cfg.Addr)
	if err != nil {
		return nil, err
	}
	w := newWire(c)
	err = w.SetDeadline(time.Now().Add(loginTime))
	if err == nil {
		err = w.during(ctx, func() error { return w.login(ctx, cfg) })
	}
	if err == nil {
		err = w.SetDeadline(time.Time{})
	}
	if err != nil {
		_ = w.Conn.Close() // err is the one to tell
		return nil, err
	}
	return w, nil
}

func (w *wire) login(ctx context.Context, cfg *client.Config) error {
	greeting, err := w.packet("a greeting", maxLogin)
	if err != nil {
		return err
	}
	if len(greeting) > 0 && greeting[0] == headError {
		return refusal(greeting)
	}
	d := &loginConn{w: w, password: cfg.Passwd}
	hasTLS, ok := soften(greeting)
	if !ok {
		return errProtocol
	}
	if cfg.TLSConfig != "" && (hasTLS || cfg.TLSConfig != "preferred") {
		if !hasTLS {
			return errs.New(errs.Unavailable, "", "the server has no TLS").WithHint("switch it on there, or leave tls out of the dsn")
		}
		host, _, _ := net.SplitHostPort(cfg.Addr)
		d.tls = &tls.Config{ServerName: host, InsecureSkipVerify: cfg.TLSConfig != "true"}
	}
	own := cfg.Clone()
	own.TLSConfig, own.MaxAllowedPacket = "", 1<<20 // or it would ask the server
	if d.tls != nil {
		own.Net = "unix" // for the library: nobody listens in
	}
	d.give(0, greeting)
	own.DialFunc = func(context.Context, string, string) (net.Conn, error) { return d, nil }
	connector, err := client.NewConnector(own)
	if err != nil {
		return errs.New(errs.Invalid, "", "the login makes no sense").WithHint("check the dsn and ~/.my.cnf")
	}
	return d.pass(ctx, connector.Connect)
}

// soften takes from a greeting what the client library shall not make use of: TLS,
// compression, files of the client's, and what changes the form of answers. It reports whether
// the server has TLS, and whether the greeting is one.
func soften(p []byte) (hasTLS, ok bool) {
	version := bytes.IndexByte(p, 0)
	at := version + 1 + 4 + 8 + 1 // behind the thread's number, a part of the scramble, and a zero
	if version < 1 || p[0] != 10 || len(p) < at+2+1+2+2+1+10+13 {
		return false, false
	}
	low, high := p[at:], p[at+5:]
	caps := uint32(binary.LittleEndian.Uint16(low)) | uint32(binary.LittleEndian.Uint16(high))<<16
	if caps&capLongPassword == 0 {
		clear(p[at+14 : at+18]) // MariaDB's own
	}
	hasTLS = caps&capTLS != 0
	caps &^= capTLS | capCompress | capLocalFiles | capNoEOF
	binary.LittleEndian.PutUint16(low, uint16(caps))
	binary.LittleEndian.PutUint16(high, uint16(caps>>16))
	return hasTLS, caps&capProtocol41 != 0
}

// loginConn is the connection as the client library sees it while it logs in.
type loginConn struct {
	w        *wire
	tls      *tls.Config // to begin with, or nil
	password string
	in       []byte // what the library is to read next
	shift    byte   // how far the server's count of packets is ahead of the library's
	packets  int
	problem  error // why the library was told that the connection is broken
	passed   bool
}

// pass logs in, and lets go of the library's connection.
func (d *loginConn) pass(ctx context.Context, connect func(context.Context) (driver.Conn, error)) (err error) {
	defer func() {
		if recover() != nil { // the library takes a server's words for good
			err = errProtocol
		}
	}()
	c, err := connect(ctx)
	if d.problem != nil {
		err = d.problem // in its own words, and not in the library's
	}
	if err != nil {
		return err
	}
	d.passed = true
	return c.Close()
}

// give has the library read a packet.
func (d *loginConn) give(seq byte, p []byte) {
	d.in = append([]byte{byte(len(p)), byte(len(p) >> 8), byte(len(p) >> 16), seq}, p...)
}

// Read gives the next packet, or the rest of one.
func (d *loginConn) Read(p []byte) (int, error) {
	if len(d.in) == 0 {
		if err := d.next(); err != nil {
			d.problem = err
			return 0, err
		}
	}
	n := copy(p, d.in)
	d.in = d.in[n:]
	return n, nil
}

func (d *loginConn) next() error {
	seq := d.w.seq - d.shift
	p, err := d.w.packet("a packet", maxLogin)
	if err != nil {
		return err
	}
	d.packets++
	switch {
	case d.packets > maxLogins:
		return errProtocol
	case len(p) == 0, p[0] == headOK && len(p) < 7:
		return errProtocol
	case p[0] == headError:
		return refusal(p)
	}
	d.give(seq, ended(p))
	return nil
}

// ended gives a packet that asks for an ed25519 login the zero that the client library
// takes from its end. MariaDB sends 32 random bytes and none behind them: without this, one
// login in 256 fails, whose random bytes end with a zero.
func ended(p []byte) []byte {
	const ask = "\xfeclient_ed25519\x00"
	if len(p) == len(ask)+32 && string(p[:len(ask)]) == ask {
		return append(slices.Clip(p), 0)
	}
	return p
}

// Write takes a packet of the library's, which it gives in one piece.
func (d *loginConn) Write(p []byte) (int, error) {
	if d.passed {
		return len(p), nil // it says goodbye
	}
	if err := d.write(p); err != nil {
		d.problem = err
		return 0, err
	}
	return len(p), nil
}

func (d *loginConn) write(p []byte) error {
	const wantsTLS = 4 + 4 + 1 + 23 // the beginning of an answer to the greeting, which asks for TLS
	if len(p) < 4 {
		return errProtocol
	}
	body := append([]byte(nil), p[4:]...)
	if d.tls != nil && d.shift == 0 {
		if len(body) < wantsTLS {
			return errProtocol
		}
		body[1] |= capTLS >> 8
		if err := d.secure(body[:wantsTLS]); err != nil {
			return err
		}
	} else if d.tls != nil && len(body) == 1 && body[0] == 1 {
		body = append([]byte(d.password), 0) // sha256_password: the library asks for a key, which TLS spares
	}
	return d.w.send(body)
}

// secure asks for TLS and begins it.
func (d *loginConn) secure(request []byte) error {
	if err := d.w.send(request); err != nil {
		return err
	}
	if d.w.r.Buffered() > 0 {
		return errProtocol
	}
	c := tls.Client(d.w.Conn, d.tls)
	if err := c.Handshake(); err != nil {
		return err
	}
	d.w.Conn, d.shift = c, 1
	d.w.r.Reset(c)
	return nil
}

// Close is called by the library when the login failed, and when it is done.
func (d *loginConn) Close() error {
	if d.passed {
		return nil
	}
	return d.w.Conn.Close()
}

// LocalAddr and the others are those of the connection below. The time that the library may take is bounded by enter.
func (d *loginConn) LocalAddr() net.Addr { return d.w.Conn.LocalAddr() }

// RemoteAddr is the server's address.
func (d *loginConn) RemoteAddr() net.Addr { return d.w.Conn.RemoteAddr() }

// SetDeadline does nothing.
func (d *loginConn) SetDeadline(time.Time) error { return nil }

// SetReadDeadline does nothing.
func (d *loginConn) SetReadDeadline(time.Time) error { return nil }

// SetWriteDeadline does nothing.
func (d *loginConn) SetWriteDeadline(time.Time) error { return nil }
