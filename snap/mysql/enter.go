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
	"mulligan/snap"
)

// Capability flags in the server's greeting (https://mariadb.com/kb/en/connection/#capabilities).
const (
	capLongPassword = 1 << 0 // not set by MariaDB
	capCompress     = 1 << 5
	capLocalFiles   = 1 << 7
	capProtocol41   = 1 << 9
	capTLS          = 1 << 11
	capNoEOF        = 1 << 24
)

// loginTime bounds the time of a login.
const loginTime = 30 * time.Second

// enter connects and logs in according to cfg. It starts TLS itself, because it reads packets above TLS, which the client
// library does not support.
func enter(ctx context.Context, cfg *client.Config) (*wire, error) {
	return snap.Login(ctx, loginTime, func(ctx context.Context) (*wire, error) { return dial(ctx, cfg) })
}

func dial(ctx context.Context, cfg *client.Config) (*wire, error) {
	c, err := cfg.DialFunc(ctx, cfg.Net, cfg.Addr)
	if err != nil {
		return nil, err
	}
	w := newWire(c)
	err = w.during(ctx, func() error { return w.login(ctx, cfg) })
	if err != nil {
		_ = w.Conn.Close() // err is more useful
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
			return errs.New(errs.Unavailable, "", "the server does not support TLS").WithHint("enable TLS on the server, or remove tls from the dsn")
		}
		host, _, _ := net.SplitHostPort(cfg.Addr)
		d.tls = &tls.Config{ServerName: host, InsecureSkipVerify: cfg.TLSConfig != "true"}
	}
	own := cfg.Clone()
	own.TLSConfig, own.MaxAllowedPacket = "", 1<<20 // otherwise the library would query the value
	if d.tls != nil {
		own.Net = "unix" // the library must not start TLS above this connection
	}
	d.give(0, greeting)
	own.DialFunc = func(context.Context, string, string) (net.Conn, error) { return d, nil }
	connector, err := client.NewConnector(own)
	if err != nil {
		return errs.New(errs.Invalid, "", "the login settings cannot be used").WithHint("check the dsn and ~/.my.cnf")
	}
	return d.pass(ctx, connector.Connect)
}

// soften removes the features from a greeting that the client library must not use: TLS, compression, files of the client, and
// everything that changes the format of answers. It reports whether the server supports TLS, and whether the packet is a
// greeting.
func soften(p []byte) (hasTLS, ok bool) {
	version := bytes.IndexByte(p, 0)
	at := version + 1 + 4 + 8 + 1 // after the thread's number, a part of the scramble, and a zero
	if version < 1 || p[0] != 10 || len(p) < at+2+1+2+2+1+10+13 {
		return false, false
	}
	low, high := p[at:], p[at+5:]
	caps := uint32(binary.LittleEndian.Uint16(low)) | uint32(binary.LittleEndian.Uint16(high))<<16
	if caps&capLongPassword == 0 {
		clear(p[at+14 : at+18]) // capabilities of MariaDB only
	}
	hasTLS = caps&capTLS != 0
	caps &^= capTLS | capCompress | capLocalFiles | capNoEOF
	binary.LittleEndian.PutUint16(low, uint16(caps))
	binary.LittleEndian.PutUint16(high, uint16(caps>>16))
	return hasTLS, caps&capProtocol41 != 0
}

// loginConn is the connection that the client library uses while it logs in.
type loginConn struct {
	w        *wire
	tls      *tls.Config // TLS to start before the login, or nil
	password string
	in       []byte // bytes for the library's next reads
	shift    byte   // difference between the sequence numbers of the server and of the library
	packets  int
	problem  error // the error for which the library's connection was closed
	passed   bool
}

// pass logs in and then closes the library's connection.
func (d *loginConn) pass(ctx context.Context, connect func(context.Context) (driver.Conn, error)) (err error) {
	defer func() {
		if recover() != nil { // the library does not validate everything that a server sends
			err = errProtocol
		}
	}()
	c, err := connect(ctx)
	if d.problem != nil {
		err = d.problem // the library may return another error
	}
	if err != nil {
		return err
	}
	d.passed = true
	return c.Close()
}

// give passes a packet to the library.
func (d *loginConn) give(seq byte, p []byte) {
	d.in = append([]byte{byte(len(p)), byte(len(p) >> 8), byte(len(p) >> 16), seq}, p...)
}

// Read reads from the next packet.
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

// ended appends a zero byte to a request for an ed25519 login. The client library strips a zero byte, but MariaDB sends 32
// random bytes without one. So without ended, one login in 256 would fail, when the random bytes end with zero.
func ended(p []byte) []byte {
	const ask = "\xfeclient_ed25519\x00"
	if len(p) == len(ask)+32 && string(p[:len(ask)]) == ask {
		return append(slices.Clip(p), 0)
	}
	return p
}

// Write sends a packet of the library, which the library always writes at once.
func (d *loginConn) Write(p []byte) (int, error) {
	if d.passed {
		return len(p), nil // the library is closing the session
	}
	if err := d.write(p); err != nil {
		d.problem = err
		return 0, err
	}
	return len(p), nil
}

func (d *loginConn) write(p []byte) error {
	const wantsTLS = 4 + 4 + 1 + 23 // length of a login packet that requests TLS
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
		body = append([]byte(d.password), 0) // sha256_password: the library asks for a key, which is not needed over TLS
	}
	return d.w.send(body)
}

// secure requests TLS and starts it.
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

// Close implements net.Conn. The library calls it after the login, whether that failed or not.
func (d *loginConn) Close() error {
	if d.passed {
		return nil
	}
	return d.w.Conn.Close()
}

// LocalAddr returns the local address of the underlying connection.
func (d *loginConn) LocalAddr() net.Addr { return d.w.Conn.LocalAddr() }

// RemoteAddr returns the server's address.
func (d *loginConn) RemoteAddr() net.Addr { return d.w.Conn.RemoteAddr() }

// SetDeadline does nothing, because enter bounds the time of the login.
func (d *loginConn) SetDeadline(time.Time) error { return nil }

// SetReadDeadline does nothing; see SetDeadline.
func (d *loginConn) SetReadDeadline(time.Time) error { return nil }

// SetWriteDeadline does nothing; see SetDeadline.
func (d *loginConn) SetWriteDeadline(time.Time) error { return nil }
