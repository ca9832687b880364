// Command mulligand is mulligan's daemon: it owns the checkpoints of apps and
// does all the work. As root it serves a host; with --user, one user.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"

	"mulligan/daemon/config"
	"mulligan/daemon/isolate"
	"mulligan/daemon/records"
	"mulligan/errs"
	"mulligan/privsep"
	"mulligan/systemd"
)

// Set by the linker.
var version, commit = "dev", ""

// Exit codes, as of the client.
const (
	exitFailed = 1
	exitUsage  = 2
)

const usage = `mulligand: checkpoints and rollbacks of running apps

usage: mulligand [--user] [--config FILE] [--state-dir DIR] [--socket PATH]
                 [--http ADDR] [--log-level L] [--version]
       mulligand rebuild [--user] [--config FILE] [--state-dir DIR]

As root it serves this host; with --user it serves the projects of the user who
starts it, and needs no privilege. Flags win over MULLIGAN_STATE_DIR and
MULLIGAN_SOCKET, which win over the configuration file.

rebuild, with no daemon running, makes the records (mulligan.db) anew: from what can
be read of them, and from what the content stores say of apps and checkpoints. The
old file is kept beside the new one. A start on damaged records does the same.

`

func main() {
	privsep.Main()
	isolate.Main()
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

func run(args []string, stdout, stderr io.Writer) int {
	frugal()
	rebuild := len(args) > 0 && args[0] == "rebuild"
	if rebuild {
		args = args[1:]
	}
	user, flags, done, code := parse(args, stdout, stderr)
	if done {
		return code
	}
	cfg, err := config.Load(user, flags, os.Getenv)
	if err == nil && !user && os.Geteuid() != 0 {
		err = errs.New(errs.Denied, "start", "the host's daemon runs as root").WithHint("start your own with: `mulligand --user`")
	}
	if err != nil {
		complain(stderr, err)
		return exitUsage
	}
	if !user {
		// The modes that the code gives are those that files get, and the commands of users have the mask that services have,
		// however the daemon is started. What is the daemon's own is private by its mode.
		unix.Umask(0o022)
	}
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
	defer stop()
	var to slog.Handler = slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: cfg.LogLevel})
	if journal, ok := systemd.Journal(cfg.LogLevel); ok {
		to = journal
	}
	log := slog.New(to)
	slog.SetDefault(log)
	if rebuild {
		res, err := records.Rebuild(ctx, options(cfg, log))
		if err != nil {
			complain(stderr, err)
			return exitFailed
		}
		fmt.Fprint(stdout, res)
		return 0
	}
	if err := serve(ctx, cfg, log); err != nil {
		complain(stderr, err)
		return exitFailed
	}
	return 0
}

// parse reads the command line; done says that there is nothing more to do.
func parse(args []string, stdout, stderr io.Writer) (user bool, f config.Flags, done bool, code int) {
	set := flag.NewFlagSet("mulligand", flag.ContinueOnError)
	set.SetOutput(io.Discard)
	set.BoolVar(&user, "user", false, "serve the projects of the user who starts it")
	set.StringVar(&f.Config, "config", "", "the configuration `file`")
	set.StringVar(&f.StateDir, "state-dir", "", "the `folder` for all state")
	set.StringVar(&f.Socket, "socket", "", "the unix socket's `path`")
	set.StringVar(&f.HTTP, "http", "", "also serve on this TCP `address`")
	set.StringVar(&f.LogLevel, "log-level", "", "debug, info, warn or error")
	printVersion := set.Bool("version", false, "print the version and exit")
	err := set.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(stdout, usage)
		set.SetOutput(stdout)
		set.PrintDefaults()
		return user, f, true, 0
	case err != nil:
		complain(stderr, fmt.Errorf("%w; see mulligand --help", err))
		return user, f, true, exitUsage
	case set.NArg() > 0:
		complain(stderr, fmt.Errorf("unexpected argument %q; see mulligand --help", set.Arg(0)))
		return user, f, true, exitUsage
	case *printVersion:
		fmt.Fprintln(stdout, "mulligand", fullVersion())
		return user, f, true, 0
	}
	return user, f, false, 0
}

func fullVersion() string {
	if commit == "" {
		return version
	}
	return version + " (" + commit + ")"
}

func complain(w io.Writer, err error) {
	if hint := errs.HintOf(err); hint != "" {
		err = fmt.Errorf("%w; %s", err, hint)
	}
	fmt.Fprintln(w, "mulligand:", err)
}
