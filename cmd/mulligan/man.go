package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"mulligan/errs"
)

const manLong = `Write a manual page for each command, mulligan.1, mulligan-create.1 and so on, into
the folder DIR, from what the commands say of themselves.

In a pipe, the field is: the path of each page.`

type manCmd struct{ *cli }

func newMan(c *cli) *cobra.Command {
	f := &manCmd{cli: c}
	return &cobra.Command{
		Use:     "man DIR",
		Short:   "Write the manual pages",
		Long:    manLong,
		Example: "  mulligan man /usr/local/share/man/man1",
		Args:    oneArg,
		RunE:    func(cmd *cobra.Command, args []string) error { return f.run(cmd.Root(), args[0]) },
	}
}

func (f *manCmd) run(root *cobra.Command, dir string) error {
	const op = "man"
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return errs.Wrap(errs.Failed, op, err)
	}
	var paths []string
	for _, cmd := range pages(root) {
		path := filepath.Join(dir, pageName(cmd)+".1")
		var page bytes.Buffer
		if err := writeManual(&page, cmd); err != nil {
			return errs.Wrap(errs.Failed, op, err)
		}
		if err := os.WriteFile(path, page.Bytes(), 0o644); err != nil {
			return errs.Wrap(errs.Failed, op, err)
		}
		paths = append(paths, path)
	}
	if f.out.JSON {
		return f.out.PrintJSON(map[string][]string{"pages": paths})
	}
	for _, p := range paths {
		f.out.Println(f.out.Text(p))
	}
	return nil
}

// pages returns cmd and the commands below it that have a manual page.
func pages(cmd *cobra.Command) []*cobra.Command {
	list := []*cobra.Command{cmd}
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			list = append(list, pages(sub)...)
		}
	}
	return list
}

// pageName returns the name of a command's page, such as mulligan-app-add.
func pageName(cmd *cobra.Command) string { return strings.ReplaceAll(cmd.CommandPath(), " ", "-") }

// writeManual writes the page of a command to w. Its date is SOURCE_DATE_EPOCH, if that is set.
func writeManual(w io.Writer, cmd *cobra.Command) error {
	cmd.DisableAutoGenTag = true
	return doc.GenMan(cmd, &doc.GenManHeader{Section: "1", Source: "mulligan", Manual: "mulligan"}, w)
}
