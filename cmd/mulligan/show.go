package main

import (
	"context"

	"github.com/spf13/cobra"
)

const showLong = `Show everything that is known about one checkpoint.

In a pipe: a line per field, its name (as in the API) and its value; db_snapshot, raw (a
layer that could not be read, kept as bytes), stayed_behind (a layer that the rollback
after it left as it was) and warning once for each.`

type showCmd struct{ *cli }

func newShow(c *cli) *cobra.Command {
	f := &showCmd{cli: c}
	return &cobra.Command{
		Use:               "show CP",
		Short:             "Show a checkpoint",
		Long:              showLong,
		Example:           "  mulligan show 1\n  mulligan show cp-4f2a --json",
		Args:              oneArg,
		ValidArgsFunction: c.completeCheckpoints,
		RunE:              func(cmd *cobra.Command, args []string) error { return f.run(cmd.Context(), args[0]) },
	}
}

func (f *showCmd) run(ctx context.Context, name string) error {
	client, app, id, err := f.checkpoint(ctx, name)
	if err != nil {
		return err
	}
	cp, err := client.Checkpoint(ctx, app, id)
	if err != nil {
		return err
	}
	if f.out.JSON {
		return f.out.PrintJSON(cp)
	}
	f.out.Fields(f.out.CheckpointFields(cp))
	return nil
}
