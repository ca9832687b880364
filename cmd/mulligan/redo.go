package main

import (
	"context"

	"github.com/spf13/cobra"

	"mulligan/ipc"
)

const redoLong = `Undo the last undo, rollback or revert: take the app to its safety checkpoint, the state
just before it. Only what it changed goes back. A redo is a rollback too: a second redo
undoes the first. A rollback that was called off changed nothing; redo skips it. An app
that was down before an undo is down again after its redo, unless --start is given.

In a pipe, the same lines as mulligan rollback prints.`

type redoCmd struct {
	*cli
	req   ipc.RollbackRequest
	start startFlags
}

func newRedo(c *cli) *cobra.Command {
	f := &redoCmd{cli: c}
	cmd := &cobra.Command{
		Use:     "redo",
		Short:   "Undo the last rollback",
		Long:    redoLong,
		Example: "  mulligan undo && mulligan redo",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.start.check(cmd); err != nil {
				return err
			}
			return f.run(cmd.Context())
		},
	}
	cmd.Flags().BoolVar(&f.req.DryRun, "dry-run", false, "change nothing, say what would change")
	cmd.Flags().BoolVar(&f.req.Force, "force", false, forceHelp)
	addWithout(cmd, &f.req)
	f.start.add(cmd)
	return cmd
}

func (f *redoCmd) run(ctx context.Context) error {
	client, app, err := f.target(ctx)
	if err != nil {
		return err
	}
	f.req.Start = f.start.wish()
	return f.rollback(ctx, client, app, ipc.Redo, f.req)
}
