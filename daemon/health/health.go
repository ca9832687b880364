// Package health asks an app whether it works: by a request to its URL, or by
// running a command as the app's owner.
package health

import (
	"context"
	"errors"
	"fmt"
	"time"

	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/privsep"
)

const (
	op             = "health check"
	defaultTimeout = 10 * time.Second
	firstPause     = 20 * time.Millisecond
	longestPause   = 500 * time.Millisecond
	// longestTry bounds one request, so that an app that took a connection and
	// never answered it is asked again.
	longestTry = 5 * time.Second
)

// Options say as whom and where a health command runs.
type Options struct {
	Owner privsep.User
	Dir   string // an absolute path: the workspace
}

// Check asks until the app says that it is well, and returns nil; or until the
// check's timeout (10 s by default) is over, and says what was seen last, as an
// error of kind errs.Failed. Well is a status of 2xx or 3xx from the URL, or
// exit status 0 of the command. It asks again after pauses that grow from 20 ms.
//
// A check that makes no sense is errs.Invalid; when ctx ends first the error is
// errs.Unavailable.
func Check(ctx context.Context, h ipc.Health, o Options) error {
	timeout := defaultTimeout
	if h.Timeout != "" {
		d, err := time.ParseDuration(h.Timeout)
		if err != nil || d <= 0 {
			return errs.New(errs.Invalid, op, "timeout %q is not a time", h.Timeout).WithHint(`write a time like "10s"`)
		}
		timeout = d
	}
	p, err := newProbe(h, o)
	if err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	last := poll(limited, p)
	if last == nil {
		return nil
	}
	if ctx.Err() != nil {
		return &errs.Error{Kind: errs.Unavailable, Op: op, Message: "interrupted", Err: ctx.Err(), Hint: "ask again"}
	}
	return &errs.Error{
		Kind: errs.Failed, Op: op, Message: fmt.Sprintf("the health check of %s still fails after %s", p.object(), timeout), Err: last,
		Hint: "look at the app's log; a longer health timeout helps an app that starts slowly",
	}
}

// Ask asks the app once whether it is well, within the given time, and returns nil
// if it says so.
func Ask(ctx context.Context, h ipc.Health, o Options, within time.Duration) error {
	p, err := newProbe(h, o)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	return errs.Wrap(errs.Failed, op, p.try(ctx))
}

// probe is one way to ask.
type probe interface {
	object() string // what is asked, for a reader
	try(ctx context.Context) error
}

func newProbe(h ipc.Health, o Options) (probe, error) {
	switch {
	case (h.URL == "") == (len(h.Command) == 0):
		return nil, errs.New(errs.Invalid, op, "a health check is either a url or a command").WithHint("set exactly one of the two")
	case h.URL != "":
		return newRequest(h.URL)
	}
	return command{argv: h.Command, Options: o}, nil
}

// poll tries until the probe or ctx ends it, and gives the last failure that
// says something of the app: one that only says that time ran out counts if
// there is no other.
func poll(ctx context.Context, p probe) error {
	pause := firstPause
	var last error
	for {
		err := p.try(ctx)
		if err == nil {
			return nil
		}
		if last == nil || ctx.Err() == nil || !errors.Is(err, context.DeadlineExceeded) {
			last = err
		}
		select {
		case <-ctx.Done():
			return last
		case <-time.After(pause):
		}
		pause = min(2*pause, longestPause)
	}
}
