package daemon_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mulligan/daemon"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/systemd/systemdtest"
	"mulligan/testkit"
)

var root = ipc.Caller{UID: 0, PID: 1, Exe: "test"}

// openHost opens a host daemon whose systemd is h.
func openHost(t *testing.T, h *systemdtest.Host) *daemon.Daemon {
	t.Helper()
	return openHostWith(t, h, testkit.Patience)
}

// openHostWith is openHost with a limit on how long a unit may take to stop.
func openHostWith(t *testing.T, h *systemdtest.Host, stop time.Duration) *daemon.Daemon {
	t.Helper()
	d, err := daemon.Open(t.Context(), daemon.Options{
		StateDir: filepath.Join(t.TempDir(), "state"), BusAddress: h.Address, StopTimeout: stop, Steady: steady,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return d
}

// workspace makes a folder for an app; its unit sees it at the same path.
func workspace(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/var/tmp", "mulligan-ws")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil { // such as a fork's folder that is still mounted
			t.Error(err)
		}
	})
	write(t, dir, "state", "good")
	return dir
}

func write(t testing.TB, dir, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, dir, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func run(t *testing.T, h *systemdtest.Host, cmd ...string) {
	t.Helper()
	if out, err := h.Exec(cmd...); err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(cmd, " "), err, out)
	}
}

func state(t *testing.T, d *daemon.Daemon) string {
	t.Helper()
	a, err := d.App(t.Context(), root, "shop")
	if err != nil {
		t.Fatal(err)
	}
	return a.State
}

// TestUnit takes an app whose unit is systemd's through a rollback: the unit is
// stopped and started, its default name is found, and it is down while files change.
func TestUnit(t *testing.T) {
	t.Parallel()
	h := systemdtest.Boot(t)
	ws := workspace(t)
	h.WriteUnit(t, "of-app-shop.service", "[Service]\nExecStart=/bin/sh -c 'cp state started-with; exec sleep 1000'\nWorkingDirectory="+ws+"\n")
	run(t, h, "systemctl", "start", "of-app-shop.service")
	d := openHost(t, h)
	app, err := d.AddApp(t.Context(), root, ipc.App{Slug: "shop", Workspace: ws})
	if err != nil {
		t.Fatal(err)
	}
	if app.Unit != "of-app-shop.service" || app.State != "running" {
		t.Fatalf("registered with unit %q, %s", app.Unit, app.State)
	}
	cp, err := d.Create(t.Context(), root, "shop", ipc.CreateRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if !cp.Quiesced || state(t, d) != "running" {
		t.Errorf("quiesced %v, the unit is %s", cp.Quiesced, state(t, d))
	}
	write(t, ws, "state", "bad")
	var stages []string
	res, err := d.Rollback(t.Context(), root, "shop", cp.ID, ipc.RollbackRequest{}, func(s ipc.Stage) {
		if s.Status != ipc.StageRunning {
			stages = append(stages, string(s.Stage)+" "+string(s.Status))
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	want := "safety-checkpoint ok, stop-unit ok, vm-revert ok, db-restore skipped, start-unit ok, health-check skipped"
	if got := strings.Join(stages, ", "); got != want {
		t.Errorf("stages %s, want %s", got, want)
	}
	if got := read(t, ws, "state"); got != "good" || !res.RolledBack || state(t, d) != "running" {
		t.Errorf("state %q, receipt %+v, unit %s", got, res, state(t, d))
	}
}

// testUnitThatWontStop has a unit that ignores being stopped: a create and a
// rollback fail with one clear error and leave it running.
func testUnitThatWontStop(t *testing.T) {
	t.Parallel()
	h := systemdtest.Boot(t)
	ws := workspace(t)
	h.WriteUnit(t, "stubborn.service", "[Service]\nExecStart=/bin/sh -c 'trap \"\" TERM; while :; do sleep 0.1; done'\nTimeoutStopSec=infinity\nKillMode=process\nWorkingDirectory="+ws+"\n")
	run(t, h, "systemctl", "start", "stubborn.service")
	d := openHostWith(t, h, 2*time.Second)
	if _, err := d.AddApp(t.Context(), root, ipc.App{Slug: "shop", Workspace: ws, Unit: "stubborn.service"}); err != nil {
		t.Fatal(err)
	}
	cp, err := d.Create(t.Context(), root, "shop", ipc.CreateRequest{Quiesce: ipc.QuiesceNone})
	if err != nil {
		t.Fatal(err)
	}
	_, err = d.Create(t.Context(), root, "shop", ipc.CreateRequest{})
	if errs.KindOf(err) != errs.Failed || !strings.Contains(err.Error(), "stubborn.service") || errs.HintOf(err) == "" {
		t.Errorf("create: %v (%s)", err, errs.HintOf(err))
	}
	write(t, ws, "state", "later")
	res, err := d.Rollback(t.Context(), root, "shop", cp.ID, ipc.RollbackRequest{}, nil)
	if errs.KindOf(err) != errs.Failed || res.RolledBack {
		t.Errorf("rollback: %v, %+v", err, res)
	}
	if got := read(t, ws, "state"); got != "later" {
		t.Errorf("state %q", got)
	}
	run(t, h, "systemctl", "kill", "-s", "KILL", "stubborn.service")
}

// TestUnitThatWontStart rolls back to a state in which the unit fails.
func TestUnitThatWontStart(t *testing.T) {
	t.Parallel()
	h := systemdtest.Boot(t)
	ws := workspace(t)
	h.WriteUnit(t, "picky.service", "[Service]\nType=exec\nExecStartPre=/bin/grep -q good state\nExecStart=/bin/sleep 1000\nWorkingDirectory="+ws+"\n")
	d := openHost(t, h)
	if _, err := d.AddApp(t.Context(), root, ipc.App{Slug: "shop", Workspace: ws, Unit: "picky.service"}); err != nil {
		t.Fatal(err)
	}
	write(t, ws, "state", "bad")
	cp, err := d.Create(t.Context(), root, "shop", ipc.CreateRequest{})
	if err != nil {
		t.Fatal(err)
	}
	write(t, ws, "state", "good")
	run(t, h, "systemctl", "start", "picky.service")
	res, err := d.Rollback(t.Context(), root, "shop", cp.ID, ipc.RollbackRequest{}, nil)
	if errs.KindOf(err) != errs.Failed || res.RolledBack || !res.Recovered {
		t.Fatalf("rollback: %v, %+v", err, res)
	}
	if got := read(t, ws, "state"); got != "good" || state(t, d) != "running" {
		t.Errorf("state %q, unit %s", got, state(t, d))
	}
	if s := res.Stages[4]; s.Stage != ipc.StageStart || s.Status != ipc.StageFailed {
		t.Errorf("stage %+v", s)
	}
}

func TestUnknownUnit(t *testing.T) {
	t.Parallel()
	h := systemdtest.Boot(t)
	d := openHost(t, h)
	_, err := d.AddApp(t.Context(), root, ipc.App{Slug: "shop", Workspace: workspace(t), Unit: "nosuch.service"})
	if errs.KindOf(err) != errs.NotFound || !strings.Contains(err.Error(), "nosuch.service") {
		t.Errorf("%v", err)
	}
	if apps := d.Apps(t.Context(), root); len(apps) != 0 {
		t.Errorf("registered all the same: %v", apps)
	}
}
