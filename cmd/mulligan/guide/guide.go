// Package guide helps a person to find a command: the groups of the help, and what a mistyped command or flag was probably meant to be.
package guide

import (
	"errors"
	"fmt"
	"slices"
	"strings"

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

// Flag explains an error of the parser of cmd's flags. hint is "" if there is nothing to suggest.
func Flag(cmd *cobra.Command, err error) (message, hint string) {
	var unknown *pflag.NotExistError
	var value *pflag.InvalidValueError
	switch {
	case errors.As(err, &unknown):
		var names []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
		if near := nearest.Word(unknown.GetSpecifiedName(), names); near != "" {
			hint = fmt.Sprintf("did you mean --%s?", near)
		}
	case errors.As(err, &value):
		f := value.GetFlag()
		return fmt.Sprintf("--%s: %.64q is no %s", f.Name, value.GetValue(), kind(f)), ""
	}
	return err.Error(), hint
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
