package testkit

import (
	"os/exec"
	"runtime"
	"sync"
	"syscall"
)

// Start starts a process that the kernel kills when this process ends.
//
// The kernel kills the process as soon as the thread ends that started it (see PR_SET_PDEATHSIG in prctl(2)), and threads of a Go
// program end. So one thread, which never ends, starts all of them.
func Start(cmd *exec.Cmd) error {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	started := make(chan error)
	starter() <- func() { started <- cmd.Start() }
	return <-started
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
