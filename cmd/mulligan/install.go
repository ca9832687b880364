package main

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"mulligan/agents"
	"mulligan/cmd/mulligan/launch"
	"mulligan/cmd/mulligan/output"
	"mulligan/cmd/mulligan/place"
	"mulligan/errs"
)

const installLong = `Write mulligan's MCP server and hooks into a coding agent's own settings, so that
every turn of its work has a checkpoint from before its first write (in apps with
auto = true) and the agent can make checkpoints and roll back by itself.

AGENT is one of AGENTS.

With --scope user (the default) the agent has mulligan wherever you use it; with
--scope project only in the project of the current folder, for everybody who works on
it: then mulligan must be in their PATH.

All else in the settings stays as it is, comments included, and so does what you add to
mulligan's MCP entry, such as --confirm. What a file was is kept in the user's state folder: mulligan uninstall AGENT gives back the same bytes, or, if
the file was changed since, takes out only what is mulligan's. Doing it twice changes
nothing more. --dry-run only prints the changes, as a diff.

Agents without hooks need none of this: turns are recognised from the writes, after a
quiet time.

In a pipe, the fields are: action (created, changed, removed, unchanged), path.`

const uninstallLong = `Take mulligan's MCP server and hooks out of a coding agent's settings again. What
mulligan install made of a file is undone to the byte if nobody changed it since, else
only what is mulligan's is taken out.

AGENT is one of AGENTS.

In a pipe, the fields are: action (changed, removed, unchanged), path.`

type installCmd struct {
	*cli
	scope  string
	dryRun bool
	undo   bool // the command is uninstall
}

func newInstall(c *cli) *cobra.Command {
	return newInstaller(&installCmd{cli: c}, &cobra.Command{
		Use: "install AGENT", Short: "Set up a coding agent to use mulligan", Long: installLong,
		Example: "  mulligan install claude-code\n  mulligan install codex --scope project --dry-run",
	})
}

func newUninstall(c *cli) *cobra.Command {
	return newInstaller(&installCmd{cli: c, undo: true}, &cobra.Command{
		Use: "uninstall AGENT", Short: "Take mulligan out of a coding agent's settings", Long: uninstallLong,
		Example: "  mulligan uninstall claude-code",
	})
}

// newInstaller completes cmd, which is install or uninstall.
func newInstaller(f *installCmd, cmd *cobra.Command) *cobra.Command {
	cmd.Long = strings.ReplaceAll(cmd.Long, "AGENTS", strings.Join(agents.Names(), ", "))
	cmd.Args, cmd.ValidArgs = oneArg, agents.Names()
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if f.scope != string(agents.User) && f.scope != string(agents.Project) {
			return usage(cmd, "--scope %q is neither user nor project", f.scope)
		}
		return f.run(args[0])
	}
	cmd.Flags().StringVar(&f.scope, "scope", string(agents.User), "whose settings: `user|project`")
	cmd.Flags().BoolVar(&f.dryRun, "dry-run", false, "print what would change, as a diff")
	return cmd
}

func (f *installCmd) run(name string) error {
	agent, err := agents.ByName(name)
	if err != nil {
		return err
	}
	place, err := f.place()
	if err != nil {
		return err
	}
	dir, err := launch.StateDir()
	if err != nil {
		return errs.Wrap(errs.Failed, "find the settings", err)
	}
	backups := agents.Backups{Dir: filepath.Join(dir, "agents")}
	plan, carryOut := agent.Install, backups.Apply
	if f.undo {
		plan, carryOut = agent.Uninstall, backups.Undo
	}
	files, err := plan(place, backups)
	if err != nil {
		return err
	}
	if !f.dryRun {
		if err := carryOut(files); err != nil {
			return err
		}
	}
	return f.print(agent, files)
}

// place returns where the settings are, and how an agent calls this program.
func (f *installCmd) place() (agents.Place, error) {
	dir, err := place.Here()
	if err != nil {
		return agents.Place{}, errs.Wrap(errs.Failed, "find the settings", err)
	}
	program := "mulligan" // a project's settings also serve people who have it elsewhere
	if f.scope == string(agents.User) {
		self, err := os.Executable()
		if err != nil {
			return agents.Place{}, errs.Wrap(errs.Failed, "find this program", err)
		}
		program = launch.Lasting("mulligan", self)
	}
	return agents.NewPlace(agents.Scope(f.scope), dir, program)
}

func (f *installCmd) print(agent *agents.Agent, files []agents.Edited) error {
	var notes []string
	if !f.undo {
		notes = agent.Notes(agents.Scope(f.scope))
	}
	if f.out.JSON {
		return f.out.PrintJSON(map[string]any{
			"agent": agent.Name, "scope": f.scope, "dry_run": f.dryRun, "files": files, "notes": append([]string{}, notes...),
		})
	}
	var rows [][]string
	for _, e := range files {
		if f.dryRun {
			// Each line is escaped: settings may hold control characters.
			for line := range strings.Lines(e.Diff) {
				f.out.Println(output.EscapeLine(strings.TrimSuffix(line, "\n")))
			}
			continue
		}
		rows = append(rows, []string{e.Action, f.out.Text(e.Path)})
	}
	f.out.Table([]string{"ACTION", "FILE"}, rows)
	if f.out.Terminal {
		for _, n := range notes {
			f.out.Println(n)
		}
	}
	return nil
}
