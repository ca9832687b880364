package privsep

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
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

// order describes the command that a launcher becomes.
type order struct {
	User       User
	Path       string
	Args, Env  []string
	Dir        string
	NoNewPrivs bool
	Signal     int // the signal that the kernel sends to the command when the daemon's thread ends; 0: none
	Parent     int // the daemon's process id
	Files      int // number of files besides standard input, output and error
}

// The descriptors with which a launcher starts. The command's own files follow them.
const (
	orderFD  = 3
	statusFD = 4
	filesFD  = 5
)

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
	if cmd.Err != nil {
		return cmd.Err
	}
	ask := order{User: u, Path: cmd.Path, Args: cmd.Args, Env: cmd.Env, Dir: cmd.Dir, NoNewPrivs: o.NoNewPrivs,
		Parent: os.Getpid(), Files: len(cmd.ExtraFiles)}
	if a := cmd.SysProcAttr; a != nil {
		ask.Signal = int(a.Pdeathsig)
	}
	paper, err := ask.file()
	if err != nil {
		return err
	}
	defer paper.Close() // a file in memory
	status, report, err := os.Pipe()
	if err != nil {
		return err
	}
	defer status.Close() // the pipe was only read
	cmd.Path, cmd.Args, cmd.Env, cmd.Dir = program, []string{LauncherName}, append(environment(), o.Visible...), "/"
	cmd.ExtraFiles = append([]*os.File{paper, report}, cmd.ExtraFiles...)
	err = cmd.Start()
	if err = errs.Also(err, report.Close()); err != nil {
		return err
	}
	if err := started(status); err != nil {
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

// started waits until the launcher has become the command, which closes the launcher's end of the pipe. It returns the error
// that the launcher reports instead if it cannot.
func started(status *os.File) error {
	if err := status.SetReadDeadline(time.Now().Add(startTimeout)); err != nil {
		return err
	}
	said, err := io.ReadAll(io.LimitReader(status, maxReply))
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return errs.New(errs.Unavailable, "", "the command was not started within %s", startTimeout).
			WithHint("check whether the user's processes are stopped, or the host is overloaded")
	}
	if err != nil || len(said) == 0 {
		return err
	}
	var w wireError
	if err := json.Unmarshal(said, &w); err != nil {
		return fmt.Errorf("the launcher ended: %.200q", said)
	}
	return w.decode()
}

// file writes the order to an unnamed file in memory.
func (o order) file() (*os.File, error) {
	text, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	fd, err := unix.MemfdCreate("mulligan-order", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), "order")
	if _, err := f.WriteAt(text, 0); err != nil {
		return nil, errs.Also(err, f.Close())
	}
	return f, nil
}

// launch executes the ordered command in this process. It returns only after a failure, when it has reported the error on the
// status pipe.
func launch() int {
	runtime.LockOSThread() // no_new_privs and the signal belong to the thread that executes the command
	err := become()
	text, _ := json.Marshal(encodeError(err)) // a wireError has only strings and numbers, so this cannot fail
	if _, err := unix.Write(statusFD, text); err != nil {
		return 3
	}
	return 2
}

func become() error {
	unix.CloseOnExec(statusFD)
	paper := os.NewFile(orderFD, "order")
	defer runtime.KeepAlive(paper) // keeps the descriptor open until the command's files replace it
	text, err := io.ReadAll(paper)
	if err != nil {
		return err
	}
	var o order
	if err := json.Unmarshal(text, &o); err != nil {
		return err
	}
	if err := drop(o.User); err != nil {
		return err
	}
	if err := o.attach(); err != nil {
		return err
	}
	if o.Dir != "" {
		if err := os.Chdir(o.Dir); err != nil {
			return err
		}
	}
	status, err := o.arrange()
	if err != nil {
		return err
	}
	err = syscall.Exec(o.Path, o.Args, o.Env)
	// After a failure, the status pipe gets back its descriptor statusFD, on which launch reports the error.
	if e := unix.Dup3(status, statusFD, unix.O_CLOEXEC); e != nil {
		return e
	}
	return &os.PathError{Op: "exec", Path: o.Path, Err: err}
}

// attach sets the attributes that the kernel keeps per thread. It must run after drop, because changing ids clears the
// parent-death signal.
func (o order) attach() error {
	if o.NoNewPrivs {
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return os.NewSyscallError("prctl", err)
		}
	}
	if o.Signal == 0 {
		return nil
	}
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(o.Signal), 0, 0, 0); err != nil {
		return os.NewSyscallError("prctl", err)
	}
	if os.Getppid() != o.Parent {
		return errs.New(errs.Unavailable, "", "the daemon ended meanwhile")
	}
	return nil
}

// arrange moves the command's files down to descriptors 3 and up, and returns the new descriptor
// of the status pipe. The remaining descriptors close when the command is executed.
func (o order) arrange() (status int, err error) {
	if status, err = unix.FcntlInt(statusFD, unix.F_DUPFD_CLOEXEC, filesFD+o.Files); err != nil {
		return 0, os.NewSyscallError("fcntl", err)
	}
	for i := range o.Files {
		if err := unix.Dup3(filesFD+i, 3+i, 0); err != nil {
			return 0, os.NewSyscallError("dup3", err)
		}
	}
	for fd := 3 + o.Files; fd < filesFD+o.Files; fd++ {
		unix.CloseOnExec(fd)
	}
	return status, nil
}
