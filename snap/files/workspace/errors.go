package workspace

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"mulligan/errs"
)

// Wrap is like errs.Wrap, but does not add the operation op a second time. An error of a cancelled context becomes one of kind
// errs.Unavailable.
func Wrap(k errs.Kind, op string, err error) error {
	if e, ok := err.(*errs.Error); ok && e.Op == op {
		return err
	}
	if Cancelled(err) {
		k = errs.Unavailable
	}
	return errs.Wrap(k, op, err)
}

// Cancelled reports whether err is the error of a context that ended.
func Cancelled(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// Leased returns the error for a file that another process has leased and does not give back.
func Leased(op, path string) error {
	return errs.New(errs.Busy, op, "%s is leased by another program, which was asked to give it back and has not (fcntl F_SETLEASE)", path).
		WithHint("stop that program (lslocks names it), or try again in a minute: the kernel ends the lease after fs.lease-break-time seconds")
}

// Cause returns the system's error without the path, which the message has already.
func Cause(err error) error {
	var p *os.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}

// Shown returns the absolute path of path in the workspace dir. It is quoted if it has control characters or invalid UTF-8.
func Shown(dir, path string) string {
	full := dir
	if path != "." {
		full = dir + "/" + path
	}
	if strings.ContainsFunc(full, func(r rune) bool { return r < ' ' || r == 0x7f || r == '\uFFFD' }) {
		return fmt.Sprintf("%q", full)
	}
	return full
}
