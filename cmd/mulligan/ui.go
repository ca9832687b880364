package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"

	"github.com/spf13/cobra"

	"mulligan/ipc"
)

const uiLong = `Open mulligan's page: apps with their timelines, what each turn changed, rollbacks
with a preview first, storage, the audit. It opens on the app of --app, else on the one
that the current folder belongs to, else on the first of the list.

The link works once, for two minutes, on this host alone; the page it opens stays
good for hours. On a desktop it is opened in the browser; else, and in a pipe, it
is only printed.`

type uiCmd struct {
	*cli
	print bool
}

func newUI(c *cli) *cobra.Command {
	f := &uiCmd{cli: c}
	cmd := &cobra.Command{
		Use:     "ui",
		Short:   "Open mulligan's page in the browser",
		Long:    uiLong,
		Example: "  mulligan ui\n  mulligan ui --app shop\n  mulligan ui --print",
		Args:    noArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return f.run(cmd.Context()) },
	}
	cmd.Flags().BoolVar(&f.print, "print", false, "print the link, open nothing")
	return cmd
}

func (f *uiCmd) run(ctx context.Context) error {
	_, app, _ := f.target(ctx) // "" outside of any app; the call below fails, too, if there is no daemon
	link, err := f.client().UI(ctx, ipc.UIRequest{App: app})
	if err != nil {
		return err
	}
	if f.out.JSON {
		return f.out.PrintJSON(link)
	}
	f.out.Println(link.URL)
	if f.print || !f.out.Terminal || !desktop() {
		return nil
	}
	// If no browser opens, the person can follow the printed link.
	if err := exec.CommandContext(ctx, "xdg-open", link.URL).Run(); err != nil {
		fmt.Fprintf(f.out.Stderr, "no browser opened (xdg-open: %v): follow the link above\n", err)
	}
	return nil
}

// desktop reports whether there is a desktop to open a browser on.
func desktop() bool { return os.Getenv("DISPLAY") != "" || os.Getenv("WAYLAND_DISPLAY") != "" }
