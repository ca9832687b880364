package ipc

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"mulligan/errs"
)

// Client makes requests to a daemon. It keeps no state and no connection: every call dials, so it also reaches a daemon that
// was restarted. Errors are *errs.Error. They wrap [ErrNoDaemon] if no daemon listens. A call lasts until the daemon answers or
// its context ends; a rollback or a capture that the daemon has begun continues without its caller.
type Client struct {
	// Late, unless nil, is called for every request to which the daemon has not begun to answer after [LateAfter]. It runs in a goroutine of its own.
	Late func()

	socket string
	http   *http.Client
}

// LateAfter is the time after which an answer is late. The answer to a request that accepts progress begins with the first progress, before the
// work is done.
const LateAfter = 5 * time.Second

// dialError is the error of a failed dial, as opposed to that of a connection which was lost later.
type dialError struct{ error }

func (e dialError) Unwrap() error { return e.error }

// NewClient returns a client of the daemon on socket. It does not dial.
func NewClient(socket string) *Client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, "unix", socket)
		if err != nil {
			return nil, dialError{err}
		}
		return conn, nil
	}
	return &Client{socket: socket, http: &http.Client{
		Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true, DisableCompression: true},
		// The daemon never redirects. A client that follows a redirect would turn a POST into a GET.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// Socket returns the path of the daemon's socket.
func (c *Client) Socket() string { return c.socket }

// nothing is the type of an empty answer.
type nothing struct{}

// ask sends a request for path, with body as JSON unless it is nil, and decodes the answer.
func ask[T any](ctx context.Context, c *Client, method, path string, body any) (T, error) {
	var out T
	resp, err := c.send(ctx, method, path, accepted(ctx), body)
	if err != nil {
		return out, err
	}
	defer resp.Body.Close()
	if resp.StatusCode >= 300 {
		return out, c.refusal(ctx, resp)
	}
	_, none := any(out).(nothing)
	switch {
	case isEvents(resp) && none:
		return out, c.followProgress(ctx, resp, nil)
	case isEvents(resp):
		err = c.followProgress(ctx, resp, &out)
		return out, err
	case none:
		return out, nil
	}
	err = c.decode(ctx, resp.Body, &out)
	return out, err
}

// send makes a request and returns the answer with any status.
func (c *Client) send(ctx context.Context, method, path, accept string, body any) (*http.Response, error) {
	var payload io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return nil, errs.Wrap(errs.Internal, opAsk, err)
		}
		payload = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://mulligan"+path, payload)
	if err != nil {
		return nil, errs.Wrap(errs.Invalid, opAsk, err)
	}
	req.Header.Set("Accept", accept)
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if c.Late != nil {
		defer time.AfterFunc(LateAfter, c.Late).Stop()
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, c.lost(ctx, err)
	}
	return resp, nil
}

const opAsk = "ask the daemon"

// lost returns the error for a request that was interrupted by err.
func (c *Client) lost(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return &errs.Error{Kind: errs.Unavailable, Op: opAsk, Message: "cancelled before the daemon answered", Err: ctx.Err()}
	}
	var dial dialError
	if errors.As(err, &dial) {
		return noDaemon(c.socket, dial)
	}
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err // without the made-up URL
	}
	e := errs.New(errs.Unavailable, opAsk, "%s: the daemon closed the connection before it answered", c.socket)
	e.Err = err
	return e.WithHint("try again: after a restart, the daemon finishes or undoes what it had begun (see `mulligan status` and `mulligan log`)")
}

func (c *Client) decode(ctx context.Context, r io.Reader, out any) error {
	b, err := io.ReadAll(r)
	if err != nil {
		return c.lost(ctx, err)
	}
	if err := json.Unmarshal(b, out); err != nil {
		e := errs.New(errs.Internal, opAsk, "the daemon's answer cannot be understood")
		e.Err = err
		return e.WithHint("compare `mulligan version` with the daemon's in `mulligan status`")
	}
	return nil
}

// refusal returns the error of a response whose status is not a success.
func (c *Client) refusal(ctx context.Context, resp *http.Response) error {
	var envelope errorEnvelope
	if isJSON(resp) {
		if err := c.decode(ctx, resp.Body, &envelope); err != nil {
			return err
		}
	}
	return refused(resp, envelope.Error)
}

// refused returns the error of a response with this error body, which may be nil.
func refused(resp *http.Response, body *ErrorBody) error {
	why := resp.Status
	switch {
	case body == nil: // the answer is not from a handler of mulligan: its mux has no such path or method
	case body.Kind == errs.NotFound && body.Op == OpServe: // what is not there is no app or checkpoint, but the path or method
	case body.Kind == errs.Invalid && body.Op == opRead && strings.HasPrefix(body.Message, unknownField):
		why = body.Message
	default:
		return body.known()
	}
	return errs.New(errs.Unsupported, opAsk, "the daemon does not know %s %s (%s)", resp.Request.Method, resp.Request.URL.Path, why).
		WithHint("compare `mulligan version` with the daemon's in `mulligan status`")
}

// known returns the error of the body. It replaces a kind that only newer daemons have by one that callers know.
func (b ErrorBody) known() error {
	if !slices.Contains(errs.Kinds, b.Kind) {
		b.Kind = errs.Internal
	}
	return b.Err()
}

func isJSON(resp *http.Response) bool   { return isType(resp, "application/json") }
func isEvents(resp *http.Response) bool { return isType(resp, "text/event-stream") }

func isType(resp *http.Response, want string) bool {
	got, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	return err == nil && got == want
}
