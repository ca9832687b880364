package main

import (
	"context"

	"github.com/spf13/cobra"

	"mulligan/ipc"
)

type compareCmd struct {
	*cli
	req ipc.CompareRequest
	run string
}

func newCompare(c *cli) *cobra.Command {
	f := &compareCmd{cli: c}
	cmd := &cobra.Command{
		Use:   "compare [FORK...]",
		Short: "Compare forks: what each changed, whether it is healthy, how a command ends in it",
		Long: `Compare the app's forks, all or some: what each one changed in files and databases since
its origin, whether its health check passes, and with --run how a command ends inside of
it. The command runs in a shell, with the rights of the app's owner, in all forks at the
same time.

In a pipe, a line for each fork: name, state, healthy (yes, no or "-"), what it created,
modified and deleted, the command's exit code or "-", seconds or "-".`,
		Example: "  mulligan compare\n  mulligan compare 1 3 --run 'npm test'",
		RunE:    func(cmd *cobra.Command, args []string) error { return f.compare(cmd.Context(), args) },
	}
	cmd.Flags().StringVar(&f.run, "run", "", "run a `command` in each fork")
	cmd.Flags().StringVar(&f.req.Timeout, "timeout", "", "the `time` that the command may take (default 10m)")
	return cmd
}

func (f *compareCmd) compare(ctx context.Context, names []string) error {
	client, app, err := f.target(ctx)
	if err != nil {
		return err
	}
	f.req.Names = names
	if f.run != "" {
		f.req.Command = []string{"/bin/sh", "-c", f.run}
	}
	res, err := client.CompareForks(ctx, app, f.req)
	if err != nil {
		return err
	}
	return f.out.PrintComparison(res)
}
