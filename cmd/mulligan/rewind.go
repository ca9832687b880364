package main

import (
	"context"
	"os"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"mulligan/cmd/mulligan/output"
	"mulligan/cmd/mulligan/picker"
	"mulligan/errs"
	"mulligan/ipc"
)

const rewindLong = `Choose a state to go back to: a list of the app's checkpoints and turns, with a preview
of what would change beside it. Enter goes back after a question, u undoes the newest
turn, r redoes, f makes a fork, / searches, ? lists all keys, q leaves.

mulligan without a command does the same on a terminal, in an app's workspace.

It needs a terminal. Elsewhere mulligan list, rollback, undo and fork do the same.`

type rewindCmd struct{ *cli }

func newRewind(c *cli) *cobra.Command {
	f := &rewindCmd{cli: c}
	return &cobra.Command{
		Use:     "rewind",
		Short:   "Choose a state to go back to, with a preview",
		Long:    rewindLong,
		Example: "  mulligan rewind",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !f.interactive() {
				return usage(cmd, "it needs a terminal: mulligan undo, and mulligan rollback CP, need none")
			}
			client, app, err := f.target(cmd.Context())
			if err != nil {
				return err
			}
			return f.run(cmd.Context(), client, app)
		},
	}
}

// interactive reports whether a person sits at the terminal of this program.
func (c *cli) interactive() bool {
	return c.out.Terminal && !c.out.JSON && term.IsTerminal(int(c.in.Fd())) && os.Getenv("TERM") != "dumb"
}

func (f *rewindCmd) run(ctx context.Context, client *ipc.Client, ref string) error {
	app, err := client.App(ctx, ref)
	if err != nil {
		return err
	}
	choice, err := picker.Run(ctx, picker.Options{
		Daemon: client, App: app, In: f.in, Out: os.Stdout, Plain: !f.out.Colour,
		Escape: output.Escape, Ago: humanize.Time, Size: f.out.Size,
	})
	if err != nil {
		return errs.Wrap(errs.Failed, "rewind", err)
	}
	id := string(app.ID)
	switch choice.Deed {
	case picker.GoBack:
		return f.rollback(ctx, client, id, choice.ID, ipc.RollbackRequest{})
	case picker.Undo:
		return f.rollback(ctx, client, id, ipc.Undo, ipc.RollbackRequest{Turns: 1})
	case picker.Redo:
		return f.rollback(ctx, client, id, ipc.Redo, ipc.RollbackRequest{})
	case picker.Fork:
		list, err := client.Fork(ctx, id, ipc.ForkRequest{CheckpointID: choice.ID, Count: 1})
		if err != nil {
			return err
		}
		return f.out.PrintForks(list)
	}
	return nil
}

// home shows what a person who names no command wants to see: in an app's workspace the picker, else the help.
func (c *cli) home(cmd *cobra.Command) error {
	if c.interactive() {
		_, c.asleep = c.launcher().Wake(cmd.Context())
		if client, app, err := c.target(cmd.Context()); err == nil {
			return (&rewindCmd{c}).run(cmd.Context(), client, app)
		}
	}
	return cmd.Help()
}
