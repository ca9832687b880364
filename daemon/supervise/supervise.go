// Package supervise runs a command as a service on hosts without systemd. It has the same interface as a unit.
//
// The command outlives a daemon that dies: it runs in a session of its own and writes to a named pipe, and a later daemon
// adopts the command and reads on. The daemon records the steps of a start in StateDir, durably and in this order:
//
//	intent (a fresh run id)  →  fork, with MULLIGAN_RUN=id in its environment  →  pid and start time
//
// So the next daemon finds the command whenever a daemon is killed. A lock on the folder covers the moment between fork and
// exec: the child holds it until then.
//
// A process belongs to the run if it is in the command's session, has the run's id in its environment, or has a parent that
// belongs to the run. A process with a new session and another environment, whose parent has ended, escapes supervision.
package supervise

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"mulligan/errs"
	"mulligan/privsep"
	"mulligan/systemd"
)

// Config describes the command and how it is run.
type Config struct {
	Name    string   // of the command, for messages
	Command []string // the program, which is looked up in Env's PATH or below Dir, and its arguments
	Dir     string   // the working directory
	Env     []string // "NAME=value"; the command gets nothing else of the daemon's environment
	Owner   privsep.User
	// StateDir is the folder of the record, the lock, the pipe and run.log, for this command alone. It is made if it is missing.
	StateDir string
	// Launch starts the command; nil: Owner does. The variables in visible must be in the environment of the process that it
	// starts from its first instant.
	Launch func(cmd *exec.Cmd, visible []string) error
	// StopTimeout is the time between SIGTERM and SIGKILL of a stop; default 10 s.
	StopTimeout time.Duration
}

// timings are fields, and not constants, so that tests can use shorter ones.
type timings struct {
	startup  time.Duration // a command that ends within this time did not start
	backoff  time.Duration // before the first restart; doubles with each restart
	burst    int           // restarts that are allowed within window
	window   time.Duration
	killWait time.Duration // KillWait
	logLimit int64         // size in bytes at which run.log is rotated
	logRate  int           // bytes of output that are read per second
}

// KillWait is how long processes may take to end after SIGKILL.
const KillWait = 10 * time.Second

var defaults = timings{
	startup: 100 * time.Millisecond, backoff: 200 * time.Millisecond, burst: 5, window: 30 * time.Second,
	killWait: KillWait, logLimit: 8 << 20, logRate: 32 << 20,
}

// Process is a supervised command. It implements systemd.Unit. One goroutine does all the work; the methods send it requests
// and wait.
type Process struct {
	cfg  Config
	time timings
	lock *os.File

	requests chan request
	quit     chan struct{} // closed by Close
	ended    chan struct{} // closed when the goroutine is gone
	closing  sync.Once

	mu     sync.Mutex
	status systemd.Status
	rec    record // written only by the goroutine
	unsure bool   // the file of the record may say something else: writing it failed

	// The fields below are used only by the goroutine.
	child    *child           // the running command, or nil
	out      *output          // the goroutine that logs the output, or nil
	again    <-chan time.Time // fires when the command is to be restarted; nil if it is not
	restarts []time.Time      // of recent automatic restarts
}

var _ systemd.Unit = (*Process)(nil)

type request struct {
	do    func() error
	reply chan error // has room for one
}

// New starts to supervise a command. If an earlier daemon left the command running, New adopts it.
// If the command ended meanwhile, New restarts it as if it had ended now, except after a reboot.
// If another daemon supervises it, the error is errs.Busy. New closes a Process that this daemon
// already has for the same StateDir, because the configuration may have changed.
func New(cfg Config) (*Process, error) { return open(cfg, defaults) }

func open(cfg Config, t timings) (*Process, error) {
	cfg.StateDir = filepath.Clean(cfg.StateDir)
	if len(cfg.Command) == 0 || cfg.Command[0] == "" || cfg.Name == "" || !filepath.IsAbs(cfg.StateDir) {
		return nil, errs.New(errs.Invalid, "supervise", "a command, a name and an absolute state folder are needed")
	}
	for _, s := range append(append([]string{cfg.Dir}, cfg.Command...), cfg.Env...) {
		if strings.ContainsRune(s, 0) {
			return nil, errs.New(errs.Invalid, "supervise "+cfg.Name, "%q has a NUL byte", s)
		}
	}
	if cfg.StopTimeout <= 0 {
		cfg.StopTimeout = 10 * time.Second
	}
	if err := os.MkdirAll(cfg.StateDir, 0o700); err != nil {
		return nil, errs.Wrap(errs.Failed, "supervise "+cfg.Name, err)
	}
	charge.Lock()
	defer charge.Unlock()
	before := charge.of[cfg.StateDir]
	if before != nil {
		if err := before.close(); err != nil {
			return nil, errs.Wrap(errs.Failed, "supervise "+cfg.Name, err)
		}
	}
	lock, err := takeLock(filepath.Join(cfg.StateDir, "run.lock"))
	if err != nil {
		return nil, errs.Wrap(errs.Failed, "supervise "+cfg.Name, err)
	}
	p := &Process{
		cfg: cfg, time: t, lock: lock,
		requests: make(chan request), quit: make(chan struct{}), ended: make(chan struct{}),
	}
	first, err := p.resume(before)
	if err != nil {
		p.out.close()
		return nil, errors.Join(errs.Wrap(errs.Failed, "supervise "+cfg.Name, err), lock.Close())
	}
	charge.of[cfg.StateDir] = p
	go p.loop(first)
	return p, nil
}

// charge maps each StateDir to the Process of this daemon that supervises its command.
var charge = struct {
	sync.Mutex
	of map[string]*Process
}{of: map[string]*Process{}}

// Name returns the configured name.
func (p *Process) Name() string { return p.cfg.Name }

// LogPath returns the path of the command's log. The rotated log is beside it, with the suffix ".1".
func (p *Process) LogPath() string { return filepath.Join(p.cfg.StateDir, "run.log") }

// State returns the command's state. Its Result is "success", or how the command ended: "exit status 3", "signal 9 (killed)",
// or "unknown" for an adopted command.
func (p *Process) State(context.Context) (systemd.Status, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.status, nil
}

// Start starts the command and returns when it runs. There is no readiness protocol: a command that ends at once did not start,
// and only a health check can tell more.
func (p *Process) Start(ctx context.Context) error {
	return p.ask(ctx, "start", p.start)
}

// Stop ends the command and every process of its run: with SIGTERM, and with SIGKILL after StopTimeout, which may take KillWait.
// If ctx ends earlier, the stop continues.
func (p *Process) Stop(ctx context.Context) error {
	return p.ask(ctx, "stop", p.stop)
}

// Close ends the supervision. The command continues to run. The next Process for the same StateDir finishes a stop that is
// under way. Close may be called again.
func (p *Process) Close() error {
	charge.Lock()
	defer charge.Unlock()
	return p.close()
}

func (p *Process) close() error {
	var err error
	p.closing.Do(func() {
		delete(charge.of, p.cfg.StateDir)
		close(p.quit)
		<-p.ended
		p.out.close()
		if p.unsure { // else a later daemon could take what runs for what is to be stopped
			_ = p.save(p.rec) // on a full disk the file is often right; the next Process of this daemon takes p.rec
		}
		err = p.lock.Close()
	})
	return err
}

// errClosed is the error of a request after Close.
var errClosed = errs.New(errs.Unavailable, "", "the app's supervision has ended")

// ask sends a request to the goroutine and waits for the reply.
func (p *Process) ask(ctx context.Context, op string, do func() error) error {
	op += " " + p.cfg.Name
	r := request{do: do, reply: make(chan error, 1)}
	select {
	case p.requests <- r:
	case <-p.ended:
		return errs.Wrap(errs.Unavailable, op, errClosed)
	case <-ctx.Done():
		return p.outOfTime(ctx, op)
	}
	select {
	case err := <-r.reply:
		return errs.Wrap(errs.Failed, op, err)
	case <-ctx.Done():
		return p.outOfTime(ctx, op)
	}
}

// outOfTime returns the error for a request that was not complete when ctx ended.
func (p *Process) outOfTime(ctx context.Context, op string) error {
	if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return &errs.Error{Kind: errs.Unavailable, Op: op, Message: "the wait was cancelled; the operation goes on", Err: ctx.Err()}
	}
	p.mu.Lock()
	st, rec := p.status, p.rec
	p.mu.Unlock()
	e := errs.New(errs.Failed, op, "the app is still %s at the timeout", st.Active)
	if list, err := members(rec); err == nil && len(list) > 0 {
		e.Message += "; left: " + describe(list)
	}
	return e.WithHint("its output is in %s", p.LogPath())
}

// set changes the state that State returns.
func (p *Process) set(active, sub, result string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.status.Active != active {
		p.status.Since = time.Now()
	}
	p.status.Active, p.status.Sub, p.status.Result = active, sub, result
	p.status.MainPID, p.status.Restarts = 0, p.rec.Restarts
	going := active == "inactive" || active == "deactivating"
	p.status.Asked = going && p.rec.Run != "" && !p.rec.Up && !p.rec.Failed
	if p.child != nil {
		p.status.MainPID = p.child.PID
	}
}

// describe names processes, at most five of them.
func describe(list []proc) string {
	var parts []string
	for i, q := range list {
		if i == 5 {
			parts = append(parts, fmt.Sprintf("and %d more", len(list)-i))
			break
		}
		parts = append(parts, fmt.Sprintf("pid %d (%s)", q.PID, q.name))
	}
	return strings.Join(parts, ", ")
}
