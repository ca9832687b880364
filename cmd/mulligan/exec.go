package main

import (
	"context"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"mulligan/cmd/mulligan/place"
	"mulligan/errs"
	"mulligan/ipc"
)

// ended is the error of a command inside of a fork whose exit status is not 0. The command has said why.
type ended struct{ status int }

func (e ended) Error() string { return "the command failed" }

type execCmd struct{ *cli }

func newExec(c *cli) *cobra.Command {
	e := &execCmd{cli: c}
	cmd := &cobra.Command{
		Use:   "exec FORK -- COMMAND...",
		Short: "Run a command inside of a fork",
		Long: `Run a command inside of a fork of the app: with the fork's folder at the path of the app's
workspace, and with the fork's ports and databases, whether or not the fork is started.
It runs with the rights of the app's owner and without a network, in your environment and
in your folder if that is in the fork's folder or the app's workspace. A fork with isolation
ports has its own folder and the host's network, and its variables over those of yours.

The exit code is the command's, or 128 and the number of the signal that ended it.`,
		Example: "  mulligan exec 2 -- npm test\n  mulligan exec 2 -- psql shop -c 'SELECT count(*) FROM orders'",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(commandOf(args)) == 0 {
				return usage(cmd, "name a fork and a command: %s", cmd.UseLine())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error { return e.run(cmd.Context(), args[0], commandOf(args)) },
	}
	cmd.Flags().SetInterspersed(false) // the command's flags are its own
	return cmd
}

// commandOf returns the command in the arguments: all after the fork's name and a "--" that may follow it.
func commandOf(args []string) []string {
	if len(args) > 1 && args[1] == "--" {
		return args[2:]
	}
	return args[min(1, len(args)):]
}

func (e *execCmd) run(ctx context.Context, name string, command []string) error {
	client, parent, fork, err := e.fork(ctx, name)
	if err != nil {
		return err
	}
	dir, err := place.Here()
	if err != nil {
		return errs.Wrap(errs.Failed, "exec", err)
	}
	inside := fork.Fork.ParentPath
	for _, folder := range []string{fork.Workspace, inside} {
		if rel, err := filepath.Rel(folder, dir); err == nil && filepath.IsLocal(rel) {
			inside = filepath.Join(fork.Fork.ParentPath, rel)
			break
		}
	}
	conn, end, err := client.Enter(ctx, parent, name)
	if err != nil {
		return err
	}
	defer end()
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	var env []string
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "PWD=") && !strings.HasPrefix(v, "OLDPWD=") {
			env = append(env, v)
		}
	}
	status, err := ipc.RunInside(conn, ipc.Command{
		Args: command, Env: append(env, "PWD="+inside), Dir: inside, Files: [3]*os.File{e.in, os.Stdout, os.Stderr},
	}, signals)
	if err == nil && status != 0 {
		err = ended{status}
	}
	return err
}

// fork finds a fork by its name: of the app that the flags or the current folder name, or of that app's parent.
func (c *cli) fork(ctx context.Context, name string) (client *ipc.Client, parent string, fork ipc.App, err error) {
	client, parent, err = c.target(ctx)
	if err != nil {
		return client, parent, fork, err
	}
	list, err := client.Forks(ctx, parent)
	if err != nil {
		return client, parent, fork, err
	}
	for _, f := range list.Forks {
		if f.Fork.Name == name || f.Slug == name {
			return client, parent, f, nil
		}
	}
	return client, parent, fork, errs.New(errs.NotFound, "find fork", "the app has no fork %.64q", name).WithHint("`mulligan forks` lists them")
}
