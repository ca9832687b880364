package privsep

// #cgo CFLAGS: -O2 -Wall -Wextra -Wno-sign-compare
import "C" // launcher.c

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"mulligan/errs"
)

// Options says how a command is started for a user.
type Options struct {
	// NoNewPrivs prevents the command and its children from gaining rights from set-user-ID programs.
	NoNewPrivs bool
	// Visible has "NAME=value" variables for the launcher's environment. With them, the process can be found in /proc even before
	// it becomes the command. The command's own environment is that of the exec.Cmd.
	Visible []string
}

// order describes the command that a launcher becomes. Its first fields are those of struct header in launcher.c.
type order struct {
	UID, GID, Groups uint32
	NoNewPrivs       uint32
	Signal           uint32 // the signal that the kernel sends to the command when the daemon's thread ends; 0: none
	Parent           uint32 // the daemon's process id
	Files            uint32 // number of files besides standard input, output and error
	Args, Env        uint32
}

// startTimeout bounds the time until a launcher becomes the command. It is needed because the user can stop the process before
// that.
const startTimeout = 30 * time.Second

// Start starts cmd as the user; cmd.Wait waits for the command as usual. cmd.Process is the launcher, which becomes the
// command. Start returns when the launcher has become the command, or with an error.
//
// Start enters the working folder and executes the program with the user's rights.
// cmd.SysProcAttr must have no Credential.
func (u User) Start(cmd *exec.Cmd, o Options) error {
	if u.IsSelf() {
		return cmd.Start()
	}
	if err := u.mayBecome(); err != nil {
		return err
	}
	if len(u.Folders) > 0 {
		return errs.New(errs.Internal, "", "%s sees no programs that could be started", u)
	}
	if cmd.Err != nil {
		return cmd.Err
	}
	paper, err := u.order(cmd, o)
	if err != nil {
		return err
	}
	defer paper.Close() // a file in memory
	status, report, err := os.Pipe()
	if err != nil {
		return err
	}
	defer status.Close() // the pipe was only read
	path, dir := cmd.Path, cmd.Dir
	cmd.Path, cmd.Args, cmd.Env, cmd.Dir = program, []string{LauncherName}, append(environment(), o.Visible...), "/"
	cmd.ExtraFiles = append([]*os.File{paper, report}, cmd.ExtraFiles...)
	err = cmd.Start()
	if err = errs.Also(err, report.Close()); err != nil {
		return err
	}
	if err := started(status, path, dir); err != nil {
		_ = cmd.Process.Kill() // it may have ended already
		_ = cmd.Wait()         // err is more specific
		return err
	}
	return nil
}

// Run starts cmd as the user and waits for its end.
func (u User) Run(cmd *exec.Cmd, o Options) error {
	if err := u.Start(cmd, o); err != nil {
		return err
	}
	return cmd.Wait()
}

// maxReport bounds what a launcher reports, in bytes.
const maxReport = 64

// started waits until the launcher has become the command, which closes the launcher's end of the pipe. It returns the error
// that the launcher reports instead if it cannot: the step that failed, and the kernel's error number.
func started(status *os.File, path, dir string) error {
	if err := status.SetReadDeadline(time.Now().Add(startTimeout)); err != nil {
		return err
	}
	said, err := io.ReadAll(io.LimitReader(status, maxReport))
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return errs.New(errs.Unavailable, "", "the command was not started within %s", startTimeout).
			WithHint("check whether the user's processes are stopped, or the host is overloaded")
	}
	if err != nil || len(said) == 0 {
		return err
	}
	var step string
	var errno syscall.Errno
	if _, err := fmt.Sscanf(string(said), "%s %d", &step, &errno); err != nil {
		return fmt.Errorf("the launcher ended: %.200q", said)
	}
	switch step {
	case "exec":
		return &os.PathError{Op: step, Path: path, Err: errno}
	case "chdir":
		return &os.PathError{Op: step, Path: dir, Err: errno}
	case "daemon":
		return errs.New(errs.Unavailable, "", "the daemon ended meanwhile")
	case "capabilities":
		return errs.New(errs.Internal, "", "the process kept capabilities")
	}
	return os.NewSyscallError(step, errno)
}

// order writes the order for a command to an unnamed file in memory.
func (u User) order(cmd *exec.Cmd, o Options) (*os.File, error) {
	ask := order{UID: uint32(u.UID), GID: uint32(u.GID), Groups: uint32(len(u.Groups)), Parent: uint32(os.Getpid()),
		Files: uint32(len(cmd.ExtraFiles)), Args: uint32(len(cmd.Args)), Env: uint32(len(cmd.Env))}
	if o.NoNewPrivs {
		ask.NoNewPrivs = 1
	}
	if a := cmd.SysProcAttr; a != nil {
		ask.Signal = uint32(a.Pdeathsig)
	}
	var text bytes.Buffer
	parts := []any{ask}
	for _, g := range u.Groups {
		parts = append(parts, uint32(g))
	}
	for _, p := range parts {
		if err := binary.Write(&text, binary.NativeEndian, p); err != nil {
			return nil, err
		}
	}
	for _, s := range slices.Concat([]string{cmd.Path, cmd.Dir}, cmd.Args, cmd.Env) {
		if strings.ContainsRune(s, 0) {
			return nil, &os.PathError{Op: "exec", Path: cmd.Path, Err: unix.EINVAL}
		}
		text.WriteString(s + "\x00")
	}
	fd, err := unix.MemfdCreate("mulligan-order", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), "order")
	if _, err := f.WriteAt(text.Bytes(), 0); err != nil {
		return nil, errs.Also(err, f.Close())
	}
	return f, nil
}
