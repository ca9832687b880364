package main

import (
	"context"

	"github.com/spf13/cobra"

	"mulligan/ipc"
)

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
	f.out.Table([]string{"SLUG", "APP", "STATE", "OWNER", "WORKSPACE"}, rows)
	return nil
}
