package main

import (
	"context"

	"github.com/spf13/cobra"
)

const deleteLong = `Delete a checkpoint. A pinned one is refused (exit code 4).

In a pipe: the id that was deleted. With --json nothing is printed, as the API
answers with nothing.`

type deleteCmd struct{ *cli }

func newDelete(c *cli) *cobra.Command {
	f := &deleteCmd{cli: c}
	return &cobra.Command{
		Use:               "delete CP",
		Short:             "Delete a checkpoint",
		Long:              deleteLong,
		Example:           "  mulligan delete cp-4f2a",
		Args:              oneArg,
		ValidArgsFunction: c.completeCheckpoints,
		RunE:              func(cmd *cobra.Command, args []string) error { return f.run(cmd.Context(), args[0]) },
	}
}

func (f *deleteCmd) run(ctx context.Context, name string) error {
	client, app, id, err := f.checkpoint(ctx, name)
	if err != nil {
		return err
	}
	if err := client.DeleteCheckpoint(ctx, app, id); err != nil {
		return err
	}
	switch {
	case f.out.JSON:
	case f.out.Terminal:
		f.out.Printf("deleted %s\n", f.out.Text(string(id)))
	default:
		f.out.Println(f.out.Text(string(id)))
	}
	return nil
}
