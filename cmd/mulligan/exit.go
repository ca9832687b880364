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

// The exit codes. Scripts rely on them.
const (
	exitDone        = 0
	exitFailed      = 1
	exitUsage       = 2
	exitNotFound    = 3
	exitRefused     = 4 // for the state that things are in: pinned, busy, conflict, expired
	exitDenied      = 5
	exitRecovered   = 6 // a rollback failed, and the app is back where it was before it
	exitNoDaemon    = 7
	exitInterrupted = 130
)

// recovered marks the error of a rollback after which the app was put back.
type recovered struct{ error }

func (r recovered) Unwrap() error { return r.error }

// interrupted is what a command was doing when the user interrupted it.
type interrupted struct{ op, message, hint string }

func (i interrupted) Error() string { return i.op + ": " + i.message }

// exitCode is the exit code for err, which is not nil.
func exitCode(ctx context.Context, err error) int {
	var back recovered
	switch {
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

// report prints err on standard error: one line, or JSON.
func (c *cli) report(ctx context.Context, err error) {
	body := describe(ctx, err)
	if c.out.JSON {
		// Nothing is left to be done about an error of standard error itself.
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

// describe is err as the API would put it.
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
