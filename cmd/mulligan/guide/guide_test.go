package guide

import (
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// tree is a small tree of commands.
func tree() *cobra.Command {
	root := &cobra.Command{Use: "mulligan"}
	run := func(*cobra.Command, []string) error { return nil }
	app := &cobra.Command{Use: "app", RunE: run}
	app.AddCommand(&cobra.Command{Use: "set", RunE: run})
	list := &cobra.Command{Use: "list", RunE: run, SilenceErrors: true, SilenceUsage: true}
	list.Flags().Int("limit", 0, "")
	list.Flags().Bool("dry-run", false, "")
	Add(root,
		Group{"Every day", []*cobra.Command{list, {Use: "create", RunE: run}}},
		Group{"Apps", []*cobra.Command{app}})
	return root
}

func TestCommand(t *testing.T) {
	root := tree()
	for name, want := range map[string]string{
		"lsit": "mulligan list", "creat": "mulligan create", "Checkpoint": "mulligan create", "restore": "mulligan rollback",
		"config": "mulligan app set", "cr": "mulligan create", "frobnicate": "", "": "",
	} {
		if got := Command(root, name); got != want {
			t.Errorf("Command(%q) = %q, want %q", name, got, want)
		}
	}
	app, _, err := root.Find([]string{"app"})
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"sett": "mulligan app set", "restore": ""} {
		if got := Command(app, name); got != want {
			t.Errorf("Command(%q) of app = %q, want %q", name, got, want)
		}
	}
}

// A word of another tool is in the list once.
func TestElsewhere(t *testing.T) {
	var all []string
	for _, words := range elsewhere {
		all = append(all, words...)
	}
	slices.Sort(all)
	if once := slices.Compact(slices.Clone(all)); len(once) != len(all) {
		t.Errorf("there are words twice: %q", all)
	}
}

func TestFlag(t *testing.T) {
	for args, want := range map[string][2]string{
		"--limt 3":  {"unknown flag: --limt", "did you mean --limit?"},
		"--dryrun":  {"unknown flag: --dryrun", "did you mean --dry-run?"},
		"--nosuch":  {"unknown flag: --nosuch", ""},
		"-n 5":      {"unknown flag: -n", "did you mean --limit?"},
		"-n5":       {"unknown flag: -n5", "did you mean --limit?"},
		"-5":        {"unknown flag: -5", "did you mean --limit 5?"},
		"-y":        {"unknown flag: -y", "leave it out: mulligan list asks nothing"},
		"--yes":     {"unknown flag: --yes", "leave it out: mulligan list asks nothing"},
		"--preview": {"unknown flag: --preview", "did you mean --dry-run?"},
		"-é":        {"unknown flag: -é", ""},
		"--=x":      {`"--=x" is no flag`, ""},
		"--limit x": {`--limit: "x" is no number`, ""},
		"--limit":   {"flag needs an argument: --limit", ""},
	} {
		root := tree()
		var got [2]string
		root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
			got[0], got[1] = Flag(cmd, err)
			return err
		})
		root.SetArgs(append([]string{"list"}, strings.Fields(args)...))
		if err := root.Execute(); err == nil {
			t.Errorf("%s: no error", args)
		}
		if got != want {
			t.Errorf("%s: %q, want %q", args, got, want)
		}
	}
}

// The help lists the groups, and the commands of each, in the order in which they were added.
func TestHelp(t *testing.T) {
	var out strings.Builder
	root := tree()
	root.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	root.SetOut(&out)
	root.SetArgs(nil)
	if err := root.Execute(); err != nil {
		t.Fatal(err)
	}
	from := 0
	for _, word := range []string{"Every day:", "  list", "  create", "Apps:", "  app"} {
		at := strings.Index(out.String()[from:], word)
		if at < 0 {
			t.Fatalf("%q is not at its place in\n%s", word, out.String())
		}
		from += at
	}
}
