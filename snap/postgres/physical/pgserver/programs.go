package pgserver

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"mulligan/errs"
	"mulligan/privsep"
)

// Confined is how the owner's programs are started: they gain no rights.
var Confined = privsep.Options{NoNewPrivs: true}

// Programs are those of a server, which its owner runs.
type Programs struct {
	Bin   string // their folder
	Owner privsep.User
}

// Command is one of the server's programs, to be run as the owner.
func (p Programs) Command(ctx context.Context, program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(p.Bin, program), args...)
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=/usr/local/bin:/usr/bin:/bin", "LC_ALL=C"}
	cmd.WaitDelay = time.Second // somebody else may hold what it prints to
	return cmd
}

// Output runs a program to its end and gives what it printed.
func (p Programs) Output(ctx context.Context, program string, args ...string) (string, error) {
	cmd := p.Command(ctx, program, args...)
	var out, problem Printed
	cmd.Stdout, cmd.Stderr = &out, &problem
	if err := p.Owner.Run(cmd, Confined); err != nil {
		return "", fmt.Errorf("%s: %w: %s", program, err, problem.LastLine())
	}
	if problem.Buf.Len() > 0 {
		return out.Buf.String(), fmt.Errorf("%s: %s", program, problem.LastLine())
	}
	return out.Buf.String(), nil
}

// MaxPrinted is how much is kept of what a program prints, in bytes: the owner, as
// whom it runs, can have it print anything.
const MaxPrinted = 1 << 20

// Printed keeps what a program prints. To print more than maxPrinted is an error.
type Printed struct{ Buf bytes.Buffer }

// Write implements io.Writer.
func (p *Printed) Write(b []byte) (int, error) {
	if p.Buf.Len()+len(b) > MaxPrinted {
		return 0, errs.New(errs.Failed, "", "the program prints more than %d KiB", MaxPrinted>>10)
	}
	return p.Buf.Write(b)
}

func (p *Printed) LastLine() string { return LastLine(p.Buf.String()) }

func LastLine(s string) string {
	s = strings.TrimSpace(s)
	return s[strings.LastIndexByte(s, '\n')+1:]
}
