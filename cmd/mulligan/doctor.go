package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"mulligan/agents"
	"mulligan/cmd/mulligan/doctor"
	"mulligan/cmd/mulligan/launch"
	"mulligan/cmd/mulligan/output"
	"mulligan/errs"
	"mulligan/ipc"
)

const doctorLong = `Check everything that mulligan needs, and say how to get what is missing: the daemon, systemd, libvirt, the programs and servers of databases, the limits of following
files, the state folder, each coding agent's hooks and server, and each app. An agent that can be
asked (Codex) is asked itself whether it runs the hooks in the current folder.

Doctor changes nothing. A problem is something that does not work now; an advice is about
something that no app here needs yet.

Exit codes: 0 no problem, 1 there are problems, 7 no daemon answers.

In a pipe, the fields are: state (ok, advice, problem), about (daemon, host, databases,
state, agents, apps), name, finding, remedy.`

type doctorCmd struct{ *cli }

func newDoctor(c *cli) *cobra.Command {
	f := &doctorCmd{cli: c}
	return &cobra.Command{
		Use:     "doctor",
		Short:   "Check that this host has everything that mulligan needs",
		Long:    doctorLong,
		Example: "  mulligan doctor\n  mulligan doctor --json",
		Args:    noArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return f.run(cmd.Context()) },
	}
}

func (f *doctorCmd) run(ctx context.Context) error {
	o, err := f.options()
	if err != nil {
		return err
	}
	r := doctor.Examine(ctx, o)
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := f.print(r); err != nil {
		return err
	}
	const op = "doctor"
	switch {
	case r.NoDaemon != nil && errs.KindOf(r.NoDaemon) == errs.Unavailable:
		return &errs.Error{Kind: errs.Unavailable, Op: op, Hint: errs.HintOf(r.NoDaemon), Err: ipc.ErrNoDaemon}
	case !r.OK:
		return errs.New(errs.Failed, op, "%s", output.Count(r.Problems, "problem")).WithHint("follow the advice beside each finding")
	}
	return nil
}

// options returns where doctor looks: at the user's own settings and at those of the
// project in the current folder.
func (f *doctorCmd) options() (doctor.Options, error) {
	const op = "doctor"
	dir, err := launch.StateDir()
	if err != nil {
		return doctor.Options{}, errs.Wrap(errs.Failed, op, err)
	}
	o := doctor.Options{
		Daemon: f.client(), Version: daemonVersion(), StateDir: dir, UID: os.Getuid(),
		Backups: agents.Backups{Dir: filepath.Join(dir, "agents")}, HookLog: filepath.Join(dir, "hook.log"),
		Asleep: f.asleep,
	}
	if o.Dir, err = os.Getwd(); err != nil {
		o.Dir = "" // the folder is gone
	}
	if os.Getuid() == 0 {
		o.StateDir = "/var/lib/mulligan" // of the host's daemon, unless a daemon answers and names another
	}
	for _, scope := range []agents.Scope{agents.User, agents.Project} {
		p, err := (&installCmd{cli: f.cli, scope: string(scope)}).place()
		switch {
		case err == nil:
			o.Places = append(o.Places, p)
		case scope == agents.User:
			return o, err
		} // an error for the project scope: the home folder is not a project
	}
	return o, nil
}

func (f *doctorCmd) print(r doctor.Report) error {
	if f.out.JSON {
		return f.out.PrintJSON(r)
	}
	var rows [][]string
	about := ""
	for _, c := range r.Checks {
		if !f.out.Terminal {
			rows = append(rows, []string{string(c.State), c.About, f.out.Text(c.Name), f.out.Text(c.Finding), f.out.Text(c.Remedy)})
			continue
		}
		group := ""
		if c.About != about {
			about, group = c.About, strings.ToUpper(c.About)
		}
		rows = append(rows, []string{group, string(c.State), f.out.Text(c.Name), f.out.Text(c.Finding)})
		if c.Remedy != "" {
			rows = append(rows, []string{"", "", "", "→ " + f.out.Text(c.Remedy)})
		}
	}
	f.out.Prose([]string{"ABOUT", "STATE", "NAME", "FINDING"}, rows)
	return nil
}

// daemonVersion returns the version that a daemon of this build reports.
func daemonVersion() string {
	if commit == "" {
		return buildVersion().Version
	}
	return version + " (" + commit + ")"
}
