// Package guide helps a person to find a command: the groups of the help, and what a mistyped command or flag was probably meant to be.
package guide

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"mulligan/nearest"
)

// Group is a part of the list of commands.
type Group struct {
	Title    string
	Commands []*cobra.Command
}

// Add adds groups of commands to root. The help lists groups and commands in the order given here.
func Add(root *cobra.Command, groups ...Group) {
	cobra.EnableCommandSorting = false
	for i, g := range groups {
		id := fmt.Sprint(i)
		root.AddGroup(&cobra.Group{ID: id, Title: g.Title + ":"})
		for _, cmd := range g.Commands {
			cmd.GroupID = id
			root.AddCommand(cmd)
		}
	}
}

// elsewhere are the words that other tools have for what a command does.
var elsewhere = map[string][]string{
	"create":    {"checkpoint", "snapshot", "save", "commit", "backup", "capture", "new"},
	"rollback":  {"restore", "reset", "checkout", "goto", "load", "switch", "jump"},
	"undo":      {"back"},
	"rewind":    {"choose", "browse", "tui"},
	"redo":      {"forward"},
	"list":      {"ls", "history", "checkpoints", "snapshots", "timeline"},
	"diff":      {"changes"},
	"log":       {"audit", "oplog", "op", "events"},
	"status":    {"info", "ps", "state"},
	"delete":    {"rm", "remove", "forget"},
	"prune":     {"gc", "clean", "cleanup"},
	"verify":    {"check", "fsck"},
	"fork":      {"branch", "clone", "copy", "duplicate"},
	"forks":     {"branches"},
	"keep":      {"merge", "promote", "pick"},
	"drop":      {"discard", "abandon"},
	"init":      {"setup", "enable", "protect", "add", "register", "start"},
	"install":   {"connect", "hooks"},
	"uninstall": {"disconnect"},
	"ui":        {"web", "open", "dashboard", "page"},
	"app list":  {"apps"},
	"app set":   {"set", "config", "settings"},
}

// Command returns the subcommand of parent that name was probably meant to be, as one types it, or "".
func Command(parent *cobra.Command, name string) string {
	if !parent.HasParent() {
		for own, words := range elsewhere {
			if slices.Contains(words, strings.ToLower(name)) {
				return parent.CommandPath() + " " + own
			}
		}
	}
	var names []string
	for _, cmd := range parent.Commands() {
		if cmd.IsAvailableCommand() {
			names = append(names, cmd.Name())
		}
	}
	near := nearest.Word(name, names)
	if at := slices.IndexFunc(names, func(own string) bool { return strings.HasPrefix(own, strings.ToLower(name)) }); near == "" && at >= 0 {
		near = names[at]
	}
	if near == "" || name == "" {
		return ""
	}
	return parent.CommandPath() + " " + near
}

// flagsElsewhere are the words that other tools have for a flag. A word may mean several; the first that the command has is meant.
var flagsElsewhere = []struct {
	own   string
	words []string
}{
	{"notes", []string{"m", "message", "msg", "description", "comment", "name", "title"}},
	{"reason", []string{"m", "message", "msg", "why"}},
	{"pin", []string{"pinned", "keep", "protect"}},
	{"limit", []string{"n", "max-count", "max", "number", "count", "last", "lines"}},
	{"count", []string{"n", "number"}},
	{"dry-run", []string{"n", "preview", "simulate", "what-if", "no-act", "check"}},
	{"yes", []string{"y", "assume-yes", "no-input", "non-interactive", "no-confirm"}},
	{"force", []string{"f"}},
	{"scope", []string{"path", "paths", "only", "file", "files", "layer", "include"}},
	{"without", []string{"exclude", "except", "skip"}},
	{"name-status", []string{"name-only", "names"}},
	{"stat", []string{"summary", "short"}},
	{"conversation", []string{"session"}},
	{"slug", []string{"name"}},
	{"run", []string{"command", "cmd", "exec"}},
	{"json", []string{"j", "format", "output", "o"}},
	{"app", []string{"a", "project"}},
}

// Flag explains an error of the parser of cmd's flags. hint is "" if there is nothing to suggest.
func Flag(cmd *cobra.Command, err error) (message, hint string) {
	var unknown *pflag.NotExistError
	var value *pflag.InvalidValueError
	var syntax *pflag.InvalidSyntaxError
	switch {
	case errors.As(err, &unknown):
		if letters := unknown.GetSpecifiedShortnames(); letters != "" {
			return "unknown flag: -" + letters, meant(cmd, letters)
		}
		return "unknown flag: --" + unknown.GetSpecifiedName(), meant(cmd, unknown.GetSpecifiedName())
	case errors.As(err, &value):
		f := value.GetFlag()
		return fmt.Sprintf("--%s: %.64q is no %s", f.Name, value.GetValue(), kind(f)), ""
	case errors.As(err, &syntax):
		return fmt.Sprintf("%.64q is no flag", syntax.GetSpecifiedFlag()), ""
	}
	return err.Error(), hint
}

// meant says which flag of cmd an unknown one, given without its dashes, was probably meant to be, or returns "".
func meant(cmd *cobra.Command, word string) string {
	has := func(name string) bool { return cmd.Flags().Lookup(name) != nil }
	if strings.Trim(word, "0123456789") == "" {
		if has("limit") {
			return fmt.Sprintf("did you mean --limit %s?", word)
		}
		return "a number of a checkpoint has no sign: 1 is the newest"
	}
	if len(word) > 1 {
		var names []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
		if near := nearest.Word(word, names); near != "" {
			return fmt.Sprintf("did you mean --%s?", near)
		}
	}
	for _, f := range flagsElsewhere {
		letter, size := utf8.DecodeRuneInString(word) // -n5 is -n 5
		known := word == f.own || slices.Contains(f.words, word) || strings.Trim(word[size:], "0123456789") == "" && slices.Contains(f.words, string(letter))
		switch {
		case !known:
		case has(f.own):
			return fmt.Sprintf("did you mean --%s?", f.own)
		case f.own == "yes":
			return "leave it out: " + cmd.CommandPath() + " asks nothing"
		}
	}
	return ""
}

// kind names what a flag's values are.
func kind(f *pflag.Flag) string {
	switch f.Value.Type() {
	case "int", "int64", "uint", "float64":
		return "number"
	case "duration":
		return "duration as in 90s or 24h"
	case "bool":
		return "true or false"
	}
	return "value for it"
}
