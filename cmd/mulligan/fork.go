package main

import (
	"context"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"mulligan/cmd/mulligan/place"
	"mulligan/errs"
	"mulligan/ipc"
)

const forkLong = `Make a fork of the app: a second, running copy of it that begins at a checkpoint, or at
the present state. The fork has a folder of its own, beside the workspace or where --dir
says, and databases of its own. Its processes see that folder at the path of the app's
workspace, and have the app's port numbers to themselves, so the app needs no change and
cannot reach what belongs to its parent. Where the host has the program pasta, they reach
what the host reaches outside, and nothing of the host itself; with --no-network, nothing.
From the host, the fork answers at the address that is printed.

Where the kernel lets mulligan make no namespaces, or fork.isolation of the app is ports, the
fork runs on the host, in its own folder: it is told ports of its own by the variables in
fork.ports, and what may lead it to its parent is said. See docs/how-to/forks.md.

mulligan keep takes the app to the state of a fork; mulligan drop removes a fork.

In a pipe, a line for each fork: name, app id, state, address or "-", folder, the checkpoint
that it began with, time of its making, isolation.`

type forkCmd struct {
	*cli
	req ipc.ForkRequest
	set []string
}

func newFork(c *cli) *cobra.Command {
	f := &forkCmd{cli: c}
	cmd := &cobra.Command{
		Use:               "fork [CP]",
		Short:             "Make a running copy of the app from a checkpoint, or from now",
		Long:              forkLong,
		Example:           "  mulligan fork\n  mulligan fork 1 --name try-redis\n  mulligan fork --count 3\n  mulligan fork --set DATABASE_POOL=2",
		Args:              func(cmd *cobra.Command, args []string) error { return countArgs(cmd, args, 0, 1) },
		ValidArgsFunction: c.completeCheckpoints,
		RunE:              func(cmd *cobra.Command, args []string) error { return f.run(cmd, args) },
	}
	cmd.Flags().StringVar(&f.req.Name, "name", "", "the fork's `name` (default: a number)")
	cmd.Flags().IntVar(&f.req.Count, "count", 1, "make `N` forks of the same state")
	cmd.Flags().StringVar(&f.req.Dir, "dir", "", "the fork's `folder`, which must not exist (default: ../APP-forks/NAME)")
	cmd.Flags().BoolVar(&f.req.NoStart, "no-start", false, "do not start the fork")
	cmd.Flags().BoolVar(&f.req.NoNetwork, "no-network", false, "the fork reaches nothing outside: a trial sends no mail")
	cmd.Flags().StringArrayVar(&f.set, "set", nil, "a variable of the fork's environment, as `KEY=VALUE`; may be repeated")
	cmd.Flags().BoolVar(&f.req.WithMemory, "with-memory", false, "keep the running domain's memory too: the fork's guest goes on where it is, without a boot")
	return cmd
}

func (f *forkCmd) run(cmd *cobra.Command, args []string) (err error) {
	ctx := cmd.Context()
	for _, s := range f.set {
		name, value, ok := strings.Cut(s, "=")
		if !ok {
			return usage(cmd, "--set %s has no =: write --set KEY=VALUE", s)
		}
		if f.req.Set == nil {
			f.req.Set = map[string]string{}
		}
		f.req.Set[name] = value
	}
	client, app, err := f.target(ctx)
	if err != nil {
		return err
	}
	if len(args) == 1 {
		if client, app, f.req.CheckpointID, err = f.checkpoint(ctx, args[0]); err != nil {
			return err
		}
	}
	if f.req.Dir != "" {
		if f.req.Dir, err = filepath.Abs(f.req.Dir); err != nil {
			return err
		}
	}
	list, err := client.Fork(ctx, app, f.req)
	if err != nil {
		return err
	}
	return f.out.PrintForks(list)
}

type forksCmd struct{ *cli }

func newForks(c *cli) *cobra.Command {
	f := &forksCmd{cli: c}
	return &cobra.Command{
		Use:     "forks",
		Short:   "List the app's forks",
		Long:    "List the app's forks.\n\nIn a pipe, the fields are those of mulligan fork.",
		Example: "  mulligan forks",
		Args:    noArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return f.run(cmd.Context()) },
	}
}

func (f *forksCmd) run(ctx context.Context) error {
	client, app, err := f.target(ctx)
	if err != nil {
		return err
	}
	list, err := client.Forks(ctx, app)
	if err != nil {
		return err
	}
	return f.out.PrintForks(list)
}

type keepCmd struct {
	*cli
	req ipc.KeepRequest
}

func newKeep(c *cli) *cobra.Command {
	f := &keepCmd{cli: c}
	cmd := &cobra.Command{
		Use:   "keep FORK",
		Short: "Take the app to the state of a fork, and drop the fork",
		Long: `Take the app to the present state of one of its forks, and drop the fork. This is a
rollback whose target is the fork: it makes a safety checkpoint first, and mulligan redo
goes back to it. The other forks stay. The fork does not run meanwhile, except its virtual
machine, and what mulligan exec runs in it is ended; if a file in its folder is changed
meanwhile, it is not dropped, and a warning says so.

With --scope the app gets only a part of the fork. The rest is in the checkpoint of the
fork that the app has afterwards, which mulligan list shows. A PATH of --scope is relative
to the current folder, where that is in the workspace of the app or of the fork, and to
that workspace elsewhere.

In a pipe, the same lines as mulligan rollback prints.`,
		Example: "  mulligan keep 2\n  mulligan keep try-redis --dry-run\n  mulligan keep 2 --scope src/ --scope layer:db:main",
		Args:    oneArg,
		RunE:    func(cmd *cobra.Command, args []string) error { return f.run(cmd.Context(), args[0]) },
	}
	cmd.Flags().StringArrayVar(&f.req.Scope, "scope", nil, "only this: a `PATH`, or layer:NAME (layer:files, layer:db:main); may be repeated")
	cmd.Flags().BoolVar(&f.req.DryRun, "dry-run", false, "change nothing, say what would change")
	cmd.Flags().BoolVar(&f.req.AndStay, "and-stay", false, "do not drop the fork")
	return cmd
}

func (f *keepCmd) run(ctx context.Context, name string) error {
	client, app, err := f.target(ctx)
	if err != nil {
		return err
	}
	if f.req.Scope, err = place.Scope(ctx, client, "keep", app, name, f.req.Scope); err != nil {
		return err
	}
	res, err := client.Keep(ctx, app, name, f.req)
	var id ipc.CheckpointID
	if res.RestoredTo != nil {
		id = res.RestoredTo.ID
	}
	return f.rolledBack(ctx, "keep", id, f.req.DryRun, res, err)
}

type dropCmd struct {
	*cli
	all bool
}

func newDrop(c *cli) *cobra.Command {
	f := &dropCmd{cli: c}
	cmd := &cobra.Command{
		Use:     "drop FORK...",
		Short:   "Remove forks, with all that was made for them",
		Long:    "Remove forks: their processes, folders, databases and checkpoints. The app itself stays\nas it is.",
		Example: "  mulligan drop 1 3\n  mulligan drop --all",
		Args: func(cmd *cobra.Command, args []string) error {
			if f.all == (len(args) > 0) {
				return usage(cmd, "name the forks to drop, or use --all")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd.Context(), args) },
	}
	cmd.Flags().BoolVar(&f.all, "all", false, "drop all forks of the app")
	return cmd
}

func (f *dropCmd) run(ctx context.Context, names []string) error {
	client, app, err := f.target(ctx)
	if err != nil {
		return err
	}
	if f.all {
		list, err := client.Forks(ctx, app)
		if err != nil {
			return err
		}
		for _, a := range list.Forks {
			names = append(names, a.Fork.Name)
		}
	}
	for _, name := range names { // one that cannot be dropped keeps no other
		err = errs.Also(err, client.DropFork(ctx, app, name))
		if ctx.Err() != nil {
			break
		}
	}
	return err
}
