package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// stage is what the story is played on: a temporary folder, a daemon of our
// own, and an app in a workspace.
type stage struct {
	bin       string // the built programs
	dir       string // everything that the demo writes is in here
	workspace string
	socket    string
	port      int
	daemon    *exec.Cmd
	ended     chan struct{} // closed when the daemon has
}

func newStage(bin string) (*stage, error) {
	for _, p := range []string{"mulligan", "mulligand", "demo/guestbook"} {
		if _, err := os.Stat(filepath.Join(bin, p)); err != nil {
			return nil, fmt.Errorf("%w; run: make demo", err)
		}
	}
	// Whatever our programs leave running becomes our child, so that we can end it.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, err
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("/var/tmp", "mulligan-demo-") // each fork has a /tmp of its own
	if err != nil {
		return nil, err
	}
	if dir, err = filepath.EvalSymlinks(dir); err != nil { // workspaces are named without links
		return nil, err
	}
	return &stage{
		bin: bin, dir: dir, port: port,
		workspace: filepath.Join(dir, "guestbook"), socket: filepath.Join(dir, "run", "mulligan.sock"),
	}, nil
}

// freePort is a port that nobody listened on a moment ago.
func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	return l.Addr().(*net.TCPAddr).Port, l.Close()
}

func (s *stage) url(path string) string { return fmt.Sprintf("http://127.0.0.1:%d%s", s.port, path) }

// guestbook is the app's program. It lies where forks see it too.
func (s *stage) guestbook() string { return filepath.Join(s.dir, "bin", "guestbook") }

func (s *stage) logFile() string { return filepath.Join(s.dir, "mulligand.log") }

// environ keeps our programs away from the configuration of whoever runs the demo.
func (s *stage) environ() []string {
	return append(os.Environ(), "MULLIGAN_SOCKET="+s.socket, "MULLIGAN_STATE_DIR=",
		"XDG_CONFIG_HOME="+filepath.Join(s.dir, "config"), "XDG_RUNTIME_DIR="+filepath.Join(s.dir, "run"),
		"GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1")
}

// startDaemon starts a user's mulligand and waits until it answers.
func (s *stage) startDaemon(ctx context.Context) error {
	log, err := os.Create(s.logFile())
	if err != nil {
		return err
	}
	defer log.Close() // the daemon has its own descriptor
	args := []string{"--user", "--state-dir", filepath.Join(s.dir, "state"), "--socket", s.socket}
	s.daemon = exec.Command(filepath.Join(s.bin, "mulligand"), args...)
	s.daemon.Env, s.daemon.Stdout, s.daemon.Stderr = s.environ(), log, log
	s.daemon.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is for the demo: it ends the daemon in good order
	if err := s.daemon.Start(); err != nil {
		return err
	}
	s.ended = make(chan struct{})
	go func() {
		_ = s.daemon.Wait() // how it ended is in its log
		close(s.ended)
	}()
	fmt.Println("   $ mulligand", strings.Join(args, " "))
	return s.waitFor(ctx, "mulligand to answer", func() error {
		_, err := s.mulligan(ctx, "status", "--json")
		return err
	})
}

// waitFor tries until it works, for ten seconds, or until the daemon is gone.
func (s *stage) waitFor(ctx context.Context, what string, try func() error) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for {
		err := try()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waited for %s: %w", what, err)
		case <-s.ended:
			return errors.New("mulligand ended")
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// mulligan runs the client and gives what it printed.
func (s *stage) mulligan(ctx context.Context, args ...string) (string, error) {
	return s.run(ctx, filepath.Join(s.bin, "mulligan"), args...)
}

// git runs git in the workspace.
func (s *stage) git(ctx context.Context, args ...string) (string, error) {
	return s.run(ctx, "git", append([]string{"-c", "user.name=Ada", "-c", "user.email=ada@example.org"}, args...)...)
}

func (s *stage) run(ctx context.Context, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	var out, complaint bytes.Buffer
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = s.workspace, s.environ(), &out, &complaint
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", filepath.Base(program), strings.Join(args, " "), err, strings.TrimSpace(complaint.String()))
	}
	return strings.TrimSpace(out.String()), nil
}

// showLog prints the end of the daemon's log.
func (s *stage) showLog() {
	log, err := os.ReadFile(s.logFile())
	if err != nil {
		return // there is none yet
	}
	lines := strings.Split(strings.TrimSpace(string(log)), "\n")
	fmt.Fprintln(os.Stderr, "\nthe daemon's last words:")
	for _, l := range lines[max(0, len(lines)-20):] {
		fmt.Fprintln(os.Stderr, "  ", l)
	}
}

// clear takes the app away, ends the daemon and whatever they left running, and
// removes the folder.
func (s *stage) clear() error {
	if s.daemon != nil {
		// Its own time: the demo's may be over. A daemon that is gone has nothing to remove.
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		_, _ = s.mulligan(ctx, "app", "remove", appSlug, "--purge")
		cancel()
		s.end(s.daemon.Process)
	}
	err := reap()
	return errors.Join(err, os.RemoveAll(s.dir))
}

// end ends the daemon, first kindly.
func (s *stage) end(p *os.Process) {
	_ = p.Signal(syscall.SIGTERM) // it may be gone already
	select {
	case <-s.ended:
	case <-time.After(10 * time.Second):
		_ = p.Kill()
		<-s.ended
	}
}

// reap kills what has become our child, until there is none.
func reap() error {
	for {
		lists, err := filepath.Glob("/proc/self/task/*/children") // each thread has its own
		if err != nil {
			return err
		}
		for _, list := range lists {
			killAll(list)
		}
		switch _, err := unix.Wait4(-1, nil, 0, nil); {
		case errors.Is(err, unix.ECHILD):
			return nil
		case err != nil && !errors.Is(err, unix.EINTR):
			return err
		}
	}
}

// killAll kills the processes that a file of /proc lists.
func killAll(list string) {
	children, err := os.ReadFile(list)
	if err != nil {
		return // the thread is gone, and its children are another's
	}
	for _, field := range strings.Fields(string(children)) {
		if pid, err := strconv.Atoi(field); err == nil {
			_ = unix.Kill(pid, unix.SIGKILL) // a zombie doesn't mind
		}
	}
}
