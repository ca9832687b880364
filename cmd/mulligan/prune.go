package main

import (
	"context"

	"github.com/spf13/cobra"

	"mulligan/cmd/mulligan/output"
)

const pruneLong = `Delete the checkpoints that the app's retention no longer keeps. The daemon also does
this after each create.

In a pipe: the ids that were deleted, or with --dry-run would be, one a line.`

type pruneCmd struct {
	*cli
	dryRun bool
}

func newPrune(c *cli) *cobra.Command {
	f := &pruneCmd{cli: c}
	cmd := &cobra.Command{
		Use:     "prune",
		Short:   "Delete the checkpoints that retention no longer keeps",
		Long:    pruneLong,
		Example: "  mulligan prune --dry-run",
		Args:    noArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return f.run(cmd.Context()) },
	}
	cmd.Flags().BoolVar(&f.dryRun, "dry-run", false, "delete nothing, list what would be deleted")
	return cmd
}

func (f *pruneCmd) run(ctx context.Context) error {
	client, app, err := f.target(ctx)
	if err != nil {
		return err
	}
	res, err := client.Prune(ctx, app, f.dryRun)
	if err != nil {
		return err
	}
	if f.out.JSON {
		return f.out.PrintJSON(res)
	}
	verb := "deleted"
	if f.dryRun {
		verb = "would delete"
	}
	for _, id := range res.Deleted {
		if f.out.Terminal {
			f.out.Print(verb, " ")
		}
		f.out.Println(f.out.Text(string(id)))
	}
	if f.out.Terminal {
		f.out.Printf("%s %s, %d left\n", verb, output.Count(len(res.Deleted), "checkpoint"), res.Kept)
	}
	for _, w := range res.Warnings {
		f.out.Note("prune", w)
	}
	return nil
}
