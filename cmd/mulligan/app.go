package main

import (
	"github.com/spf13/cobra"
)

func newApp(c *cli) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "app",
		Short:   "Register, look at and change apps",
		Example: "  mulligan app list\n  mulligan app add --slug shop --dir /srv/shop --db sqlite:shop.db",
	}
	cmd.AddCommand(newAppAdd(c), newAppList(c), newAppShow(c), newAppRemove(c), newAppSet(c))
	return group(cmd)
}

const appFieldsHelp = `In a pipe: a line per field, its name (as in the app file) and its value; database,
exclude, covers, gap (what of it cannot be captured or given back), note (what the command changed elsewhere) and problem once per item. Passwords in URLs are not shown, except by --json.`
