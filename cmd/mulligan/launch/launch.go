// Package launch finds the user's own daemon, and starts it where it does not run.
package launch

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"mulligan/errs"
	"mulligan/ipc"
)

const (
	opStart      = "start the daemon"
	startTimeout = 20 * time.Second
	startPoll    = 50 * time.Millisecond
)

// Launcher finds and starts daemons.
type Launcher struct {
	Socket  string              // that a flag names, or ""
	Started func(socket string) // called after a start, unless nil
}

// Connect returns a client of the daemon that init registers with, and an error
// unless the daemon answers. It is the daemon that a flag or the environment
// names, or else the user's own. For root, the host's daemon counts as its own.
func (l Launcher) Connect(ctx context.Context) (*ipc.Client, error) {
	socket := ipc.FindSocket(l.Socket)
	named := l.Socket != "" || os.Getenv("MULLIGAN_SOCKET") != ""
	if !named && socket == ipc.HostSocket && os.Getuid() != 0 {
		return nil, ipc.ErrNoDaemon // only the host's daemon runs
	}
	client := ipc.NewClient(socket)
	if _, err := client.Status(ctx); err != nil {
		return nil, err
	}
	return client, nil
}

// ConnectOrStart is Connect, and starts the user's daemon if none listens.
func (l Launcher) ConnectOrStart(ctx context.Context) (*ipc.Client, error) {
	client, err := l.Connect(ctx)
	if errors.Is(err, ipc.ErrNoDaemon) {
		return l.Start(ctx)
	}
	return client, err
}

// Start starts the user's daemon, and waits until it answers: by the service manager if that starts it at every login, else
// as a process in a new session.
func (l Launcher) Start(ctx context.Context) (*ipc.Client, error) {
	client, err := l.start(ctx)
	if err == nil && l.Started != nil {
		l.Started(client.Socket())
	}
	return client, err
}

func (l Launcher) start(ctx context.Context) (*ipc.Client, error) {
	if l.Socket == "" && os.Getenv("MULLIGAN_SOCKET") == "" && l.startUnit(ctx) {
		return l.Connect(ctx)
	}
	program, err := findDaemon()
	if err != nil {
		return nil, err
	}
	log, err := openLog()
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(program, "--user")
	if l.Socket != "" {
		cmd.Args = append(cmd.Args, "--socket", l.Socket)
	}
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, errs.Wrap(errs.Failed, opStart, err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	return l.await(ctx, ended, log.Name())
}

// await polls until the daemon answers, ends, or startTimeout is over. log is the path of its log.
func (l Launcher) await(ctx context.Context, ended <-chan error, log string) (*ipc.Client, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	tick := time.NewTicker(startPoll)
	defer tick.Stop()
	for {
		select {
		case <-ended:
			// mulligand also ends if another init has started a daemon in the same moment.
			if client, err := l.Connect(ctx); err == nil {
				return client, nil
			}
			return nil, errs.New(errs.Failed, opStart, "mulligand ended at once: %s", lastLine(log)).WithHint("see %s", log)
		case <-ctx.Done():
			return nil, errs.New(errs.Unavailable, opStart, "mulligand does not answer after %s", startTimeout).WithHint("see %s", log)
		case <-tick.C:
			if client, err := l.Connect(ctx); err == nil {
				return client, nil
			}
		}
	}
}

// Wake starts the user's own daemon if the user has one and it does not run, as after a reboot, and reports whether it did. A daemon
// that a flag or the environment names is none of its business. Its error says why the user's daemon does not start; the host's
// may still do.
func (l Launcher) Wake(ctx context.Context) (started bool, err error) {
	if l.Socket != "" || os.Getenv("MULLIGAN_SOCKET") != "" {
		return false, nil
	}
	dir, err := StateDir()
	if err != nil {
		return false, nil
	}
	if _, err := os.Lstat(filepath.Join(dir, "mulligan.db")); err != nil {
		return false, nil // init never started one here
	}
	if _, err := l.Connect(ctx); !errors.Is(err, ipc.ErrNoDaemon) {
		return false, nil // it runs; or for root, the host's
	}
	if _, err := l.Start(ctx); err != nil {
		return false, err
	}
	return true, nil
}

// HostUnitState returns the state of mulligand.service as systemd names it (active, activating, failed …). It returns "" if systemd does not answer
// within managerTimeout, or has no such unit.
func HostUnitState(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, managerTimeout)
	defer cancel()
	out, err := exec.CommandContext(ctx, "systemctl", "show", "-p", "LoadState", "-p", "ActiveState", "--value", "mulligand.service").Output()
	words := strings.Fields(string(out))
	if err != nil || len(words) != 2 || words[0] != "loaded" {
		return ""
	}
	return words[1]
}

// findDaemon returns the path of mulligand, which is in the folder of this program or in PATH.
func findDaemon() (string, error) {
	if self, err := os.Executable(); err == nil {
		if real, err := filepath.EvalSymlinks(self); err == nil {
			self = real
		}
		beside := filepath.Join(filepath.Dir(self), "mulligand")
		if fi, err := os.Stat(beside); err == nil && fi.Mode().IsRegular() && fi.Mode()&0o111 != 0 {
			return beside, nil
		}
	}
	program, err := exec.LookPath("mulligand")
	if err != nil {
		return "", &errs.Error{
			Kind: errs.Unavailable, Op: opStart, Message: "there is no mulligand beside mulligan or in PATH",
			Hint: "put both programs into one folder", Err: ipc.ErrNoDaemon,
		}
	}
	return program, nil
}

// Lasting returns the path in PATH of the program name if it leads to the same file as path, and else path. The one in PATH stays valid after an
// update that puts the program into another folder.
func Lasting(name, path string) string {
	found, err := exec.LookPath(name)
	if err != nil || !filepath.IsAbs(found) {
		return path
	}
	a, errA := os.Stat(found)
	b, errB := os.Stat(path)
	if errA == nil && errB == nil && os.SameFile(a, b) {
		return found
	}
	return path
}

// openLog opens mulligand.log in the state folder, the log of a daemon that
// init starts.
func openLog() (*os.File, error) {
	dir, err := StateDir()
	if err == nil {
		err = os.MkdirAll(dir, 0o700)
	}
	if err != nil {
		return nil, errs.Wrap(errs.Failed, opStart, err)
	}
	log, err := os.OpenFile(filepath.Join(dir, "mulligand.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY|syscall.O_NOFOLLOW, 0o600)
	return log, errs.Wrap(errs.Failed, opStart, err)
}

// StateDir returns the state folder of the user's daemon.
func StateDir() (string, error) {
	if dir := os.Getenv("MULLIGAN_STATE_DIR"); dir != "" {
		return dir, nil
	}
	if dir := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "mulligan"), nil
	}
	home, err := os.UserHomeDir()
	return filepath.Join(home, ".local", "state", "mulligan"), err
}

// lastLine returns the last line of the log at path, for an error message.
func lastLine(path string) string {
	data, err := os.ReadFile(path)
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	if last := lines[len(lines)-1]; err == nil && last != "" {
		return last
	}
	return "it said nothing"
}
