package main

import (
	"context"
	"strconv"

	"github.com/spf13/cobra"

	"mulligan/ipc"
)

const undoLong = `Take the app to where it was before the newest turn of an agent, or before the newest
N of them. Turns are those that agents' hooks tell of; what they did not tell of is
none. Turns that are undone already are passed by, and what an agent itself rolled back
within its turn is a part of it: one turn is one undo. Where a revert came last, that is
undone: the paths that it changed. mulligan redo goes forward again.

What was written to files in between, outside of all turns, would be taken along: undo
then names a path of it and does nothing, unless --include-others is given.

Where a layer can be neither read nor kept, as of a database server that is away, the
error names the flag that undoes the rest: --without db:main.

In a pipe, the same lines as mulligan rollback prints.`

type undoCmd struct {
	*cli
	req   ipc.RollbackRequest
	start startFlags
}

func newUndo(c *cli) *cobra.Command {
	f := &undoCmd{cli: c}
	cmd := &cobra.Command{
		Use:     "undo [N]",
		Short:   "Undo the newest turn, or the newest N",
		Long:    undoLong,
		Example: "  mulligan undo\n  mulligan undo 3 --dry-run",
		Args:    func(cmd *cobra.Command, args []string) error { return countArgs(cmd, args, 0, 1) },
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.start.check(cmd); err != nil {
				return err
			}
			f.req.Turns = 1
			if len(args) == 1 {
				n, err := strconv.Atoi(args[0])
				if err != nil || n < 1 {
					return usage(cmd, "%q is not a number of turns", args[0])
				}
				f.req.Turns = n
			}
			return f.run(cmd.Context())
		},
	}
	cmd.Flags().BoolVar(&f.req.DryRun, "dry-run", false, "change nothing, say what would change")
	cmd.Flags().BoolVar(&f.req.IncludeOthers, "include-others", false, "take along what was written in between outside of all turns")
	cmd.Flags().BoolVar(&f.req.Force, "force", false, forceHelp)
	addWithout(cmd, &f.req)
	addDiscard(cmd, &f.req)
	f.start.add(cmd)
	return cmd
}

func (f *undoCmd) run(ctx context.Context) error {
	client, app, err := f.target(ctx)
	if err != nil {
		return err
	}
	f.req.Start = f.start.wish()
	return f.rollback(ctx, client, app, ipc.Undo, f.req)
}
