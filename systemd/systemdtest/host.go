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
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mulligan/testkit"
	"mulligan/testkit/box"

	"golang.org/x/sys/unix"
)

// bootTimeout bounds a boot, which takes well under a second on an idle machine.
const bootTimeout = testkit.Patience

// setup mounts what PID 1 needs and becomes it. Its arguments: the instance's folder.
//
//go:embed setup.sh
var setup string

// Host is a booted instance.
type Host struct {
	Address string // of the system bus, dialable from outside and inside
	UnitDir string // the instance's /etc/systemd/system
	RunDir  string // the instance's /run

	box *box.Box
}

// Boot starts an instance and returns when the manager is "running". Where
// that is not possible the test ends as testkit.Lack says. The instance is cleaned up with the test.
func Boot(t testing.TB) *Host {
	t.Helper()
	testkit.Need(t, "root", "systemd")
	if reason := possible(); reason != "" {
		testkit.Lack(t, "no systemd for this test: ", reason)
	}
	box.Sweep(prefix)
	h, err := create()
	if err != nil {
		t.Fatalf("boot systemd: %v", err)
	}
	t.Cleanup(func() {
		if err := h.box.Down(); err != nil {
			t.Errorf("end systemd: %v", err)
		}
	})
	if err := h.boot(); err != nil {
		log, _ := os.ReadFile(h.box.LogFile())
		t.Fatalf("boot systemd: %v\n%s", err, log)
	}
	return h
}

// Root is the instance's root folder as the host sees it.
func (h *Host) Root() string { return fmt.Sprintf("/proc/%d/root", h.box.PID) }

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
	return h.box.Command(ctx, []string{"--pid", "--mount", "--uts", "--ipc", "--cgroup", "--wdns=/"}, cmd...)
}

// create makes the instance's folders and control group.
func create() (h *Host, err error) {
	b, err := box.New(prefix)
	if err != nil {
		return nil, err
	}
	h = &Host{
		Address: "unix:path=" + b.Dir + "/run/dbus/system_bus_socket",
		UnitDir: b.Dir + "/units",
		RunDir:  b.Dir + "/run",
		box:     b,
	}
	for _, d := range []string{h.RunDir, h.UnitDir, h.RunDir + "/mulligan-test"} {
		if err == nil {
			err = os.MkdirAll(d, 0o755)
		}
	}
	if err == nil {
		err = writeLib(h.RunDir + "/mulligan-test/units")
	}
	if err != nil {
		return nil, errors.Join(err, b.Down())
	}
	return h, nil
}

// boot starts PID 1 and waits for it to be well.
func (h *Host) boot() error {
	ctx, cancel := context.WithTimeout(context.Background(), bootTimeout)
	defer cancel()
	if err := h.box.Spawn(setup, unix.CLONE_NEWUTS); err != nil {
		return err
	}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !exists(h.RunDir+"/systemd/private") || !exists(h.RunDir+"/dbus/system_bus_socket") {
		select {
		case <-tick.C:
		case err := <-h.box.Ended:
			h.box.Ended <- err
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

// Journal is what a unit printed, for a test's log.
func (h *Host) Journal(unit string) string {
	out, err := h.Exec("journalctl", "--no-pager", "-o", "cat", "-u", unit)
	if err != nil {
		return err.Error()
	}
	return string(bytes.TrimSpace(out))
}
