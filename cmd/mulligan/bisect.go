package main

import (
	"context"

	"github.com/spf13/cobra"

	"mulligan/errs"
	"mulligan/ipc"
)

type bisectCmd struct {
	*cli
	good, bad string
	req       ipc.BisectRequest
}

func newBisect(c *cli) *cobra.Command {
	b := &bisectCmd{cli: c}
	cmd := &cobra.Command{
		Use:   "bisect [-- COMMAND...]",
		Short: "Find the first checkpoint at which a command fails, without touching the app",
		Long: `Find the first checkpoint at which a command fails, and what changed there. Each test runs
in a fork of a checkpoint, which is dropped afterwards; the app itself is not touched. The
command runs as in mulligan exec: 0 is good, 125 means that it cannot tell, and all else is
bad. Without a command, the app is started in the fork, and its health check decides.

Without --bad, the present state is the bad one. Without --good, a good one is looked for.
The two checkpoints that are found are tested again: a command that answers now this, now
that, is said to be one.

In a pipe: outcome (found, range or cannot_tell), last good checkpoint, first bad one, and
the turns between them or "-".`,
		Example: "  mulligan bisect -- npm test\n  mulligan bisect --good 12 --jobs 2 -- ./check.sh\n  mulligan bisect",
		RunE:    func(cmd *cobra.Command, args []string) error { return b.run(cmd.Context(), args) },
	}
	cmd.Flags().StringVar(&b.good, "good", "", "a `checkpoint` that is good")
	cmd.Flags().StringVar(&b.bad, "bad", "", "a later `checkpoint` that is bad (default: the present state)")
	cmd.Flags().BoolVar(&b.req.NoNetwork, "no-network", false, "the tests reach nothing outside their forks")
	cmd.Flags().IntVar(&b.req.Jobs, "jobs", 1, "test `N` checkpoints at a time")
	cmd.Flags().BoolVar(&b.req.Start, "start", false, "start the app in each fork before the command")
	cmd.Flags().StringVar(&b.req.Timeout, "timeout", "", "the `time` that the command may take (default 10m)")
	cmd.Flags().SetInterspersed(false) // the command's flags are its own
	return cmd
}

func (b *bisectCmd) run(ctx context.Context, command []string) error {
	client, app, err := b.target(ctx)
	if err != nil {
		return err
	}
	if b.good != "" {
		if _, _, b.req.Good, err = b.checkpoint(ctx, b.good); err != nil {
			return err
		}
	}
	if b.bad != "" {
		if _, _, b.req.Bad, err = b.checkpoint(ctx, b.bad); err != nil {
			return err
		}
	}
	if len(command) > 0 && command[0] == "--" {
		command = command[1:]
	}
	b.req.Command = command
	res, err := client.Bisect(ctx, app, b.req)
	if err != nil {
		return err
	}
	err = b.out.PrintBisect(res)
	if err == nil && res.Outcome == ipc.BisectUnsure {
		err = errs.New(errs.Failed, "bisect", "the command cannot tell: for the same or an older state it says now this, now that").
			WithHint("make the command decide by the state alone, and let it exit with 125 where it cannot tell")
	}
	return err
}
