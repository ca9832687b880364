package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"mulligan/ipc/errs"
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
		if err := os.WriteFile(path, []byte(manual(cmd)), 0o644); err != nil {
			return errs.Wrap(errs.Failed, op, err)
		}
		paths = append(paths, path)
	}
	if f.json {
		return f.printJSON(map[string][]string{"pages": paths})
	}
	for _, p := range paths {
		fmt.Fprintln(f.out, f.text(p))
	}
	return nil
}

// pages are cmd and the commands below it that have a page.
func pages(cmd *cobra.Command) []*cobra.Command {
	list := []*cobra.Command{cmd}
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			list = append(list, pages(sub)...)
		}
	}
	return list
}

// pageName is "mulligan-app-add".
func pageName(cmd *cobra.Command) string { return strings.ReplaceAll(cmd.CommandPath(), " ", "-") }

// page is a manual page under way, in the man macros (man(7)).
type page struct{ strings.Builder }

// manual is the page of a command.
func manual(cmd *cobra.Command) string {
	cmd.InitDefaultHelpFlag() // the synopsis speaks of flags once there are some
	var p page
	p.line(`.TH "%s" 1 "" "mulligan" "mulligan"`, strings.ToUpper(pageName(cmd)))
	p.section("NAME")
	p.line(`%s \- %s`, roff(pageName(cmd)), roff(lower(cmd.Short)))
	p.section("SYNOPSIS")
	p.line(`.B %s`, roff(cmd.UseLine()))
	long := cmd.Long
	if long == "" {
		long = cmd.Short + "."
	}
	p.section("DESCRIPTION")
	p.prose(long)
	p.flags("OPTIONS", cmd.NonInheritedFlags())
	p.flags("OPTIONS OF EVERY COMMAND", cmd.InheritedFlags())
	if cmd.Example != "" {
		p.section("EXAMPLES")
		p.verbatim(cmd.Example)
	}
	p.seeAlso(cmd)
	return p.String()
}

func (p *page) line(format string, args ...any) { fmt.Fprintf(p, format+"\n", args...) }
func (p *page) section(name string)             { p.line(".SH %s", name) }

// prose writes paragraphs; those with indented lines stay as they are.
func (p *page) prose(text string) {
	for i, par := range strings.Split(strings.TrimSpace(text), "\n\n") {
		if strings.HasPrefix(par, " ") || strings.Contains(par, "\n ") {
			p.verbatim(par)
			continue
		}
		if i > 0 {
			p.line(".PP")
		}
		for line := range strings.SplitSeq(par, "\n") {
			p.line("%s", roff(line))
		}
	}
}

func (p *page) verbatim(text string) {
	p.line(".PP\n.nf")
	for line := range strings.SplitSeq(strings.Trim(text, "\n"), "\n") {
		p.line("%s", roff(line))
	}
	p.line(".fi")
}

func (p *page) flags(title string, set *pflag.FlagSet) {
	first := true
	set.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		if first {
			p.section(title)
			first = false
		}
		value, words := pflag.UnquoteUsage(f)
		p.line(".TP")
		name := `\fB` + roff("--"+f.Name) + `\fR`
		if f.Shorthand != "" {
			name = `\fB` + roff("-"+f.Shorthand) + `\fR, ` + name
		}
		if value != "" {
			name += ` \fI` + roff(value) + `\fR`
		}
		p.line("%s", name)
		if f.DefValue != "" && f.DefValue != "false" && f.DefValue != "0" && f.DefValue != "[]" {
			words += " (default: " + f.DefValue + ")"
		}
		p.line("%s", roff(words))
	})
}

func (p *page) seeAlso(cmd *cobra.Command) {
	var names []string
	if cmd.HasParent() {
		names = append(names, pageName(cmd.Parent()))
	}
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			names = append(names, pageName(sub))
		}
	}
	p.section(`"SEE ALSO"`)
	for i, name := range names {
		comma := ","
		if i == len(names)-1 {
			comma = ""
		}
		p.line(`.BR %s (1)%s`, roff(name), comma)
	}
}

// roff writes a line so that nothing in it is a request or an escape.
func roff(s string) string {
	s = strings.NewReplacer(`\`, `\e`, "-", `\-`, "…", "...", "→", `\(->`).Replace(s)
	if strings.HasPrefix(s, ".") || strings.HasPrefix(s, "'") {
		s = `\&` + s
	}
	return s
}

// lower is a sentence as it stands in a list of names.
func lower(s string) string {
	if s == "" {
		return s
	}
	return strings.ToLower(s[:1]) + s[1:]
}
