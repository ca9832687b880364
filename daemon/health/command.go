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
	maxOutput = 4 << 10 // bytes kept of what a command says
	maxShown  = 160     // letters of them in an error
	// patience is how long the output stays open for what the command left behind.
	patience = 100 * time.Millisecond
)

// path is where a health command finds programs: the daemon's own environment
// is none of its business.
const path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

type command struct {
	argv []string
	Options
}

func (c command) object() string { return strconv.Quote(c.argv[0]) }

func (c command) try(ctx context.Context) error {
	program, err := lookPath(c.argv[0])
	if err != nil {
		return err
	}
	out := &head{max: maxOutput}
	cmd := exec.CommandContext(ctx, program, c.argv[1:]...)
	cmd.Args[0] = c.argv[0]
	cmd.Dir, cmd.Stdout, cmd.Stderr, cmd.WaitDelay = c.Dir, out, out, patience
	cmd.Env = []string{"PATH=" + path, "LANG=C.UTF-8", "PWD=" + c.Dir}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // so that all of it can be ended
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	err = c.Owner.Run(cmd, privsep.Options{})
	if cmd.Process != nil { // what it left running goes too
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	}
	return c.outcome(ctx, err, out.line())
}

func (c command) outcome(ctx context.Context, err error, said string) error {
	var exit *exec.ExitError
	switch {
	case err == nil, errors.Is(err, exec.ErrWaitDelay):
		return nil // it ended well; what it left behind held the output open
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

// lookPath finds a program in path, where its name has no slash in it.
func lookPath(name string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil // from the folder that it runs in
	}
	for _, dir := range strings.Split(path, ":") {
		file := dir + "/" + name
		if st, err := os.Stat(file); err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0 {
			return file, nil
		}
	}
	return "", fmt.Errorf("there is no program %q in %s", name, path)
}

// head keeps the beginning of what is written to it.
type head struct {
	kept bytes.Buffer
	max  int
}

// Write implements io.Writer and never fails.
func (h *head) Write(p []byte) (int, error) {
	h.kept.Write(p[:min(len(p), h.max-h.kept.Len())])
	return len(p), nil
}

// line is the last line that says something, made safe to show.
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
