// Package errs defines how mulligan reports failures. Every package may import it, and it
// imports no other package of mulligan. An [Error] crosses the socket unchanged: the CLI and
// agents see the driver's own message and hint.
package errs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
)

// Kind is the class of a failure. Callers decide by the kind only.
type Kind string

// The kinds. The set is fixed: scripts and agents rely on it.
const (
	Invalid         Kind = "invalid"         // the request is malformed or contradicts itself
	Unauthenticated Kind = "unauthenticated" // the request does not identify its sender
	Denied          Kind = "denied"          // the sender is known, and not allowed to do this
	NotFound        Kind = "not_found"       // there is no such object, or the caller may not see it
	Pinned          Kind = "pinned"          // a pinned checkpoint cannot be deleted
	Busy            Kind = "busy"            // another process or operation uses the object
	Conflict        Kind = "conflict"        // the state is not the one that the request expects
	Expired         Kind = "expired"         // the checkpoint has expired
	Corrupt         Kind = "corrupt"         // stored data is damaged
	Unsupported     Kind = "unsupported"     // this host or build cannot do the operation
	Unavailable     Kind = "unavailable"     // a service that the operation needs does not answer
	Failed          Kind = "failed"          // the operation was tried and failed
	Internal        Kind = "internal"        // a bug in mulligan
)

// Kinds lists every Kind once.
var Kinds = []Kind{
	Invalid, Unauthenticated, Denied, NotFound, Pinned, Busy, Conflict, Expired,
	Corrupt, Unsupported, Unavailable, Failed, Internal,
}

// Error is a failure, with everything that a reader needs: the operation, the object, the cause and the next step.
type Error struct {
	Kind    Kind   `json:"kind"`
	Message string `json:"message"`        // the failure and the object that it concerns: one line, no full stop
	Op      string `json:"op,omitempty"`   // the operation, such as "capture files"
	Hint    string `json:"hint,omitempty"` // what the reader should do next: one line
	Err     error  `json:"-"`              // the cause; it does not cross the socket
}

// Error returns one line: the operation, the message and the cause.
func (e *Error) Error() string {
	var parts []string
	if e.Op != "" {
		parts = append(parts, e.Op)
	}
	parts = append(parts, e.Text())
	return strings.Join(parts, ": ")
}

// Text returns the message and the cause, without the operation. This text crosses the socket as the message.
func (e *Error) Text() string {
	if e.Err == nil {
		return e.Message
	}
	if e.Message == "" {
		return plain(e.Err)
	}
	return e.Message + ": " + plain(e.Err)
}

// plain returns the text of a cause. An error of a system call says what was tried, and not how the call is named.
func plain(err error) string {
	p, ok := err.(*fs.PathError) // an error that holds one has words of its own
	if !ok {
		return err.Error()
	}
	tried, ok := map[string]string{
		"lstat": "look at", "stat": "look at", "fstatat": "look at", "openat": "open", "openat2": "open", "mkdir": "make the folder",
		"mkdirat": "make the folder", "unlinkat": "remove", "readlinkat": "read the link", "readdirent": "list", "fdopendir": "list",
	}[p.Op]
	if !ok {
		return err.Error()
	}
	return tried + " " + p.Path + ": " + p.Err.Error()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// New returns an error of kind k of the operation op.
func New(k Kind, op, format string, args ...any) *Error {
	return &Error{Kind: k, Op: op, Message: fmt.Sprintf(format, args...)}
}

// Wrap returns an error of the operation op with the cause err. Its kind is that of err, or k if err has none. Wrap returns nil
// if err is nil.
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

// WithHint sets e's hint and returns e.
func (e *Error) WithHint(format string, args ...any) *Error {
	e.Hint = fmt.Sprintf(format, args...)
	return e
}

// KindOf returns the kind of err, or "" if err is nil. An error without a kind is Unavailable if a context was cancelled or
// timed out, and otherwise Internal.
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

// HintOf returns the hint of the outermost error in err's chain that has one.
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

// Words returns the text of err and, after a semicolon, its hint.
func Words(err error) string {
	if hint := HintOf(err); hint != "" {
		return err.Error() + "; " + hint
	}
	return err.Error()
}

// Also combines err with then, a later failure. Either may be nil.
func Also(err, then error) error {
	switch {
	case err == nil:
		return then
	case then == nil:
		return err
	}
	return fmt.Errorf("%w; and then: %w", err, then)
}
