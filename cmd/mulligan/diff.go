package main

import (
	"context"

	"github.com/spf13/cobra"

	"mulligan/cmd/mulligan/output"
	"mulligan/ipc"
)

const diffLong = `Print what changed between a checkpoint and now, or between two checkpoints: files
as unified diffs, databases as a line per table. Paths limit it to themselves and
what lies below them; they are relative to the current folder, where that is in the
app's workspace, else to the workspace. What changed within a git repository is one
line, unless a path is named.

A layer that cannot be read at present, as a database whose server is away, is a line on
standard error; the others are told all the same.

With --name-status, and with --stat, a line per change: A (created), M (modified) or
D (deleted), the path, and with --stat a word on what changed. A change of another
layer than the files is named LAYER:WHAT. In a pipe the fields are separated by tabs.`

type diffCmd struct {
	*cli
	stat, nameStatus bool
}

func newDiff(c *cli) *cobra.Command {
	f := &diffCmd{cli: c}
	cmd := &cobra.Command{
		Use:               "diff CP [CP2] [-- PATH…]",
		Short:             "Print what changed since a checkpoint",
		Long:              diffLong,
		Example:           "  mulligan diff 1 --stat\n  mulligan diff 2 1 -- src",
		ValidArgsFunction: c.completeCheckpoints,
		RunE: func(cmd *cobra.Command, args []string) error {
			points, paths := args, []string(nil)
			if at := cmd.ArgsLenAtDash(); at >= 0 {
				points, paths = args[:at], args[at:]
			}
			if len(points) < 1 || len(points) > 2 {
				return usage(cmd, "name one checkpoint or two; paths go behind --")
			}
			if f.stat && f.nameStatus {
				return usage(cmd, "--stat and --name-status don't go together")
			}
			return f.run(cmd.Context(), points, paths)
		},
	}
	cmd.Flags().BoolVar(&f.stat, "stat", false, "a line per change, with what changed")
	cmd.Flags().BoolVar(&f.nameStatus, "name-status", false, "a line per change")
	return cmd
}

func (f *diffCmd) run(ctx context.Context, points, paths []string) error {
	client, app, id, err := f.checkpoint(ctx, points[0])
	if err != nil {
		return err
	}
	if paths, err = scopeHere(ctx, client, "diff", app, "", paths); err != nil {
		return err
	}
	shown := output.NewDiffPrinter(f.out)
	shown.Stat, shown.NameStatus, shown.Whole = f.stat, f.nameStatus, len(paths) > 0
	q := ipc.DiffQuery{Paths: paths, Patch: !f.stat && !f.nameStatus}
	if len(points) == 2 {
		_, _, to, err := f.checkpoint(ctx, points[1])
		if err != nil {
			return err
		}
		q.Against = string(to)
	}
	res, err := client.Diff(ctx, app, id, q)
	if err != nil {
		return err
	}
	for { // one page of the daemon's answer after the other
		if f.out.JSON {
			if err := f.out.PrintJSON(res); err != nil {
				return err
			}
		} else {
			shown.Print(res)
		}
		q.Offset += len(res.Changes)
		if len(res.Changes) == 0 || q.Offset >= res.Total || f.out.JSON {
			break
		}
		if res, err = client.Diff(ctx, app, id, q); err != nil {
			return err
		}
	}
	shown.PrintRepositories()
	for _, l := range res.Unreadable {
		f.out.Note("diff", l)
	}
	for _, l := range res.Unknown {
		f.out.Note("diff", "the changes in "+l+" cannot be listed")
	}
	return nil
}
