package main

import (
	"context"

	"github.com/spf13/cobra"

	"mulligan/cmd/mulligan/output"
	"mulligan/ipc"
)

const listLong = `List the app's checkpoints, newest first.

In a pipe, the fields are: checkpoint id, time, trigger, pinned (yes or no), size
(what deleting it would free), git commit, notes, title of the turn that it was made for. The notes of one that is damaged
begin with DAMAGED: mulligan verify says what of it is.

On a terminal, and with --json, those that this host sent to a remote and has no more follow.

What needs attention of the app, as a layer that is held up, is said below the
table; in a pipe, on standard error.`

type listCmd struct {
	*cli
	trigger      string
	conversation string
	limit        int
}

func newList(c *cli) *cobra.Command {
	f := &listCmd{cli: c}
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List checkpoints, newest first",
		Long:    listLong,
		Example: "  mulligan list --limit 5\n  mulligan list --trigger deploy | cut -f1",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.limit < 0 {
				return usage(cmd, "--limit %d is negative", f.limit)
			}
			return f.run(cmd.Context())
		},
	}
	cmd.Flags().StringVar(&f.trigger, "trigger", "", "only those made by `manual|deploy|agent|pre-rollback`")
	cmd.Flags().StringVar(&f.conversation, "conversation", "", "only those of this `CONVERSATION`'s turns")
	cmd.Flags().IntVar(&f.limit, "limit", 0, "at most `N` (default: all)")
	return cmd
}

func (f *listCmd) run(ctx context.Context) error {
	client, app, err := f.target(ctx)
	if err != nil {
		return err
	}
	list, err := client.Checkpoints(ctx, app, ipc.CheckpointQuery{Trigger: ipc.Trigger(f.trigger), Limit: f.limit, Conversation: f.conversation})
	if err != nil {
		return err
	}
	if f.out.JSON {
		return f.out.PrintJSON(list)
	}
	if f.out.Terminal && f.trigger == "" && f.conversation == "" && f.limit == 0 {
		list.Checkpoints = append(list.Checkpoints, list.RemoteOnly...)
	}
	f.out.PrintCheckpoints(list.Checkpoints, f.trigger == "" && f.conversation == "")
	if f.out.Terminal {
		u := list.StorageUsage
		f.out.Printf("%s, %d pinned, %s; the last %d and %s are kept\n",
			output.Count(u.CheckpointCount, "checkpoint"), u.PinnedCount, f.out.Size(u.TotalBytes), u.KeepLast, output.Count(u.DailyDays, "daily one"))
	}
	a, err := client.App(ctx, app)
	if err != nil {
		return err
	}
	f.out.PrintWarnings(a.Problems)
	return nil
}
