package health

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode"

	"mulligan/privsep"
)

const (
	maxOutput = 4 << 10 // bytes of a command's output that are kept
	maxShown  = 160     // characters of the output in an error
	// patience bounds the wait for processes that the command left behind and that keep its output open.
	patience = 100 * time.Millisecond
)

// path is the PATH of a health command, which does not get the daemon's environment.
const path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

type command struct {
	argv []string
	Options
}

func (c command) object() string { return strconv.Quote(c.argv[0]) }

func (c command) try(ctx context.Context) error {
	if c.Run != nil {
		return c.elsewhere(ctx)
	}
	program, err := lookPath(c.argv[0])
	if err != nil {
		return err
	}
	out := &head{max: maxOutput}
	cmd := exec.CommandContext(ctx, program, c.argv[1:]...)
	cmd.Args[0] = c.argv[0]
	cmd.Dir, cmd.Stdout, cmd.Stderr, cmd.WaitDelay = c.Dir, out, out, patience
	cmd.Env = []string{"PATH=" + path, "LANG=C.UTF-8", "PWD=" + c.Dir}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a process group of its own, so that all of its processes can be ended
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	err = c.Owner.Run(cmd, privsep.Options{})
	if cmd.Process != nil { // the processes that it left behind are ended too
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	}
	return c.outcome(ctx, err, out.line())
}

// elsewhere runs the command by Run.
func (c command) elsewhere(ctx context.Context) error {
	status, output, err := c.Run(ctx, c.argv)
	out := &head{max: maxOutput}
	_, _ = out.Write([]byte(output)) // it never fails
	if err == nil && status != 0 {
		err = fmt.Errorf("the command ended with exit status %d", status)
	}
	return c.outcome(ctx, err, out.line())
}

func (c command) outcome(ctx context.Context, err error, said string) error {
	var exit *exec.ExitError
	switch {
	case err == nil, errors.Is(err, exec.ErrWaitDelay):
		return nil // the command succeeded; a process that it left behind kept the output open
	case ctx.Err() != nil:
		return fmt.Errorf("the command did not end in time: %w", context.DeadlineExceeded)
	case errors.As(err, &exit) && exit.Exited():
		err = fmt.Errorf("the command ended with exit status %d", exit.ExitCode())
	}
	if said != "" {
		err = fmt.Errorf("%w, saying %q", err, said)
	}
	return err
}

// lookPath finds a program in path. A name with a slash is returned as it is.
func lookPath(name string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil // relative to the command's working directory
	}
	for _, dir := range strings.Split(path, ":") {
		file := dir + "/" + name
		if st, err := os.Stat(file); err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0 {
			return file, nil
		}
	}
	return "", fmt.Errorf("there is no program %q in %s", name, path)
}

// head is a writer that keeps the beginning of the output.
type head struct {
	kept bytes.Buffer
	max  int
}

// Write implements io.Writer and never fails.
func (h *head) Write(p []byte) (int, error) {
	h.kept.Write(p[:min(len(p), h.max-h.kept.Len())])
	return len(p), nil
}

// line returns the last line that is not empty, without control characters.
func (h *head) line() string {
	lines := strings.Split(strings.TrimSpace(h.kept.String()), "\n")
	clean := strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, lines[len(lines)-1])
	if runes := []rune(clean); len(runes) > maxShown {
		return string(runes[:maxShown]) + "…"
	}
	return clean
}
