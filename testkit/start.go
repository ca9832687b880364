package testkit

import (
	"errors"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Start starts a process that the kernel kills when this process ends.
//
// The kernel kills the process as soon as the thread ends that started it (see PR_SET_PDEATHSIG in prctl(2)), and threads of a Go
// program end. So one thread, which never ends, starts all of them. The process is in the network namespace of the caller's thread.
func Start(cmd *exec.Cmd) error {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	here, err := os.Open(network)
	if err != nil {
		return err
	}
	defer here.Close()
	started := make(chan error)
	starter() <- func() { started <- startIn(here, cmd) }
	return <-started
}

// network is the network namespace of the thread that opens it.
const network = "/proc/thread-self/ns/net"

// startIn starts the process in a network namespace, which this thread enters for so long if it is in another one.
func startIn(space *os.File, cmd *exec.Cmd) error {
	own, err := os.Open(network)
	if err != nil {
		return err
	}
	defer own.Close()
	a, err := space.Stat()
	b, err2 := own.Stat()
	if err := errors.Join(err, err2); err != nil {
		return err
	}
	if os.SameFile(a, b) {
		return cmd.Start()
	}
	if err := unix.Setns(int(space.Fd()), unix.CLONE_NEWNET); err != nil {
		return err
	}
	err = cmd.Start()
	return errors.Join(err, unix.Setns(int(own.Fd()), unix.CLONE_NEWNET))
}

var starter = sync.OnceValue(func() chan<- func() {
	work := make(chan func())
	go func() {
		runtime.LockOSThread() // never unlocked
		for do := range work {
			do()
		}
	}()
	return work
})
