package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"mulligan/cmd/mulligan/output"
	"mulligan/ipc"
)

// lasting makes cmd a command that may last longer than a moment: it shows how far it is on a terminal, and has --events. It returns cmd.
func (c *cli) lasting(cmd *cobra.Command) *cobra.Command {
	cmd.Flags().BoolVar(&c.out.Events, "events", false, "print the progress while it runs, and then the result, as lines of JSON")
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c.out.JSON = c.out.JSON || c.out.Events
		ctx, done := c.progress(cmd.Context())
		defer done()
		cmd.SetContext(ctx)
		return run(cmd, args)
	}
	return cmd
}

// progress returns a context whose requests show how far they are: as events, or on the terminal in a line on standard error that goes away
// again. done must be called at the end.
func (c *cli) progress(ctx context.Context) (_ context.Context, done func()) {
	if c.out.Events {
		return ipc.WithProgress(ctx, func(p ipc.Progress) { _ = c.out.PrintEvent(ipc.EventProgress, p) }), func() {} // Stdout keeps the error
	}
	if !c.out.Terminal || c.out.JSON || c.stderr == nil || !term.IsTerminal(int(c.stderr.Fd())) {
		return ctx, func() {}
	}
	line := output.NewLine(c.stderr, func() int {
		width, _, err := term.GetSize(int(c.stderr.Fd()))
		if err != nil {
			return c.out.Width
		}
		return width
	})
	c.out.Stdout.Before = line.Clear
	told := make(chan ipc.Progress)
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		showProgress(ctx, line, told)
	}()
	return ipc.WithProgress(ctx, func(p ipc.Progress) {
			select {
			case told <- p:
			case <-ctx.Done():
			}
		}), func() {
			cancel()
			<-ended
			line.Clear()
		}
}

// showProgress shows what it is told, and every second how long it lasts already, until ctx ends.
func showProgress(ctx context.Context, line *output.Line, told <-chan ipc.Progress) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	var latest ipc.Progress
	var at time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case latest = <-told:
			at = time.Now()
			line.Show(latest.Words())
		case <-tick.C:
			now := latest
			now.ElapsedMS += time.Since(at).Milliseconds()
			line.Refresh(now.Words())
		}
	}
}
