package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"mulligan/cmd/mulligan/guide"
	"mulligan/cmd/mulligan/launch"
	"mulligan/cmd/mulligan/offsite"
	"mulligan/cmd/mulligan/output"
	"mulligan/cmd/mulligan/place"
	"mulligan/errs"
	"mulligan/ipc"
)

// cli holds what all commands share: the global flags, standard input and the printer.
type cli struct {
	in          *os.File
	stderr      *os.File // where progress is shown, if it is a terminal
	out         *output.Printer
	app, socket string
	color       string
	asleep      error // why the user's own daemon does not start, if so
}

// sleepers are the commands that need no daemon, or start it themselves.
var sleepers = []string{"init", "install", "uninstall", "version", "help", "completion", "man", "hook", "mulligan", "__complete", "__completeNoDesc"}

// launcher returns what finds and starts the user's own daemon.
func (c *cli) launcher() launch.Launcher {
	return launch.Launcher{Socket: c.socket, Started: func(socket string) {
		if c.out.Terminal && !c.out.JSON {
			c.out.Printf("started your daemon; it listens on %s\n", c.out.Text(socket))
		}
	}}
}

// newCLI returns a cli that uses the standard streams of the process.
func newCLI() *cli {
	out := &output.Printer{Stdout: output.NewWriter(os.Stdout), Stderr: os.Stderr, Terminal: term.IsTerminal(int(os.Stdout.Fd()))}
	if width, _, err := term.GetSize(int(os.Stdout.Fd())); err == nil {
		out.Width = width
	}
	return &cli{in: os.Stdin, stderr: os.Stderr, out: out}
}

// setColour decides whether what is printed has colours: where --color says so, else on a terminal unless the environment says no
// (https://no-color.org).
func (c *cli) setColour(cmd *cobra.Command) error {
	switch c.color {
	case "auto":
		c.out.Colour = c.out.Terminal && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
	case "always", "never":
		c.out.Colour = c.color == "always"
	default:
		return usage(cmd, "--color %q is not auto, always or never", c.color)
	}
	return nil
}

// run executes the command line args and returns the exit code.
func run(ctx context.Context, c *cli, args []string) int {
	if isHook(args) {
		(&hookCmd{c}).run(ctx, args[1:])
		return exitDone
	}
	root := newRoot(c, args)
	root.SetArgs(args)
	root.SetIn(c.in)
	root.SetOut(c.out.Stdout)
	root.SetErr(c.out.Stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		err = errs.Wrap(errs.Failed, "print", c.out.Stdout.Err())
	}
	if err == nil {
		return exitDone
	}
	if errors.Is(err, ipc.ErrNoDaemon) && c.asleep != nil {
		err = errors.Join(c.asleep, ipc.ErrNoDaemon) // the reason, instead of another daemon's advice
	}
	// The parser stops at a bad flag, so a --json after it is not set yet.
	c.out.JSON = c.out.JSON || c.out.Events || slices.Contains(args, "--json") || slices.Contains(args, "--events")
	c.report(ctx, err)
	return exitCode(ctx, err)
}

// client returns a client of the daemon that the flags and the environment name.
func (c *cli) client() *ipc.Client {
	client := ipc.NewClient(ipc.FindSocket(c.socket))
	if client.Socket() == ipc.HostSocket && !c.out.JSON {
		client.Late = sync.OnceFunc(c.sayThatHostIsDown)
	}
	return client
}

// sayThatHostIsDown prints to standard error that the host's daemon does not run, if systemd says so. systemd keeps the daemon's socket open and
// tries to start the daemon again and again, so the caller's request waits and does not fail.
func (c *cli) sayThatHostIsDown() {
	if state := launch.HostUnitState(context.Background()); state != "" && state != "active" {
		fmt.Fprintf(c.out.Stderr, "mulligan: the host's daemon does not run: mulligand.service is %s. This command waits until the daemon has started; `systemctl status mulligand` says why it has not\n", output.Escape(state))
	}
}

// offsite returns what the commands of remotes use.
func (c *cli) offsite() offsite.Host {
	return offsite.Host{Out: c.out, App: &c.app, Start: func(ctx context.Context) (*ipc.Client, error) { return c.launcher().ConnectOrStart(ctx) }, Target: c.target, Checkpoint: c.checkpoint, Complete: c.completeCheckpoints,
		Args: countArgs, Group: group, Lasting: c.lasting}
}

// target returns a client and the app that a command is about: the one of --app,
// or the app whose workspace holds the current folder.
func (c *cli) target(ctx context.Context) (*ipc.Client, string, error) {
	client := c.client()
	if c.app != "" {
		return client, c.app, nil
	}
	dir, err := place.Here()
	if err != nil {
		return nil, "", &errs.Error{Kind: errs.Failed, Op: "find the app", Hint: "name it with --app", Err: err}
	}
	app, err := client.AppAt(ctx, dir)
	return client, string(app.ID), err
}

const rootLong = `mulligan takes an app back to a state that it was in before: its files, its VM's
disk and its databases together. And forward again.

It talks to a daemon, mulligand, over a unix socket: the one named by --socket,
else by MULLIGAN_SOCKET, else the user's own, else the host's. A user's own daemon that
does not run, as after a reboot, is started. Inside an app's workspace --app may be left
out.

CP names a checkpoint: its id, the beginning of its id, N for the N-th newest (1 is
the newest), a time for the newest made until then: '@{2 hours ago}', @14:30,
@yesterday; or words of its turn's title or of its notes: 'login page'. The safety
checkpoint of a rollback that was called off does not count: the app is what it holds.

On a terminal, lists are tables. In a pipe they are lines of fields, separated
by tabs, without a header; "-" stands for nothing; times are RFC 3339, sizes are
bytes; control characters and backslashes in names are written as in Go strings.
Each command's help names its fields. --json prints the API's JSON.

Exit codes: 0 done, 1 failed, 2 usage, 3 not found, 4 refused for its state
(pinned, busy, conflict, expired), 5 not allowed, 6 a rollback failed and the app
is back where it was, 7 no daemon, 130 interrupted.`

func newRoot(c *cli, args []string) *cobra.Command {
	root := &cobra.Command{
		Use:     "mulligan",
		Short:   "Take a whole app back to a state that ran, and forward again",
		Long:    rootLong,
		Example: "  mulligan init\n  mulligan create --notes 'before the upgrade'\n  mulligan rollback 1",
		// run prints errors, and --help prints the usage.
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.PersistentFlags().StringVar(&c.app, "app", "", "the app's `SLUG|ID` (default: the one that the current folder belongs to)")
	root.PersistentFlags().StringVar(&c.color, "color", "auto", "colours: `auto|always|never`; auto is on a terminal, unless NO_COLOR is set")
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error {
		if err := c.setColour(cmd); err != nil || slices.Contains(sleepers, cmd.Name()) {
			return err
		}
		_, c.asleep = c.launcher().Wake(cmd.Context())
		return nil
	}
	root.PersistentFlags().StringVar(&c.socket, "socket", "", "the daemon's socket `PATH`")
	root.PersistentFlags().BoolVar(&c.out.JSON, "json", false, "print the API's JSON")
	if err := root.RegisterFlagCompletionFunc("app", c.completeApps); err != nil {
		panic(err) // the flag is defined above
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		if cmd == root && len(args) > 0 && !strings.HasPrefix(args[0], "-") {
			return unknownCommand(root, args[0])
		}
		message, hint := guide.Flag(cmd, err)
		return errs.New(errs.Invalid, opName(cmd), "%s", message).WithHint("%s", cmp.Or(hint, seeHelp(cmd)))
	})
	help := newHelp(root)
	guide.Add(root,
		guide.Group{Title: "Every day", Commands: []*cobra.Command{c.lasting(newInit(c)), c.lasting(newCreate(c)), newList(c), newUndo(c), newRedo(c), c.offsite().WithFetch(newRollback(c)), newRewind(c)}},
		guide.Group{Title: "Look", Commands: []*cobra.Command{c.lasting(newDiff(c)), newShow(c), newTurns(c), newLog(c), c.lasting(c.offsite().WithRemote(newVerify(c))), newStatus(c), newUI(c)}},
		guide.Group{Title: "Forks", Commands: []*cobra.Command{c.lasting(newFork(c)), newForks(c), newExec(c), c.lasting(newCompare(c)), c.lasting(newBisect(c)), c.lasting(newKeep(c)), c.lasting(newDrop(c))}},
		guide.Group{Title: "Other hosts", Commands: []*cobra.Command{offsite.NewRemote(c.offsite()), offsite.NewPush(c.offsite()), offsite.NewFetch(c.offsite()), offsite.NewClone(c.offsite())}},
		guide.Group{Title: "Apps and their checkpoints", Commands: []*cobra.Command{newApp(c), newPin(c), newUnpin(c), c.lasting(newDelete(c)), c.lasting(newPrune(c)), c.lasting(newRevert(c))}},
		guide.Group{Title: "Agents", Commands: []*cobra.Command{newInstall(c), newUninstall(c), newMCP(c), newHook(c)}},
		guide.Group{Title: "This host", Commands: []*cobra.Command{newDoctor(c), newToken(c), newCompletion(c), newVersion(c), help}},
	)
	root.CompletionOptions.DisableDefaultCmd = true // newCompletion is mulligan's own
	root.SetHelpCommand(help)
	group(root)
	print := root.HelpFunc()
	root.SetHelpFunc(func(cmd *cobra.Command, args []string) {
		var text strings.Builder
		cmd.SetOut(&text)
		print(cmd, args)
		cmd.SetOut(nil) // the root's
		c.out.Print(c.out.Wrapped(text.String()))
	})
	// Not Command.Version with a template of its own: templates call methods by name, so the linker would keep every method of every
	// type, two megabytes of them.
	version := root.Flags().BoolP("version", "v", false, "print this program's version")
	root.RunE = func(cmd *cobra.Command, _ []string) error {
		if *version {
			return (&versionCmd{c}).run()
		}
		return c.home(cmd)
	}
	return root
}

// group makes cmd a command that only holds subcommands. Without one it prints its help.
func group(cmd *cobra.Command) *cobra.Command {
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			return unknownCommand(cmd, args[0])
		}
		return nil
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	return cmd
}

func newHelp(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND]",
		Short: "Print the help of a command",
		RunE: func(_ *cobra.Command, args []string) error {
			cmd, rest, err := root.Find(args)
			if err != nil || len(rest) > 0 {
				return unknownCommand(root, strings.Join(args, " "))
			}
			return cmd.Help()
		},
	}
}

// usage returns an error for a wrong call of cmd, with a hint at its help.
func usage(cmd *cobra.Command, format string, args ...any) error {
	return errs.New(errs.Invalid, opName(cmd), format, args...).WithHint("%s", seeHelp(cmd))
}

func seeHelp(cmd *cobra.Command) string { return fmt.Sprintf("see `%s --help`", cmd.CommandPath()) }

// opName returns the name of cmd for errors: its path without "mulligan".
func opName(cmd *cobra.Command) string {
	_, name, _ := strings.Cut(cmd.CommandPath(), " ")
	return name
}

func unknownCommand(cmd *cobra.Command, name string) error {
	e := errs.New(errs.Invalid, opName(cmd), "there is no command %q", name)
	if near := guide.Command(cmd, name); near != "" {
		return e.WithHint("did you mean `%s`?", near)
	}
	return e.WithHint("%s", seeHelp(cmd))
}

// noArgs returns an error if there are arguments.
func noArgs(cmd *cobra.Command, args []string) error { return countArgs(cmd, args, 0, 0) }

// oneArg returns an error unless there is exactly one argument.
func oneArg(cmd *cobra.Command, args []string) error { return countArgs(cmd, args, 1, 1) }

// countArgs returns an error unless there are from least to most arguments.
func countArgs(cmd *cobra.Command, args []string, least, most int) error {
	switch {
	case len(args) < least:
		return usage(cmd, "an argument is missing: %s", cmd.UseLine())
	case len(args) > most:
		return usage(cmd, "%q is one argument too many", args[most])
	}
	return nil
}
