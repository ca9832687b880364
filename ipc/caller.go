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

// Caller identifies who makes a request. On the socket it is the process on the other end, as the kernel recorded it when it
// connected (SO_PEERCRED, unix(7)). Over TCP it is the owner of a token or of a page's session, or a guest.
type Caller struct {
	UID, GID, PID int
	Exe           string // the path of its program, "" if unknown; only recorded, and never used for a decision

	// Name is the account that a token or a page's session was made for. The token is valid only as long as the uid belongs to
	// this account. "" on the socket.
	Name string

	// Guest is the id that a guest has given, and "" for other callers. A guest's UID and GID are those that guests' apps run
	// with; the guest has no rights of that user.
	Guest string
	Via   string // how the request arrived, for the audit trail; "" for the socket
	Grant *Grant // the limits of its token; nil: everything that its owner may do
}

// Grant limits what a caller may do.
type Grant struct {
	Token  TokenID // the token; "" for a page's session
	Scopes []Scope
	Apps   []AppID   // empty: all apps
	Until  time.Time // zero: unlimited
}

// May reports whether the caller has the scope s. A caller without a token has all scopes.
func (c Caller) May(s Scope) bool { return c.Grant == nil || slices.Contains(c.Grant.Scopes, s) }

// MayTouch reports whether the caller's token, if there is one, includes the app.
func (c Caller) MayTouch(app AppID) bool {
	return c.Grant == nil || len(c.Grant.Apps) == 0 || slices.Contains(c.Grant.Apps, app)
}

// Local reports whether the caller is a process on the socket.
func (c Caller) Local() bool { return c.Via == "" }

type callerKey struct{}

// CallerFrom returns the caller of the request with the context ctx, and false if the caller is not known.
func CallerFrom(ctx context.Context) (Caller, bool) {
	c, ok := ctx.Value(callerKey{}).(Caller)
	return c, ok
}

// WithCaller returns a context of a request from the caller c.
func WithCaller(ctx context.Context, c Caller) context.Context {
	return context.WithValue(ctx, callerKey{}, c)
}

// NewServer returns an HTTP/1.1 server with timeouts against slow clients: one for the headers, one for the body and one for
// the reading of an answer. There is none for a whole request, because a capture may take long, and a stream of events does not
// end. conns limits the connections; nil means no limit.
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
		ErrorLog:          log.New(io.Discard, "", 0), // errors of clients are not logged
	}
}

// NewHTTPServer returns a server of the API for a unix socket. It records the caller of every connection.
func NewHTTPServer(h http.Handler, conns *Conns) *http.Server {
	srv := NewServer(h, conns)
	srv.ConnContext = func(ctx context.Context, conn net.Conn) context.Context {
		ctx = withConn(ctx, conn)
		c, err := peerOf(conn)
		if err != nil {
			return ctx // no caller: the handlers refuse the request
		}
		return WithCaller(ctx, c)
	}
	return srv
}

// peerOf asks the kernel for the process on the other end of a unix socket.
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
	c.Exe, _ = os.Readlink(fmt.Sprintf("/proc/%d/exe", c.PID)) // the process may have ended, or be another user's
	return c, nil
}
