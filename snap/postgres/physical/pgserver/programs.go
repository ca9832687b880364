package pgserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"mulligan/errs"
	"mulligan/privsep"
)

// Confined are the options with which the owner's programs run: they gain no privileges.
var Confined = privsep.Options{NoNewPrivs: true}

// Tools start the programs of a server's version, such as pg_controldata and postgres itself, as the cluster's owner: those of this host, or
// those in a container's image.
type Tools interface {
	// Start starts a program. It is ended at once if ctx ends, and also if this process does.
	Start(ctx context.Context, out, problem io.Writer, program string, args ...string) (Process, error)
	// Leave ends whatever programs have left running.
	Leave(ctx context.Context) error
	// Sweep does so for those that another process has started, which has died.
	Sweep(ctx context.Context) error
}

// Process is a program that was started.
type Process interface {
	// Wait waits for the end of the program, whose output has been written then. Of a program that fails, the error is a [Failed] one.
	Wait() error
	Signal(sig syscall.Signal) error // nil if the program has ended
}

// Status is the error of a program that ended with this status.
type Status int

func (s Status) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

// Failed reports whether err is the error of a program that ran and failed.
func Failed(err error) bool {
	return errors.As(err, new(Status)) || errors.As(err, new(*exec.ExitError))
}

// Installed are the programs in a folder of this host.
type Installed struct {
	Bin   string
	Owner privsep.User
}

// command returns the command for one of the server's programs. The caller runs it as the owner.
func (in Installed) command(ctx context.Context, program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(in.Bin, program), args...)
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=/usr/local/bin:/usr/bin:/bin", "LC_ALL=C"}
	cmd.WaitDelay = time.Second // another process may keep the output open
	return cmd
}

// installed is a program of this host that runs.
type installed struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
	err  error         // how it ended
}

// Start implements Tools. The kernel ends the program when the thread ends that started it, so the thread is kept.
func (in Installed) Start(ctx context.Context, out, problem io.Writer, program string, args ...string) (Process, error) {
	p := &installed{cmd: in.command(ctx, program, args...), done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = out, problem
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGQUIT}
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := in.Owner.Start(p.cmd, Confined)
		started <- err
		if err == nil {
			p.err = p.cmd.Wait()
		}
		close(p.done)
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

// Leave does nothing: programs of this host run with the rights of the cluster's owner, who may start others as well.
func (Installed) Leave(context.Context) error { return nil }

// Sweep does nothing: the programs have ended with the process that started them.
func (Installed) Sweep(context.Context) error { return nil }

func (p *installed) Wait() error {
	<-p.done
	return p.err
}

func (p *installed) Signal(sig syscall.Signal) error {
	if err := p.cmd.Process.Signal(sig); !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}

// Programs are a server's programs, and the cluster's owner.
type Programs struct {
	Tools
	Owner privsep.User
}

// Output runs a program to its end and returns its standard output. Output to standard error makes it return an error too.
func (p Programs) Output(ctx context.Context, program string, args ...string) (string, error) {
	var out, problem Printed
	run, err := p.Start(ctx, &out, &problem, program, args...)
	if err == nil {
		err = run.Wait()
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", program, err, problem.LastLine())
	}
	if problem.Buf.Len() > 0 {
		return out.Buf.String(), fmt.Errorf("%s: %s", program, problem.LastLine())
	}
	return out.Buf.String(), nil
}

// MaxPrinted is the largest output of a program in bytes. The programs run as the owner, who can make them print anything.
const MaxPrinted = 1 << 20

// Printed keeps the output of a program. More than MaxPrinted bytes are an error.
type Printed struct{ Buf bytes.Buffer }

// Write implements io.Writer.
func (p *Printed) Write(b []byte) (int, error) {
	if p.Buf.Len()+len(b) > MaxPrinted {
		return 0, errs.New(errs.Failed, "", "the program prints more than %d KiB", MaxPrinted>>10)
	}
	return p.Buf.Write(b)
}

// LastLine returns the last line of the output.
func (p *Printed) LastLine() string { return LastLine(p.Buf.String()) }

// LastLine returns the last line of s, without spaces around it.
func LastLine(s string) string {
	s = strings.TrimSpace(s)
	return s[strings.LastIndexByte(s, '\n')+1:]
}
