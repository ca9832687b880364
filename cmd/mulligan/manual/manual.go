// Package manual writes the manual pages of commands, from what the commands say of themselves. The client that people
// run does without it: it brings a parser of Markdown and a writer of YAML.
package manual

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// Pages returns cmd and the commands below it that have a manual page.
func Pages(cmd *cobra.Command) []*cobra.Command {
	list := []*cobra.Command{cmd}
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			list = append(list, Pages(sub)...)
		}
	}
	return list
}

// Name returns the name of a command's page, such as mulligan-app-add.
func Name(cmd *cobra.Command) string { return strings.ReplaceAll(cmd.CommandPath(), " ", "-") }

// Write writes the page of a command to w. Its date is SOURCE_DATE_EPOCH, if that is set.
func Write(w io.Writer, cmd *cobra.Command) error {
	cmd.DisableAutoGenTag = true
	return doc.GenMan(cmd, &doc.GenManHeader{Section: "1", Source: "mulligan", Manual: "mulligan"}, w)
}

// WriteAll writes the pages of root and all below it into the folder dir: mulligan.1, mulligan-create.1 and so on.
func WriteAll(dir string, root *cobra.Command) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, cmd := range Pages(root) {
		var page bytes.Buffer
		if err := Write(&page, cmd); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, Name(cmd)+".1"), page.Bytes(), 0o644); err != nil {
			return err
		}
	}
	return nil
}
