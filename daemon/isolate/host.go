package isolate

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"mulligan/errs"
	"mulligan/privsep"
)

// hostName is the name (argv[0]) by which a process recognizes that it was started to run commands of a fork without namespaces.
const hostName = "mulligand-host"

// OnHost starts a process that runs commands on the host, with the owner's rights and with the variables in env over their own, for
// those who ask at the control socket ([Dial]). The process ends when end is called or the daemon ends, and with it all that the commands
// left running.
func OnHost(owner privsep.User, control string, env []string) (end func(), err error) {
	if !hasMain.Load() {
		return nil, errs.New(errs.Internal, "", "this program does not call isolate.Main")
	}
	socket, err := listen(control, owner)
	if err != nil {
		return nil, err
	}
	defer socket.Close() // the process has a duplicate
	paper, err := plan{User: owner, Override: env}.file()
	if err != nil {
		return nil, err
	}
	defer paper.Close() // likewise
	held, hold, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer held.Close() // likewise
	cmd := &exec.Cmd{
		Path: "/proc/self/exe", Args: []string{hostName}, Dir: "/", Env: append([]string{"PATH=/usr/bin:/bin", "LC_ALL=C"}, raceSettings()...),
		Stdin: held, ExtraFiles: []*os.File{paper, socket}, SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
	if err := privsep.StartConfined(cmd); err != nil {
		return nil, errs.Also(err, hold.Close())
	}
	return func() {
		_ = hold.Close()       // nothing was written to it
		_ = cmd.Wait()         // its status says nothing
		_ = os.Remove(control) // a later drop removes the folder
	}, nil
}

// hostMain is the whole life of such a process. It returns the exit status.
func hostMain() int {
	if err := serveHost(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	return 0
}

func serveHost() error {
	const socketFD = planFD + 1
	unix.CloseOnExec(planFD)
	p, err := readPlan(planFD)
	if err != nil {
		return err
	}
	control, err := controlAt(socketFD)
	if err != nil {
		return err
	}
	if !p.User.IsSelf() {
		if err := privsep.Become(p.User); err != nil {
			return err
		}
	}
	// Processes whose parents are gone become children of this one, which ends them.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return os.NewSyscallError("prctl", err)
	}
	signal.Notify(make(chan os.Signal, 1), unix.SIGTERM, unix.SIGINT, unix.SIGHUP) // as an init
	in, err := attend(p, control, os.Stdin)                                        // the daemon holds the other end of the pipe
	if err != nil {
		return err
	}
	return in.endAll()
}

// endAll ends the processes that this process started, and those that they left behind. From then on, start returns an error.
func (in *inside) endAll() error {
	if err := killChildren(); err != nil { // start holds the lock until its program is loaded, and that may hang
		return err
	}
	in.exits.Lock()
	in.exits.closed = true
	in.exits.Unlock()
	for {
		if err := killChildren(); err != nil {
			return err
		}
		var ws syscall.WaitStatus
		_, err := syscall.Wait4(-1, &ws, 0, nil)
		if errors.Is(err, unix.ECHILD) {
			return nil
		}
		if err != nil && !errors.Is(err, unix.EINTR) {
			return os.NewSyscallError("wait4", err)
		}
	}
}

// killChildren sends SIGKILL to the children of this process.
func killChildren() error {
	pids, err := children(os.Getpid())
	for _, pid := range pids {
		_ = unix.Kill(pid, unix.SIGKILL) // it is not reaped yet, so the number is its own
	}
	return err
}

// children lists the processes whose parent is pid.
func children(pid int) (list []int, err error) {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil, err
	}
	for _, file := range stats {
		line, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		// The name before the state, in parentheses, may have any character.
		fields := strings.Fields(string(line[strings.LastIndexByte(string(line), ')')+1:]))
		n, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err == nil && len(fields) > 1 && fields[1] == strconv.Itoa(pid) {
			list = append(list, n)
		}
	}
	return list, nil
}
