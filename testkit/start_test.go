package testkit

import (
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"testing"
)

// TestStart ends many threads of this process, as goroutines that are locked to them do. What was started goes on.
func TestStart(t *testing.T) {
	var all []*exec.Cmd
	for range 4 {
		cmd := exec.Command("sleep", "1000")
		if err := Start(cmd); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait() // it was killed
		})
		all = append(all, cmd)
	}
	var wg sync.WaitGroup
	for range 200 {
		wg.Go(runtime.LockOSThread)
	}
	wg.Wait()
	for _, cmd := range all {
		var ws syscall.WaitStatus
		if pid, err := syscall.Wait4(cmd.Process.Pid, &ws, syscall.WNOHANG, nil); pid != 0 || err != nil {
			t.Errorf("a process ended: %d, %v, %v", pid, ws, err)
		}
	}
}
