package main

import (
	"context"

	"github.com/spf13/cobra"
)

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
