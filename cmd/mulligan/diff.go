package main

import (
	"context"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"mulligan/cmd/mulligan/output"
	"mulligan/cmd/mulligan/place"
	"mulligan/errs"
	"mulligan/ipc"
)

const diffLong = `Print what changed between a checkpoint and now, or between two checkpoints: files
as unified diffs, databases as a line per table. Paths limit it to themselves and
what lies below them; they are relative to the current folder, where that is in the
app's workspace, else to the workspace, as are the paths that are printed, except with
--json. What changed within a git repository is one line, unless a path is named. A path
that exists neither now nor in the checkpoint is an error.

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
	at, err := place.Of(ctx, client, app, "")
	if err != nil {
		return err
	}
	if paths, err = f.pathsHere(at, paths); err != nil {
		return err
	}
	shown := output.NewDiffPrinter(f.out)
	shown.Stat, shown.NameStatus, shown.Whole, shown.Path = f.stat, f.nameStatus, len(paths) > 0, at.Shown
	changed := map[string]bool{} // the paths in which there is a change
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
		for _, p := range paths {
			changed[p] = changed[p] || slices.ContainsFunc(res.Changes, func(c ipc.DiffChange) bool { return p == "." || c.Path == p || strings.HasPrefix(c.Path, p+"/") })
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
	for _, p := range paths {
		if err := f.unchanged(at, p, changed[p], len(points) == 2, res.From); err != nil {
			return err
		}
	}
	return nil
}

// pathsHere returns the paths that a person typed, relative to the workspace. The git repository of the workspace may be named in any
// folder of it.
func (f *diffCmd) pathsHere(at place.Place, typed []string) (all []string, err error) {
	for _, t := range typed {
		rel, ok := at.InWorkspace(t)
		if !ok {
			return nil, errs.New(errs.Invalid, "diff", "%s is not in the workspace %s", t, at.Workspace).WithHint("name paths below it")
		}
		if clean := filepath.Clean(t); (clean == ".git" || strings.HasPrefix(clean, ".git/")) && at.Absent(rel) && !at.Absent(clean) {
			rel = clean
		}
		all = append(all, rel)
	}
	return all, nil
}

// unchanged says of a path without a change that it has none, or returns an error if it is in neither state.
func (f *diffCmd) unchanged(at place.Place, path string, changed, two bool, from ipc.CheckpointID) error {
	switch gone := at.Absent(path); {
	case changed || path == "." && !gone:
	case gone && !two: // else its deletion would be a change
		e := errs.New(errs.NotFound, "diff", "%s is neither in the workspace now nor in %s", at.Shown(path), from)
		if typed := at.Shown(path); !at.Absent(typed) {
			return e.WithHint("paths are relative to the current folder: did you mean %s?", at.Shown(typed))
		}
		return e.WithHint("paths are relative to the current folder; what is excluded is in no checkpoint")
	case gone:
		f.out.Note("diff", at.Shown(path)+" has no changes, or is in neither")
	default:
		f.out.Note("diff", at.Shown(path)+" has no changes")
	}
	return nil
}
