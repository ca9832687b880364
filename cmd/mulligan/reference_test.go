package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"mulligan/cmd/mulligan/manual"
	"mulligan/docs/refdoc"
)

// docs/reference/commands.md has the help of all commands.
func TestReference(t *testing.T) {
	var b strings.Builder
	b.WriteString("# Commands\n\nWhat `mulligan COMMAND --help` prints, of all commands. `mulligan help`, too, prints it.\n\n")
	list := manual.Pages(newRoot(newCLI(), nil))
	b.WriteString("| command | does |\n| --- | --- |\n")
	for _, cmd := range list[1:] {
		fmt.Fprintf(&b, "| [`%s`](#%s) | %s |\n", cmd.CommandPath(), manual.Name(cmd), refdoc.Cell(cmd.Short))
	}
	for _, cmd := range list {
		section(&b, cmd)
	}
	refdoc.Check(t, "commands.md", b.String())
}

// section writes the part of the page about one command.
func section(b *strings.Builder, cmd *cobra.Command) {
	cmd.InitDefaultHelpFlag() // so that the synopsis mentions flags
	long := cmd.Long
	if long == "" {
		long = cmd.Short + "."
	}
	fmt.Fprintf(b, "\n## %s\n\n```text\n%s\n```\n\n```text\n%s\n```\n", cmd.CommandPath(), cmd.UseLine(), strings.TrimSpace(long))
	options(b, cmd)
	if cmd.Example != "" {
		fmt.Fprintf(b, "\nFor example:\n\n```sh\n%s\n```\n", unindented(cmd.Example))
	}
}

func options(b *strings.Builder, cmd *cobra.Command) {
	set := cmd.NonInheritedFlags()
	first := true
	set.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" || f.Name == "version" {
			return
		}
		if first {
			b.WriteString("\n| option | default | what it is |\n| --- | --- | --- |\n")
			first = false
		}
		value, words := pflag.UnquoteUsage(f)
		name := strings.TrimSpace("--" + f.Name + " " + value)
		if f.Shorthand != "" {
			name = "-" + f.Shorthand + ", " + name
		}
		standard := "–"
		if f.DefValue != "" && f.DefValue != "false" && f.DefValue != "0" && f.DefValue != "[]" {
			standard = "`" + f.DefValue + "`"
		}
		fmt.Fprintf(b, "| `%s` | %s | %s |\n", refdoc.Cell(name), standard, refdoc.Cell(words))
	})
}

func unindented(text string) string {
	lines := strings.Split(strings.Trim(text, "\n"), "\n")
	for i, line := range lines {
		lines[i] = strings.TrimPrefix(line, "  ")
	}
	return strings.Join(lines, "\n")
}
