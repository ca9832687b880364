// Package privseptest has the attack that privilege separation must withstand, for the tests of packages that use package
// privsep.
package privseptest

import (
	"fmt"
	"io"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// SignalThreads tries, with the rights of the calling process, to signal the process pid and each of its threads, again and
// again until end is at its end. It returns the number of attempts, and an error as soon as the kernel allows a signal. The
// signal is 0, which only checks the permission (kill(2)).
func SignalThreads(pid int, end io.Reader) (tries int, err error) {
	over := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, end) // only the end of end matters, not its content
		close(over)
	}()
	for {
		n, err := signalEach(pid)
		tries += n
		if err != nil {
			return tries, err
		}
		select {
		case <-over:
			return tries, nil
		default:
		}
	}
}

func signalEach(pid int) (tries int, err error) {
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		return 0, err
	}
	for _, e := range threads {
		tid, err := strconv.Atoi(e.Name())
		if err != nil {
			return tries, err
		}
		tries++
		if unix.Tgkill(pid, tid, 0) == nil {
			return tries, fmt.Errorf("thread %d of process %d can be signalled", tid, pid)
		}
	}
	if unix.Kill(pid, 0) == nil {
		return tries, fmt.Errorf("process %d can be signalled", pid)
	}
	return tries, nil
}
