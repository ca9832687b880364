package main

import (
	"context"

	"github.com/spf13/cobra"
)

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
