package main

import (
	"context"

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
	return output.NewLine(c.stderr, func() int {
		width, _, err := term.GetSize(int(c.stderr.Fd()))
		if err != nil {
			return c.out.Width
		}
		return width
	}).Follow(ctx, c.out.Stdout)
}
