// Package health checks whether an app works: with a request to its URL, or with a command that runs as the app's owner.
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
	// longestTry bounds one request, so that an app that accepted a connection and never answered is asked again.
	longestTry = 5 * time.Second
)

// Options say as which user and in which folder a health command runs.
type Options struct {
	Owner privsep.User
	Dir   string // an absolute path: the workspace
}

// Check asks the app until it is healthy, and then returns nil. An app is healthy if the URL answers with a status of 2xx or
// 3xx, or if the command exits with status 0. After the check's timeout (10 s by default) Check returns the last failure as an
// error of kind errs.Failed. The pauses between requests grow from 20 ms.
//
// The error is of kind errs.Invalid if the check itself is invalid, and errs.Unavailable if ctx ends first.
func Check(ctx context.Context, h ipc.Health, o Options) error {
	timeout := defaultTimeout
	if h.Timeout != "" {
		d, err := time.ParseDuration(h.Timeout)
		if err != nil || d <= 0 {
			return errs.New(errs.Invalid, op, "timeout %q is not a duration", h.Timeout).WithHint(`write a duration like "10s"`)
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

// Ask asks the app once, within the given time, and returns nil if it is healthy.
func Ask(ctx context.Context, h ipc.Health, o Options, within time.Duration) error {
	p, err := newProbe(h, o)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	return errs.Wrap(errs.Failed, op, p.try(ctx))
}

// probe is a way to ask an app.
type probe interface {
	object() string // the URL or command, for messages
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

// poll repeats the probe until it succeeds or ctx ends. It returns the last failure that says something about the app. A
// failure which only says that the time ran out is returned if there is no other.
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
