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

// Confined are the options with which the owner's programs run: they gain no privileges.
var Confined = privsep.Options{NoNewPrivs: true}

// Programs are a server's programs, which run as its owner.
type Programs struct {
	Bin   string // their folder
	Owner privsep.User
}

// Command returns the command for one of the server's programs. The caller runs it as the owner.
func (p Programs) Command(ctx context.Context, program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(p.Bin, program), args...)
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=/usr/local/bin:/usr/bin:/bin", "LC_ALL=C"}
	cmd.WaitDelay = time.Second // another process may keep the output open
	return cmd
}

// Output runs a program to its end and returns its standard output. Output to standard error makes it return an error too.
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
