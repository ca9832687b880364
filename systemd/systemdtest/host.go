// Package systemdtest boots a real systemd for tests: PID 1 of its own pid,
// mount, uts, ipc and cgroup namespaces, over the root file system of the host
// that runs the tests. It needs root, systemd, dbus and util-linux, and a
// cgroup v2 hierarchy; no image. The network is the host's: choose free ports.
//
// What is shared with the host: its files, except /run, /dev, /proc, /sys,
// /etc/systemd/system, /var/lib/systemd and the journal. Pids that the manager
// tells are those of its own namespace.
//
// An instance ends with its test. When the test's process is killed the kernel
// ends the instance, and the next Boot sweeps what is left of it.
package systemdtest

import (
	"bytes"
	"context"
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"mulligan/testkit"

	"golang.org/x/sys/unix"
)

// bootTimeout bounds a boot, which takes well under a second on an idle machine.
const bootTimeout = 60 * time.Second

// setup mounts what PID 1 needs and becomes it. Its arguments: the instance's folder.
//
//go:embed setup.sh
var setup string

// Host is a booted instance.
type Host struct {
	Address string // of the system bus, dialable from outside and inside
	UnitDir string // the instance's /etc/systemd/system
	RunDir  string // the instance's /run

	dir    string
	cgroup string
	pid    int // of its PID 1, as the host sees it
	lock   *os.File
	ended  chan error // PID 1 was waited for
}

// Boot starts an instance and returns when the manager is "running". Where
// that is not possible the test ends as testkit.Lack says. The instance is cleaned up with the test.
func Boot(t testing.TB) *Host {
	t.Helper()
	testkit.Need(t, "root", "systemd")
	hierarchy, reason := possible()
	if reason != "" {
		testkit.Lack(t, "no systemd for this test: ", reason)
	}
	sweep(hierarchy)
	h, err := create(hierarchy)
	if err != nil {
		t.Fatalf("boot systemd: %v", err)
	}
	t.Cleanup(func() {
		if err := h.down(); err != nil {
			t.Errorf("end systemd: %v", err)
		}
	})
	if err := h.boot(); err != nil {
		log, _ := os.ReadFile(h.logFile())
		t.Fatalf("boot systemd: %v\n%s", err, log)
	}
	return h
}

// Root is the instance's root folder as the host sees it.
func (h *Host) Root() string { return fmt.Sprintf("/proc/%d/root", h.pid) }

// WriteUnit writes a unit file and has the manager read it.
func (h *Host) WriteUnit(t testing.TB, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(h.UnitDir, name), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := h.Exec("systemctl", "daemon-reload"); err != nil {
		t.Fatalf("daemon-reload: %v: %s", err, out)
	}
}

// Exec runs a command inside and returns what it printed on both outputs.
func (h *Host) Exec(cmd ...string) ([]byte, error) {
	return h.Command(context.Background(), cmd...).CombinedOutput()
}

// Command is a command to be run inside.
func (h *Host) Command(ctx context.Context, cmd ...string) *exec.Cmd {
	enter := []string{"-t", fmt.Sprint(h.pid), "--pid", "--mount", "--uts", "--ipc", "--cgroup", "--wdns=/", "--"}
	return exec.CommandContext(ctx, "nsenter", append(enter, cmd...)...)
}

// create makes the instance's folder and control group. Whoever holds the
// folder's lock is alive.
func create(hierarchy string) (h *Host, err error) {
	dir, err := os.MkdirTemp("/tmp", prefix) // short: a socket's path has at most 107 bytes
	if err != nil {
		return nil, err
	}
	h = &Host{
		Address: "unix:path=" + dir + "/run/dbus/system_bus_socket",
		UnitDir: dir + "/units",
		RunDir:  dir + "/run",
		dir:     dir,
		cgroup:  filepath.Join(hierarchy, filepath.Base(dir)),
	}
	defer func() {
		if err != nil {
			h.remove()
		}
	}()
	if h.lock, err = os.Create(dir + "/lock.new"); err != nil {
		return nil, err
	}
	if err := unix.Flock(int(h.lock.Fd()), unix.LOCK_EX); err != nil {
		return nil, err
	}
	if err := os.Rename(dir+"/lock.new", dir+"/lock"); err != nil { // a sweep sees it locked or not at all
		return nil, err
	}
	for _, d := range []string{dir, h.RunDir, h.UnitDir, h.RunDir + "/mulligan-test"} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return nil, err
		}
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		return nil, err
	}
	if err := os.Mkdir(h.cgroup, 0o755); err != nil {
		return nil, err
	}
	return h, writeLib(h.RunDir + "/mulligan-test/units")
}

// boot starts PID 1 and waits for it to be well.
func (h *Host) boot() error {
	ctx, cancel := context.WithTimeout(context.Background(), bootTimeout)
	defer cancel()
	if err := h.spawn(); err != nil {
		return err
	}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !exists(h.RunDir+"/systemd/private") || !exists(h.RunDir+"/dbus/system_bus_socket") {
		select {
		case <-tick.C:
		case err := <-h.ended:
			h.ended <- err
			return fmt.Errorf("its PID 1 ended: %v", err)
		case <-ctx.Done():
			return fmt.Errorf("no bus after %v", bootTimeout)
		}
	}
	out, err := h.Command(ctx, "systemctl", "is-system-running", "--wait").CombinedOutput()
	if state := strings.TrimSpace(string(out)); state != "running" {
		failed, _ := h.Exec("systemctl", "--failed", "--no-pager")
		return fmt.Errorf("the manager is %q (%v)\n%s", state, err, failed)
	}
	return nil
}

// spawn starts PID 1 in the instance's control group and in new namespaces.
// It dies with this process: the thread that is its parent lives as long as it does.
func (h *Host) spawn() error {
	cgroup, err := os.Open(h.cgroup)
	if err != nil {
		return err
	}
	defer cgroup.Close()
	log, err := os.Create(h.logFile())
	if err != nil {
		return err
	}
	defer log.Close()
	// The control group's namespace is made by unshare: its root is the group
	// that a process is in when it asks for one.
	cmd := exec.Command("unshare", "--cgroup", "sh", "-euc", setup, "setup", h.dir)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setsid:      true,
		Pdeathsig:   syscall.SIGKILL,
		Cloneflags:  unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC,
		UseCgroupFD: true,
		CgroupFD:    int(cgroup.Fd()),
	}
	started := make(chan error, 1)
	ended := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread goes with the goroutine
		err := cmd.Start()
		started <- err
		if err == nil {
			ended <- cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		return err
	}
	h.pid, h.ended = cmd.Process.Pid, ended
	return nil
}

// down ends every process of the instance and removes what it had.
func (h *Host) down() error {
	if h.ended != nil {
		if err := unix.Kill(h.pid, unix.SIGKILL); err != nil && err != unix.ESRCH {
			return err
		}
		<-h.ended // with PID 1 the kernel ends all others
	}
	return h.remove()
}

func (h *Host) remove() error {
	if err := removeCgroup(h.cgroup); err != nil {
		return err
	}
	if err := os.RemoveAll(h.dir); err != nil {
		return err
	}
	if h.lock == nil {
		return nil
	}
	return h.lock.Close()
}

func (h *Host) logFile() string { return h.dir + "/log" }

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// Journal is what a unit printed, for a test's log.
func (h *Host) Journal(unit string) string {
	out, err := h.Exec("journalctl", "--no-pager", "-o", "cat", "-u", unit)
	if err != nil {
		return err.Error()
	}
	return string(bytes.TrimSpace(out))
}
