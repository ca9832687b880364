package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"mulligan/agents"
	"mulligan/cmd/mulligan/output"
	"mulligan/errs"
	"mulligan/ipc"
)

const hookLong = `Serve as a hook of a coding agent: read what the agent says on standard input, tell the
daemon of the turns and tool calls in it, and print what the agent expects.

It is for agents to run (mulligan install AGENT sets it up), at every event of theirs. It
never stands in an agent's way: it exits with 0 whatever happens, within three
seconds, and soon if the daemon was that slow a moment ago. What went wrong is in hook.log in the user's state folder
($XDG_STATE_HOME/mulligan, else ~/.local/state/mulligan).

EVENT is the event's name, for agents whose input does not have it.`

const (
	// hookTime bounds a hook as a whole; hookShort does in the minute after one
	// that found the daemon that slow.
	hookTime, hookShort, hookSulk = 3 * time.Second, 500 * time.Millisecond, time.Minute
	// maxHookInput bounds the input, in bytes: results of tools are in it.
	maxHookInput = 64 << 20
	// maxHookLog bounds the log, in bytes; an older one of that size is kept.
	maxHookLog = 512 << 10
)

type hookCmd struct{ *cli }

func newHook(c *cli) *cobra.Command {
	f := &hookCmd{cli: c}
	return &cobra.Command{
		Use:     "hook AGENT [EVENT]",
		Short:   "Serve as a hook of a coding agent",
		Long:    hookLong,
		Example: "  mulligan hook claude-code <event.json",
		Args:    func(cmd *cobra.Command, args []string) error { return countArgs(cmd, args, 1, 2) },
		RunE: func(cmd *cobra.Command, args []string) error {
			f.run(cmd.Context(), args)
			return nil
		},
	}
}

// isHook tells whether args are a hook's as agents run it. It is then run before
// the tree of commands is built: an agent waits for it.
func isHook(args []string) bool {
	return len(args) >= 2 && len(args) <= 3 && args[0] == "hook" &&
		!slices.ContainsFunc(args, func(a string) bool { return strings.HasPrefix(a, "-") })
}

// run hears, tells and answers. Nothing that goes wrong is the agent's concern.
func (f *hookCmd) run(ctx context.Context, args []string) {
	limit := patience()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	heard, told := make(chan string, 1), make(chan error, 1)
	var event string
	if len(args) > 1 {
		event = args[1]
	}
	agent, err := agents.ByName(args[0])
	if err != nil {
		f.note(args[0], event, err)
		return
	}
	go func() { told <- f.tell(ctx, agent, event, heard) }()
	select {
	case err = <-told:
	case <-ctx.Done(): // as when the input has no end
	}
	late := errors.Is(ctx.Err(), context.DeadlineExceeded)
	if late {
		err = errs.New(errs.Unavailable, "hook", "given up after %s", limit)
	}
	select {
	case event = <-heard:
		if late {
			losePatience()
		}
	default:
	}
	f.out.Print(agent.Reply(event))
	if err != nil {
		f.note(agent.Name, event, err)
	}
}

// patience is how long a hook may take.
func patience() time.Duration {
	dir, err := stateDir()
	if err != nil {
		return hookTime
	}
	fi, err := os.Lstat(filepath.Join(dir, slowMark))
	if err == nil && time.Since(fi.ModTime()).Abs() < hookSulk {
		return hookShort
	}
	return hookTime
}

// slowMark is the file whose time says when a hook last ran out of time.
const slowMark = "hook.slow"

// losePatience has the next hooks wait less. That may fail: they wait longer then.
func losePatience() {
	if dir, err := stateDir(); err == nil && os.MkdirAll(dir, 0o700) == nil {
		mark := filepath.Join(dir, slowMark)
		_ = os.Remove(mark)
		_ = os.WriteFile(mark, nil, 0o600)
	}
}

// tell reads the event, says its name on heard, and tells the daemon of it.
func (f *hookCmd) tell(ctx context.Context, agent *agents.Agent, name string, heard chan<- string) (err error) {
	defer func() {
		if r := recover(); r != nil { // junk must not reach the agent as a stack trace
			err = errs.New(errs.Internal, "hook", "%v", r)
		}
	}()
	payload, err := io.ReadAll(io.LimitReader(f.in, maxHookInput))
	if err != nil {
		return errs.Wrap(errs.Failed, "read the hook's input", err)
	}
	ev, err := agent.Read(name, payload)
	if err != nil {
		return err
	}
	heard <- ev.Name
	if dir, err := os.Getwd(); err == nil {
		ev.Dirs = append(ev.Dirs, dir)
	}
	if ev.Kind == agents.Other {
		return nil
	}
	dir, err := stateDir()
	if err != nil {
		return errs.Wrap(errs.Failed, "hook", err)
	}
	reporter := agents.Reporter{
		Agent:    agent,
		Daemon:   ipc.NewClient(ipc.FindSocket(f.socket)),
		Sessions: agents.Sessions{Dir: filepath.Join(dir, "hooks")},
	}
	return reporter.Report(ctx, ev)
}

// note writes a line to the log. There is nobody to tell if that fails.
func (f *hookCmd) note(agent, event string, err error) {
	dir, failed := stateDir()
	if failed != nil || os.MkdirAll(dir, 0o700) != nil {
		return
	}
	path := filepath.Join(dir, "hook.log")
	if fi, err := os.Lstat(path); err == nil && fi.Size() > maxHookLog {
		_ = os.Rename(path, path+".1")
	}
	log, failed := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0o600)
	if failed != nil {
		return
	}
	defer log.Close()
	body := ipc.Body(err)
	line := fmt.Sprintf("%s %s %s: %s: %s", time.Now().UTC().Format(time.RFC3339), agent, event, body.Op, body.Message)
	if len(line) > 2000 {
		line = line[:2000]
	}
	fmt.Fprintln(log, output.Escape(line))
}
