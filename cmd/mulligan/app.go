package main

import (
	"context"

	"github.com/spf13/cobra"

	"mulligan/ipc"
)

func newApp(c *cli) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "app",
		Short:   "Register, look at and change apps",
		Example: "  mulligan app list\n  mulligan app add --slug shop --dir /srv/shop --db sqlite:shop.db",
	}
	cmd.AddCommand(c.lasting(newAppAdd(c)), newAppList(c), newAppShow(c), c.lasting(newAppRemove(c)), c.lasting(newAppSet(c)))
	return group(cmd)
}

const appFieldsHelp = `In a pipe: a line per field, its name (as in the app file) and its value; database,
exclude, covers, gap (what of it cannot be captured or given back), note (what the command changed elsewhere) and problem once per item. Passwords in URLs are not shown, except by --json.`

const appListLong = `List your apps.

In a pipe, the fields are: slug, app id, state (running, stopped, failed, none,
unknown), owner, workspace.`

type appListCmd struct{ *cli }

func newAppList(c *cli) *cobra.Command {
	f := &appListCmd{cli: c}
	return &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List your apps",
		Long:    appListLong,
		Example: "  mulligan app list",
		Args:    noArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return f.run(cmd.Context()) },
	}
}

func (f *appListCmd) run(ctx context.Context) error {
	apps, err := f.client().Apps(ctx)
	if err != nil {
		return err
	}
	if f.out.JSON {
		return f.out.PrintJSON(ipc.AppList{Apps: apps})
	}
	var rows [][]string
	for _, a := range apps {
		rows = append(rows, []string{f.out.Text(a.Slug), f.out.Text(string(a.ID)), f.out.Text(a.State), f.out.Text(a.Owner), f.out.Text(a.Workspace)})
	}
	f.out.Table([]string{"SLUG", "APP", "STATE", "OWNER", "WORKSPACE"}, rows, "OWNER", "APP", "STATE")
	return nil
}

type appShowCmd struct{ *cli }

func newAppShow(c *cli) *cobra.Command {
	f := &appShowCmd{cli: c}
	return &cobra.Command{
		Use:     "show",
		Short:   "Show an app: its settings, its state, the content of its checkpoints",
		Long:    "Show an app: its settings, its state, the content of its checkpoints.\n\n" + appFieldsHelp,
		Example: "  mulligan app show --app shop",
		Args:    noArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return f.run(cmd.Context()) },
	}
}

func (f *appShowCmd) run(ctx context.Context) error {
	client, app, err := f.target(ctx)
	if err != nil {
		return err
	}
	a, err := client.AppWithGaps(ctx, app)
	if err != nil {
		return err
	}
	return f.out.PrintApp(a)
}

const appRemoveLong = `Forget an app. Its workspace is left as it is; its checkpoints stay stored unless
--purge is given.

In a pipe: the app as it was named. With --json nothing is printed, as the API
answers with nothing.`

type appRemoveCmd struct {
	*cli
	purge bool
}

func newAppRemove(c *cli) *cobra.Command {
	f := &appRemoveCmd{cli: c}
	cmd := &cobra.Command{
		Use:     "remove SLUG",
		Short:   "Forget an app",
		Long:    appRemoveLong,
		Example: "  mulligan app remove shop --purge",
		Args:    oneArg,
		RunE:    func(cmd *cobra.Command, args []string) error { return f.run(cmd.Context(), args[0]) },
		ValidArgsFunction: func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return c.completeApps(cmd, args, begun)
		},
	}
	cmd.Flags().BoolVar(&f.purge, "purge", false, "delete its checkpoints too")
	return cmd
}

func (f *appRemoveCmd) run(ctx context.Context, app string) error {
	if err := f.client().RemoveApp(ctx, app, f.purge); err != nil {
		return err
	}
	switch {
	case f.out.JSON:
	case f.out.Terminal:
		f.out.Printf("removed %s\n", f.out.Text(app))
	default:
		f.out.Println(f.out.Text(app))
	}
	return nil
}
