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
	"mulligan/cmd/mulligan/launch"
	"mulligan/cmd/mulligan/output"
	"mulligan/cmd/mulligan/place"
	"mulligan/errs"
	"mulligan/ipc"
)

const hookLong = `Serve as a hook of a coding agent: read what the agent says on standard input, tell the
daemon of the turns and tool calls in it, and print what the agent expects.

It is for agents to run (mulligan install AGENT sets it up), at every event of theirs. If a
turn has no checkpoint, because no daemon answers or the folder is in no app, it lets the agent show a
line that says so, once per conversation, where the agent has a means for that. It
never stands in an agent's way: it exits with 0 whatever happens, within three
seconds, and soon if the daemon was that slow a moment ago. What went wrong is in hook.log in the user's state folder
($XDG_STATE_HOME/mulligan, else ~/.local/state/mulligan).

EVENT is the event's name, for agents whose input does not have it.`

const (
	// hookTimeout bounds the run of a hook. For slowPeriod after a hook that ran
	// into it, shortHookTimeout applies instead.
	hookTimeout, shortHookTimeout, slowPeriod = 3 * time.Second, 500 * time.Millisecond, time.Minute
	// noticeTimeout bounds what remembering takes that the person was told of a turn without a checkpoint.
	noticeTimeout = 300 * time.Millisecond
	// maxHookInput bounds the input, in bytes. The input includes the results of tools.
	maxHookInput = 64 << 20
	// maxHookLog is the size of the log, in bytes, at which it is renamed to hook.log.1.
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

// isHook reports whether args call a hook as agents do. Such a call runs without
// the tree of commands, because building that takes time and the agent waits.
func isHook(args []string) bool {
	return len(args) >= 2 && len(args) <= 3 && args[0] == "hook" &&
		!slices.ContainsFunc(args, func(a string) bool { return strings.HasPrefix(a, "-") })
}

// run reads the event, reports it to the daemon and prints the agent's reply. It
// writes errors to the hook log, never to the agent.
func (f *hookCmd) run(ctx context.Context, args []string) {
	limit := currentTimeout()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	events, reported := make(chan agents.Event, 1), make(chan error, 1)
	var event string
	if len(args) > 1 {
		event = args[1]
	}
	agent, err := agents.ByName(args[0])
	if err != nil {
		f.note(args[0], event, err)
		return
	}
	reporter := &agents.Reporter{Agent: agent}
	go func() { reported <- f.reportEvent(ctx, reporter, event, events) }()
	select {
	case err = <-reported:
	case <-ctx.Done(): // the daemon is slow, or the input does not end
	}
	late := errors.Is(ctx.Err(), context.DeadlineExceeded)
	if late {
		err = errs.New(errs.Unavailable, "hook", "the daemon did not answer within %s", limit)
	}
	reply := agent.Reply(event)
	select {
	case ev := <-events:
		event, reply = ev.Name, agent.Reply(ev.Name)
		if late {
			markSlow()
			reporter = &agents.Reporter{Agent: agent, Sessions: reporter.Sessions} // the other one is still at work
		}
		if line := lacks(reporter, ev, err); line != "" {
			reply = agent.Notice(event, output.Escape(line))
		}
	default:
	}
	f.out.Print(reply)
	if err != nil {
		f.note(agent.Name, event, err)
	}
}

// lacks returns what the person should know of a turn that has no checkpoint, or "".
func lacks(r *agents.Reporter, ev agents.Event, err error) string {
	ctx, cancel := context.WithTimeout(context.Background(), noticeTimeout)
	defer cancel()
	return r.Lacks(ctx, ev, err)
}

// currentTimeout returns how long this hook may take.
func currentTimeout() time.Duration {
	dir, err := launch.StateDir()
	if err != nil {
		return hookTimeout
	}
	fi, err := os.Lstat(filepath.Join(dir, slowMark))
	if err == nil && time.Since(fi.ModTime()).Abs() < slowPeriod {
		return shortHookTimeout
	}
	return hookTimeout
}

// slowMark is the name of the file whose modification time is when a hook last ran into its timeout.
const slowMark = "hook.slow"

// markSlow shortens the timeout of the next hooks. If it fails, they keep the long timeout.
func markSlow() {
	if dir, err := launch.StateDir(); err == nil && os.MkdirAll(dir, 0o700) == nil {
		mark := filepath.Join(dir, slowMark)
		_ = os.Remove(mark)
		_ = os.WriteFile(mark, nil, 0o600)
	}
}

// reportEvent reads the event, sends it to events and reports it to the daemon. Before it sends the event, it completes the reporter.
func (f *hookCmd) reportEvent(ctx context.Context, reporter *agents.Reporter, name string, events chan<- agents.Event) (err error) {
	defer func() {
		if r := recover(); r != nil { // a panic would print a stack trace to the agent
			err = errs.New(errs.Internal, "hook", "%v", r)
		}
	}()
	payload, err := io.ReadAll(io.LimitReader(f.in, maxHookInput))
	if err != nil {
		return errs.Wrap(errs.Failed, "read the hook's input", err)
	}
	ev, err := reporter.Agent.Read(name, payload)
	if err != nil {
		return err
	}
	if dir, err := place.Here(); err == nil {
		ev.Dirs = append(ev.Dirs, dir)
	}
	dir, err := launch.StateDir()
	reporter.Daemon = ipc.NewClient(ipc.FindSocket(f.socket))
	if err == nil {
		reporter.Sessions = agents.Sessions{Dir: filepath.Join(dir, "hooks")}
	}
	events <- ev
	if err != nil {
		return errs.Wrap(errs.Failed, "hook", err)
	}
	if ev.Kind == agents.Other {
		return nil
	}
	err = reporter.Report(ctx, ev)
	if ev.Kind == agents.TurnBegins && errors.Is(err, ipc.ErrNoDaemon) {
		started, failed := f.launcher().Wake(ctx)
		switch {
		case started:
			reporter.Daemon = ipc.NewClient(ipc.FindSocket(f.socket))
			err = reporter.Report(ctx, ev)
		case failed != nil:
			err = failed
		}
	}
	return err
}

// note writes err to the hook log. If that fails, there is nowhere to report it.
func (f *hookCmd) note(agent, event string, err error) {
	dir, failed := launch.StateDir()
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
