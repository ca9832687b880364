package main

import (
	"context"
	"strconv"

	"github.com/spf13/cobra"

	"mulligan/cmd/mulligan/place"
	"mulligan/ipc"
)

const undoLong = `Take the app to the state before the newest turn of an agent, or before the newest N
turns. Only turns that agents' hooks report count. Undo skips turns that are undone
already. A rollback that an agent made within its turn is part of the turn. If a revert
came last, undo takes back the paths that the revert changed. mulligan redo goes forward
again.

If files were written in between, outside of all turns, undo names one of them and does
nothing. With --include-others it undoes these writes too.

If a layer can be neither read nor kept, for example because its database server is down,
the error names the flag that undoes the rest: --without db:main.

A PATH of --discard is relative to the current folder, where that is in the app's
workspace, else to the workspace.

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
	cmd.Flags().BoolVar(&f.req.IncludeOthers, "include-others", false, "also undo what was written in between outside of all turns")
	cmd.Flags().BoolVar(&f.req.Force, "force", false, forceHelp)
	addWithout(cmd, &f.req)
	addDiscard(cmd, &f.req)
	f.start.add(cmd)
	c.addEvents(cmd)
	return cmd
}

func (f *undoCmd) run(ctx context.Context) error {
	client, app, err := f.target(ctx)
	if err != nil {
		return err
	}
	if f.req.Discard, err = place.Discard(ctx, client, "undo", app, f.req.Discard); err != nil {
		return err
	}
	f.req.Start = f.start.value()
	return f.rollback(ctx, client, app, ipc.Undo, f.req)
}

const redoLong = `Undo the last undo, rollback or revert: take the app to its safety checkpoint, the state
just before it. Only what it changed goes back. A redo is a rollback too: a second redo
undoes the first. A rollback that was called off changed nothing; redo skips it. An app
that was down before an undo is down again after its redo, unless --start is given.

A PATH of --discard is relative to the current folder, where that is in the app's
workspace, else to the workspace.

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
	addDiscard(cmd, &f.req)
	f.start.add(cmd)
	c.addEvents(cmd)
	return cmd
}

func (f *redoCmd) run(ctx context.Context) error {
	client, app, err := f.target(ctx)
	if err != nil {
		return err
	}
	if f.req.Discard, err = place.Discard(ctx, client, "redo", app, f.req.Discard); err != nil {
		return err
	}
	f.req.Start = f.start.value()
	return f.rollback(ctx, client, app, ipc.Redo, f.req)
}
