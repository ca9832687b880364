package ipc

import (
	"context"
	"fmt"
	"io"
	"log"
	"math"
	"net"
	"net/http"
	"os"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Caller is who asks. On the socket that is the process on the other end, as the
// kernel names it (SO_PEERCRED, unix(7)): who it was when it connected. Over TCP
// it is the owner of a token or of a page's session, or a guest.
type Caller struct {
	UID, GID, PID int
	Exe           string // its program, "" if unknown: for the record only, never to decide by

	// Name is the account that a token or a page's session was made for: it is good
	// only as long as that is the uid's. "" for those whom the kernel names.
	Name string

	// Guest is who a guest says it is, "" for everybody else. UID and GID are then
	// those that guests' apps run with, and give the guest no right of theirs.
	Guest string
	Via   string // how it came in, for the record: "" for the socket
	Grant *Grant // what its token is good for; nil: all that its owner may
}

// Grant narrows what a caller may do.
type Grant struct {
	Token  TokenID // that it comes from; "": a page's session
	Scopes []Scope
	Apps   []AppID   // none: all
	Until  time.Time // zero: for ever
}

// May reports whether the caller's token, if it came by one, is good for s.
func (c Caller) May(s Scope) bool { return c.Grant == nil || slices.Contains(c.Grant.Scopes, s) }

// MayTouch reports whether the caller's token, if it came by one, is for the app.
func (c Caller) MayTouch(app AppID) bool {
	return c.Grant == nil || len(c.Grant.Apps) == 0 || slices.Contains(c.Grant.Apps, app)
}

// Local reports whether the caller is a process on the socket.
func (c Caller) Local() bool { return c.Via == "" }

type callerKey struct{}

// CallerFrom gives the caller of the request with the context ctx; false where
// nobody knows who it is.
func CallerFrom(ctx context.Context) (Caller, bool) {
	c, ok := ctx.Value(callerKey{}).(Caller)
	return c, ok
}

// WithCaller is ctx of a request whose caller is c.
func WithCaller(ctx context.Context, c Caller) context.Context {
	return context.WithValue(ctx, callerKey{}, c)
}

// NewServer makes a server of HTTP/1.1 that a slow client holds no part of for
// long: its headers, its body and the reading of an answer have each their time.
// A whole request has none: a capture takes as long as it takes, and a stream of
// events has no end. conns caps the connections; nil does not.
func NewServer(h http.Handler, conns *Conns) *http.Server {
	if conns == nil {
		conns = NewConns(math.MaxInt, math.MaxInt)
	}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	return &http.Server{
		Handler:           bounded(h),
		Protocols:         protocols,
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		ConnState:         conns.state,
		ConnContext:       withConn,
		ErrorLog:          log.New(io.Discard, "", 0), // what clients do wrong is no news
	}
}

// NewHTTPServer makes a server of the API for a unix socket, which notes the
// caller of every connection.
func NewHTTPServer(h http.Handler, conns *Conns) *http.Server {
	srv := NewServer(h, conns)
	srv.ConnContext = func(ctx context.Context, conn net.Conn) context.Context {
		ctx = withConn(ctx, conn)
		c, err := peerOf(conn)
		if err != nil {
			return ctx // nobody: the handlers refuse
		}
		return WithCaller(ctx, c)
	}
	return srv
}

// peerOf asks the kernel who is on the other end of a unix socket.
func peerOf(conn net.Conn) (Caller, error) {
	uc, ok := conn.(*net.UnixConn)
	if !ok {
		return Caller{}, fmt.Errorf("%T has no peer credentials", conn)
	}
	raw, err := uc.SyscallConn()
	if err != nil {
		return Caller{}, err
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	}); err != nil {
		return Caller{}, err
	}
	if credErr != nil {
		return Caller{}, credErr
	}
	c := Caller{UID: int(cred.Uid), GID: int(cred.Gid), PID: int(cred.Pid)}
	c.Exe, _ = os.Readlink(fmt.Sprintf("/proc/%d/exe", c.PID)) // it may be gone, or another user's
	return c, nil
}
