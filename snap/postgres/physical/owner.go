package physical

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

// confined is how the owner's programs are started: they gain no rights.
var confined = privsep.Options{NoNewPrivs: true}

// programs are those of a server, which its owner runs.
type programs struct {
	Bin   string // their folder
	Owner privsep.User
}

// command is one of the server's programs, to be run as the owner.
func (p programs) command(ctx context.Context, program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(p.Bin, program), args...)
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=/usr/local/bin:/usr/bin:/bin", "LC_ALL=C"}
	cmd.WaitDelay = time.Second // somebody else may hold what it prints to
	return cmd
}

// output runs a program to its end and gives what it printed.
func (p programs) output(ctx context.Context, program string, args ...string) (string, error) {
	cmd := p.command(ctx, program, args...)
	var out, problem printed
	cmd.Stdout, cmd.Stderr = &out, &problem
	if err := p.Owner.Run(cmd, confined); err != nil {
		return "", fmt.Errorf("%s: %w: %s", program, err, problem.lastLine())
	}
	if problem.buf.Len() > 0 {
		return out.buf.String(), fmt.Errorf("%s: %s", program, problem.lastLine())
	}
	return out.buf.String(), nil
}

// maxPrinted is how much is kept of what a program prints, in bytes: the owner, as
// whom it runs, can have it print anything.
const maxPrinted = 1 << 20

// printed keeps what a program prints. To print more than maxPrinted is an error.
type printed struct{ buf bytes.Buffer }

// Write implements io.Writer.
func (p *printed) Write(b []byte) (int, error) {
	if p.buf.Len()+len(b) > maxPrinted {
		return 0, errs.New(errs.Failed, "", "the program prints more than %d KiB", maxPrinted>>10)
	}
	return p.buf.Write(b)
}

func (p *printed) lastLine() string { return lastLine(p.buf.String()) }

func lastLine(s string) string {
	s = strings.TrimSpace(s)
	return s[strings.LastIndexByte(s, '\n')+1:]
}
