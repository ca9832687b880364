// Package engine stops, starts and pauses containers, and finds their volumes, by the API of Docker, which Podman serves as well.
//
// An [Engine] is one server of that API. A [Project] is the containers of one app: those of a compose project, or one container.
// Labels say which containers a project has when it is configured, and nothing afterwards: a container that is not among those
// recorded then is never stopped, however it is labelled. A container of the app's is never made or
// removed; an [Aside] makes one of its own.
package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"
	"golang.org/x/sys/unix"

	"mulligan/errs"
)

// Config says how an engine is reached.
type Config struct {
	Socket string // path of its unix socket
	// Dial connects to the socket, with the rights of whom the engine works for. nil: the process's own.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// OfRoot refuses a server that does not run as root, at each connection: the file at Socket may be another one than before.
	OfRoot bool
	// Patience is how long the engine may take to say something; ten times that for what is work for it. 0: half a minute.
	Patience time.Duration
}

// Engine is a server of Docker's API. Safe for concurrent use.
type Engine struct {
	api    *client.Client
	http   *bounded // what api sends its requests with
	socket string
	peer   atomic.Int64 // the uid of the server, as the kernel recorded it at the last connection; -1: unknown

	refused atomic.Pointer[error] // the outcome of the last attempt to connect, which the client leaves out of its errors
}

// idle is how long a connection is kept for the next request. A user who loses the right to connect keeps no connection for longer.
const idle = 10 * time.Second

// New returns the engine at a socket. It connects when it is first asked something.
func New(cfg Config) (*Engine, error) {
	const op = "open container engine"
	e := &Engine{socket: cfg.Socket}
	e.peer.Store(-1)
	dial := cfg.Dial
	if dial == nil {
		dial = (&net.Dialer{Timeout: 10 * time.Second}).DialContext
	}
	e.http = &bounded{patience: cmp.Or(cfg.Patience, patience), Transport: &http.Transport{IdleConnTimeout: idle, MaxIdleConns: 4, DisableCompression: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			c, err := dial(ctx, "unix", cfg.Socket)
			if err == nil {
				e.peer.Store(peerOf(c))
				if cfg.OfRoot && e.peer.Load() != 0 {
					c.Close()
					c, err = nil, errNotRoot
				}
			}
			e.refused.Store(&err)
			return c, err
		}}}
	// The host comes first: with it, the client sets up its own transport, which the next option replaces.
	api, err := client.New(client.WithHost("unix://"+cfg.Socket), client.WithScheme("http"),
		client.WithHTTPClient(&http.Client{Transport: e.http, CheckRedirect: client.CheckRedirect}))
	if err != nil {
		return nil, errs.Wrap(errs.Internal, op, err)
	}
	e.api = api
	return e, nil
}

// errNotRoot is the cause of the error if a server does not run as root, and must.
var errNotRoot = errors.New("it does not run as root, so the host's daemon cannot trust what it says of its volumes")

// Close ends the connections.
func (e *Engine) Close() error {
	e.http.CloseIdleConnections()
	return e.api.Close()
}

// Socket returns the path of the engine's socket.
func (e *Engine) Socket() string { return e.socket }

// peerOf returns the uid of the process that listens at the other end, or -1.
func peerOf(c net.Conn) int64 {
	raw, ok := c.(syscall.Conn)
	if !ok {
		return -1
	}
	rc, err := raw.SyscallConn()
	if err != nil {
		return -1
	}
	uid := int64(-1)
	err = rc.Control(func(fd uintptr) {
		if cred, e := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); e == nil {
			uid = int64(cred.Uid)
		}
	})
	if err != nil {
		return -1
	}
	return uid
}

// About describes an engine.
type About struct {
	Name    string // as it calls itself: "Docker", "Podman"
	Version string
	UID     int // the user as whom it runs; -1: unknown
}

// About asks the engine for its name and version.
func (e *Engine) About(ctx context.Context) (About, error) {
	v, err := e.api.ServerVersion(ctx, client.ServerVersionOptions{})
	if err != nil {
		return About{}, e.failure("", err)
	}
	a := About{Name: "Docker", Version: v.Version, UID: int(e.peer.Load())}
	for _, c := range v.Components {
		if c.Name == "Podman Engine" {
			a.Name, a.Version = "Podman", c.Version
		}
	}
	return a, nil
}

// failure returns an error of the engine as one of mulligan's.
func (e *Engine) failure(what string, err error) error {
	kind, hint := errs.Failed, ""
	if dialled := e.refused.Load(); (client.IsErrConnectionFailed(err) || errors.Is(err, errNotRoot)) && dialled != nil && *dialled != nil {
		err = *dialled
	}
	var unreached *net.OpError
	var long *http.MaxBytesError
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errSilent), errors.Is(err, context.DeadlineExceeded):
		kind, hint = errs.Unavailable, fmt.Sprintf("see what keeps it: curl --unix-socket %s http://engine/_ping", e.socket)
		if errors.Is(err, errSilent) {
			err = fmt.Errorf("the engine at %s: %w", e.socket, errSilent)
		} else { // the operation has a shorter limit than the engine
			err = fmt.Errorf("the engine at %s does not answer in time: %w", e.socket, context.DeadlineExceeded)
		}
	case errors.As(err, &long):
		err = fmt.Errorf("the engine at %s answers with more than %d MiB", e.socket, long.Limit>>20)
	case errors.Is(err, context.Canceled):
		kind = errs.Unavailable
	case errors.Is(err, errNotRoot):
		err = fmt.Errorf("the engine at %s: %w", e.socket, errNotRoot)
		kind, hint = errs.Unsupported, "leave out volumes, or protect the app with a daemon of your own: `mulligand --user`"
	case errors.Is(err, os.ErrPermission):
		kind, hint = errs.Denied, fmt.Sprintf("who may use %s is decided by its owner and group; see ls -l %[1]s", e.socket)
		err = os.ErrPermission
	case client.IsErrConnectionFailed(err), errors.As(err, &unreached), errors.Is(err, io.EOF):
		kind, hint = errs.Unavailable, "start the container engine: systemctl start docker, or podman.socket"
		err = fmt.Errorf("no container engine answers at %s", e.socket)
	case errdefs.IsNotFound(err):
		kind = errs.NotFound
	case errdefs.IsConflict(err):
		kind = errs.Conflict
	case errdefs.IsPermissionDenied(err):
		kind = errs.Denied
	}
	return &errs.Error{Kind: kind, Message: what, Err: err, Hint: hint}
}
