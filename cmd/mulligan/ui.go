package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"

	"github.com/spf13/cobra"
)

const uiLong = `Open mulligan's page: apps with their timelines, what each turn changed, rollbacks
with a preview first, storage, the audit.

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
		Example: "  mulligan ui\n  mulligan ui --print",
		Args:    noArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return f.run(cmd.Context()) },
	}
	cmd.Flags().BoolVar(&f.print, "print", false, "print the link, open nothing")
	return cmd
}

func (f *uiCmd) run(ctx context.Context) error {
	link, err := f.client().UI(ctx)
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
