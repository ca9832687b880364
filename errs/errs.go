// Package errs is the one list of ways in which mulligan fails. Every package
// may import it, and it imports nothing of mulligan. An [Error] crosses the
// socket whole: what a driver said is what the CLI prints and an agent reads.
package errs

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// Kind says what sort of failure it is; callers branch on it and on nothing else.
type Kind string

// The kinds. The set is fixed: scripts and agents rely on it.
const (
	Invalid         Kind = "invalid"         // the request makes no sense
	Unauthenticated Kind = "unauthenticated" // the request does not say who sends it
	Denied          Kind = "denied"          // known, and not allowed
	NotFound        Kind = "not_found"       // no such thing, or not the caller's
	Pinned          Kind = "pinned"          // a pinned checkpoint cannot go
	Busy            Kind = "busy"            // somebody else is at it
	Conflict        Kind = "conflict"        // the state is not what the request takes for granted
	Expired         Kind = "expired"         // the checkpoint's time is over
	Corrupt         Kind = "corrupt"         // what is stored is damaged
	Unsupported     Kind = "unsupported"     // this host or build can't do it
	Unavailable     Kind = "unavailable"     // something it needs does not answer
	Failed          Kind = "failed"          // it was tried and did not work
	Internal        Kind = "internal"        // a fault of mulligan itself
)

// Kinds lists every Kind once.
var Kinds = []Kind{
	Invalid, Unauthenticated, Denied, NotFound, Pinned, Busy, Conflict, Expired,
	Corrupt, Unsupported, Unavailable, Failed, Internal,
}

// Error is a failure with what a reader needs: what failed, on what, what to do.
type Error struct {
	Kind    Kind   `json:"kind"`
	Message string `json:"message"`        // what is wrong, on what: one line, no full stop
	Op      string `json:"op,omitempty"`   // what was being done: "capture files"
	Hint    string `json:"hint,omitempty"` // what to do next: one line
	Err     error  `json:"-"`              // the cause; it does not cross the socket
}

// Error gives one line: the operation, the message, and the cause.
func (e *Error) Error() string {
	var parts []string
	if e.Op != "" {
		parts = append(parts, e.Op)
	}
	parts = append(parts, e.Text())
	return strings.Join(parts, ": ")
}

// Text is the message together with its cause, without the operation: what
// crosses the socket as the message.
func (e *Error) Text() string {
	if e.Err == nil {
		return e.Message
	}
	if e.Message == "" {
		return e.Err.Error()
	}
	return e.Message + ": " + e.Err.Error()
}

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }

// New makes an error of kind k about op.
func New(k Kind, op, format string, args ...any) *Error {
	return &Error{Kind: k, Op: op, Message: fmt.Sprintf(format, args...)}
}

// Wrap says that op failed because of err. An err that has a kind keeps it,
// else it becomes k. Wrap of nil is nil.
func Wrap(k Kind, op string, err error) error {
	if err == nil {
		return nil
	}
	var e *Error
	if errors.As(err, &e) {
		return &Error{Kind: e.Kind, Op: op, Hint: e.Hint, Err: err}
	}
	return &Error{Kind: k, Op: op, Err: err}
}

// WithHint returns e with its hint set, for use at the place of making.
func (e *Error) WithHint(format string, args ...any) *Error {
	e.Hint = fmt.Sprintf(format, args...)
	return e
}

// KindOf is the kind of err: its own, or Internal for an error that has none.
// A cancelled or timed-out context is Unavailable.
func KindOf(err error) Kind {
	var e *Error
	switch {
	case err == nil:
		return ""
	case errors.As(err, &e):
		return e.Kind
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return Unavailable
	}
	return Internal
}

// HintOf is the hint of the outermost error in err's chain that has one.
func HintOf(err error) string {
	for err != nil {
		var e *Error
		if !errors.As(err, &e) {
			return ""
		}
		if e.Hint != "" {
			return e.Hint
		}
		err = e.Err
	}
	return ""
}

// Words is the text of err and, behind a semicolon, its hint.
func Words(err error) string {
	if hint := HintOf(err); hint != "" {
		return err.Error() + "; " + hint
	}
	return err.Error()
}

// Also says that then went wrong too, after err. Either may be nil.
func Also(err, then error) error {
	switch {
	case err == nil:
		return then
	case then == nil:
		return err
	}
	return fmt.Errorf("%w; and then: %w", err, then)
}
