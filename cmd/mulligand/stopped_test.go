package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mulligan/ipc"
	"mulligan/testkit"
)

// stopWorkers has the stranger stop every process of theirs that works for the daemon, as
// soon as it is there. The function that it returns waits for the first.
func (d *daemonProcess) stopWorkers() (first func()) {
	d.t.Helper()
	script := `while :; do for p in $(pgrep -u ` + fmt.Sprint(stranger) + ` -P ` + strconv.Itoa(d.cmd.Process.Pid) + `); do
		grep -q '^State:.*T' /proc/$p/status 2>/dev/null || { kill -STOP $p && echo $p; } ; done; sleep 0.01; done 2>/dev/null`
	cmd := exec.Command("bash", "-c", script)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: stranger, Gid: stranger}, Setpgid: true}
	out, err := cmd.StdoutPipe()
	if err != nil {
		d.t.Fatal(err)
	}
	if err := testkit.Start(cmd); err != nil {
		d.t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	stopped := make(chan struct{}, 1)
	go func() {
		for lines.Scan() {
			select {
			case stopped <- struct{}{}:
			default:
			}
		}
	}()
	d.t.Cleanup(func() {
		_ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL) // it ends now, if it has not
		_ = cmd.Wait()
	})
	return func() {
		d.t.Helper()
		select {
		case <-stopped:
		case <-time.After(testkit.Patience):
			d.t.Fatal("no worker was stopped")
		}
	}
}

// testStoppedWorkers has a user stop the processes that work for that user: the user's
// requests fail after a time, and nobody else notices. The daemon ends all the same.
func testStoppedWorkers(t *testing.T) {
	t.Parallel()
	d := hostDaemon(t)
	ws := filepath.Join(d.dir, "ws")
	if err := os.Mkdir(ws, 0o755); err != nil {
		t.Fatal(err)
	}
	d.must("app", "add", "--slug", "roots", "--dir", ws)
	add := func(slug string) (said string, code int) {
		dir := filepath.Join(d.dir, slug)
		if err := errors.Join(os.Mkdir(dir, 0o755), os.Chown(dir, stranger, stranger)); err != nil {
			t.Error(err)
		}
		return d.asStranger("app", "add", "--slug", slug, "--dir", dir)
	}
	if said, code := add("well"); code != 0 { // its worker waits for more
		t.Fatal(said)
	}
	first := d.stopWorkers()
	type answer struct {
		said string
		code int
	}
	answers := make(chan answer, 1)
	request := func(slug string) {
		go func() {
			said, code := add(slug)
			answers <- answer{said, code}
		}()
	}
	first()
	request("stopped")
	d.must("status")
	d.must("create", "--app", "roots")
	got := <-answers
	if got.code == 0 || !strings.Contains(got.said, "took longer than 15s") {
		t.Errorf("a request of a user whose workers are stopped: exit %d, %s", got.code, got.said)
	}
	d.must("status")
	d.must("rollback", "1", "--app", "roots")
	if st := ask[ipc.Status](d, "status"); len(st.Problems) > 0 {
		t.Errorf("root's status: %q", st.Problems)
	}
	request("again")
	first()  // a worker that was started for it
	d.stop() // in the middle of it; the test fails if the daemon does not end with status 0
	<-answers
}
