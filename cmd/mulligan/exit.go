package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"mulligan/cmd/mulligan/output"
	"mulligan/errs"
	"mulligan/ipc"
)

// These are the exit codes. Scripts rely on them.
const (
	exitDone        = 0
	exitFailed      = 1
	exitUsage       = 2
	exitNotFound    = 3
	exitRefused     = 4 // the state of an object forbids it: pinned, busy, conflict, expired
	exitDenied      = 5
	exitRecovered   = 6 // a rollback failed, and the app is as it was before
	exitNoDaemon    = 7
	exitInterrupted = 130
)

// recovered is the error of a rollback that failed and put the app back as it was.
type recovered struct{ error }

func (r recovered) Unwrap() error { return r.error }

// interrupted is the error of a command that the user interrupted while the daemon worked on.
type interrupted struct{ op, message, hint string }

func (i interrupted) Error() string { return i.op + ": " + i.message }

// exitCode returns the exit code for err, which must not be nil.
func exitCode(ctx context.Context, err error) int {
	var back recovered
	var inside ended
	switch {
	case errors.As(err, &inside):
		return inside.status
	case errors.As(err, &back):
		return exitRecovered
	case ctx.Err() != nil:
		return exitInterrupted
	case errors.Is(err, ipc.ErrNoDaemon):
		return exitNoDaemon
	}
	switch errs.KindOf(err) {
	case errs.Invalid:
		return exitUsage
	case errs.NotFound:
		return exitNotFound
	case errs.Pinned, errs.Busy, errs.Conflict, errs.Expired:
		return exitRefused
	case errs.Denied, errs.Unauthenticated:
		return exitDenied
	}
	return exitFailed
}

// report prints err on standard error, as one line or as JSON.
func (c *cli) report(ctx context.Context, err error) {
	if errors.As(err, new(ended)) {
		return // the command's own output says what failed
	}
	body := describe(ctx, err)
	if c.out.JSON {
		// If standard error itself fails, there is nowhere to report it.
		_ = json.NewEncoder(c.out.Stderr).Encode(map[string]ipc.ErrorBody{"error": body})
		return
	}
	parts := []string{"mulligan"}
	if body.Op != "" {
		parts = append(parts, body.Op)
	}
	line := strings.Join(append(parts, body.Message), ": ")
	if body.Hint != "" {
		line += "; " + body.Hint
	}
	fmt.Fprintln(c.out.Stderr, output.Escape(line))
}

// describe returns err in the form in which the API reports errors.
func describe(ctx context.Context, err error) ipc.ErrorBody {
	var stop interrupted
	if errors.As(err, &stop) {
		return ipc.ErrorBody{Kind: errs.Unavailable, Op: stop.op, Message: stop.message, Hint: stop.hint}
	}
	if ctx.Err() != nil {
		return ipc.ErrorBody{Kind: errs.Unavailable, Message: "interrupted"}
	}
	var back recovered
	if errors.As(err, &back) {
		err = back.error
	}
	return ipc.Body(err)
}
