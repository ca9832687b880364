package physical

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// owner is the user that the server runs as. The data folder and the store are
// its own, and whoever is superuser of a database can act as it. So the daemon,
// which may be root, touches them with no more rights than it has.
type owner struct{ uid, gid int }

func (o owner) isSelf() bool { return os.Geteuid() == o.uid }

// do calls f with the owner's rights on files. f must not start goroutines.
func (o owner) do(f func() error) error { return o.on(o.become, f) }

// wholly calls f on a thread that is the owner's for good, as others see it too.
func (o owner) wholly(f func() error) error {
	return o.on(func() error {
		// The functions of package syscall would change all threads.
		for _, call := range [][4]uintptr{
			{unix.SYS_SETGROUPS}, {unix.SYS_SETRESGID, uintptr(o.gid), uintptr(o.gid), uintptr(o.gid)},
			{unix.SYS_SETRESUID, uintptr(o.uid), uintptr(o.uid), uintptr(o.uid)},
		} {
			if _, _, e := unix.RawSyscall(call[0], call[1], call[2], call[3]); e != 0 {
				return fmt.Errorf("act as user %d: %w", o.uid, e)
			}
		}
		return nil
	}, f)
}

// on calls f on a thread of its own, once that has become somebody else.
func (o owner) on(become, f func() error) error {
	if o.isSelf() {
		return f()
	}
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlock: the thread ends with the goroutine, and its identity with it
		if err := become(); err != nil {
			done <- err
			return
		}
		done <- f()
	}()
	return <-done
}

// become gives this thread alone the owner's identity for files (setfsuid(2)).
// With a user other than root, the capabilities to override access go too.
func (o owner) become() error {
	if _, _, e := unix.RawSyscall(unix.SYS_SETGROUPS, 0, 0, 0); e != 0 {
		return fmt.Errorf("drop groups: %w", e)
	}
	if err := errors.Join(unix.Setfsgid(o.gid), unix.Setfsuid(o.uid)); err != nil {
		return err
	}
	if now, _ := unix.SetfsuidRetUid(-1); now != o.uid {
		return fmt.Errorf("cannot act as user %d", o.uid)
	}
	return nil
}

// command is one of the server's programs, to be run as the owner.
func (d *Driver) command(ctx context.Context, program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(d.cfg.Bin, program), args...)
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=/usr/local/bin:/usr/bin:/bin", "LC_ALL=C"}
	cmd.SysProcAttr = d.owner.attr()
	return cmd
}

func (o owner) attr() *syscall.SysProcAttr {
	if o.isSelf() {
		return &syscall.SysProcAttr{}
	}
	return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(o.uid), Gid: uint32(o.gid)}}
}

// output runs a program to its end and gives what it printed.
func (d *Driver) output(ctx context.Context, program string, args ...string) (string, error) {
	cmd := d.command(ctx, program, args...)
	var out, problem bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problem
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s: %w: %s", program, err, lastLine(problem.String()))
	}
	if problem.Len() > 0 {
		return out.String(), fmt.Errorf("%s: %s", program, lastLine(problem.String()))
	}
	return out.String(), nil
}

func lastLine(s string) string {
	s = strings.TrimSpace(s)
	return s[strings.LastIndexByte(s, '\n')+1:]
}
