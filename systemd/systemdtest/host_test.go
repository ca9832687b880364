package systemdtest

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mulligan/testkit"
	"mulligan/testkit/box"
)

func TestBoot(t *testing.T) {
	h := Boot(t)
	h.WriteUnit(t, "hello.service", "[Service]\nType=oneshot\nExecStart=/bin/echo good morning\n")
	if out, err := h.Exec("systemctl", "start", "hello.service"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	// What a unit writes is in the journal once journald has read it.
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(testkit.Patience); ; <-tick.C {
		j := h.Journal("hello.service")
		if strings.Contains(j, "good morning") {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the journal has %q", j)
		}
	}
	if out, err := h.Exec("ps", "-p", "1", "-o", "comm="); err != nil || strings.TrimSpace(string(out)) != "systemd" {
		t.Errorf("PID 1 is %q (%v)", out, err)
	}
}

func TestTwoAtOnce(t *testing.T) {
	for _, name := range []string{"a", "b"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := Boot(t)
			if exists(h.UnitDir + "/only.service") {
				t.Error("the instances share their units")
			}
			h.WriteUnit(t, "only.service", "[Service]\nExecStart=/bin/sleep 1000\n")
			if out, err := h.Exec("systemctl", "start", "only.service"); err != nil {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
}

// TestSweep kills a test that has an instance: nothing of it may be left, nor the control group of an instance whose folder somebody has removed. What another run has
// made, in a temporary folder of its own, and has not yet begun, stays.
func TestSweep(t *testing.T) {
	usual := prefix
	prefix = "sdts-" // other tests sweep too, at any moment
	defer func() { prefix = usual }()
	if os.Getenv("SYSTEMDTEST_HANG") == "1" {
		h := Boot(t)
		h.WriteUnit(t, "stay.service", "[Service]\nExecStart=/bin/sleep 1000\n")
		if out, err := h.Exec("systemctl", "start", "stay.service"); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		os.Stdout.WriteString("booted " + h.box.Dir + "\n")
		select {}
	}
	hierarchy, reason := box.Hierarchy()
	if reason != "" || possible() != "" {
		Boot(t) // says why
	}
	cmd := exec.CommandContext(context.Background(), os.Args[0], "-test.run=^TestSweep$")
	cmd.Env = append(os.Environ(), "SYSTEMDTEST_HANG=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := testkit.Start(cmd); err != nil {
		t.Fatal(err)
	}
	dir := ""
	for lines := bufio.NewScanner(out); dir == "" && lines.Scan(); {
		dir, _ = strings.CutPrefix(lines.Text(), "booted ")
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	cmd.Wait()
	cgroup := filepath.Join(hierarchy, filepath.Base(dir))
	if !exists(dir) || !exists(cgroup) {
		t.Fatalf("%q and its control group should be left over", dir)
	}
	left, err := os.MkdirTemp(hierarchy, prefix)
	if err != nil {
		t.Fatal(err)
	}
	tmp := os.TempDir()
	t.Setenv("TMPDIR", t.TempDir())
	held, err := box.New(prefix)
	t.Setenv("TMPDIR", tmp)
	if err != nil {
		t.Fatal(err)
	}
	Boot(t)
	if exists(dir) || exists(cgroup) {
		t.Errorf("%s or its control group is still there", dir)
	}
	if exists(left) {
		t.Errorf("%s is still there", left)
	}
	if !exists(filepath.Join(hierarchy, filepath.Base(held.Dir))) {
		t.Error("the control group of an instance of another run is gone")
	}
	if err := held.Down(); err != nil {
		t.Error(err)
	}
}
