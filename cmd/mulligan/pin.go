package main

import (
	"context"

	"github.com/spf13/cobra"
)

// pinCmd is the command pin or, if pinned is false, unpin.
type pinCmd struct {
	*cli
	pinned bool
}

func newPin(c *cli) *cobra.Command {
	f := &pinCmd{cli: c, pinned: true}
	return &cobra.Command{
		Use:               "pin CP",
		Short:             "Keep a checkpoint: it can be neither pruned nor deleted",
		Long:              "Keep a checkpoint: it can be neither pruned nor deleted.\n\nIn a pipe: one line with the fields of mulligan list.",
		Example:           "  mulligan pin 1",
		Args:              oneArg,
		ValidArgsFunction: c.completeCheckpoints,
		RunE:              func(cmd *cobra.Command, args []string) error { return f.run(cmd.Context(), args[0]) },
	}
}

func newUnpin(c *cli) *cobra.Command {
	f := &pinCmd{cli: c}
	return &cobra.Command{
		Use:               "unpin CP",
		Short:             "No longer keep a checkpoint",
		Long:              "Let a checkpoint be pruned and deleted again.\n\nIn a pipe: one line with the fields of mulligan list.",
		Example:           "  mulligan unpin cp-4f2a",
		Args:              oneArg,
		ValidArgsFunction: c.completeCheckpoints,
		RunE:              func(cmd *cobra.Command, args []string) error { return f.run(cmd.Context(), args[0]) },
	}
}

func (f *pinCmd) run(ctx context.Context, name string) error {
	client, app, id, err := f.checkpoint(ctx, name)
	if err != nil {
		return err
	}
	cp, err := client.Pin(ctx, app, id, f.pinned)
	if err != nil {
		return err
	}
	return f.out.PrintCheckpoint(cp)
}
