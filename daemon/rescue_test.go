package daemon_test

import (
	"errors"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mulligan/daemon"
	"mulligan/ipc"
	"mulligan/systemd/systemdtest"
	"mulligan/testkit"
)

// server is an app's program as its owner wrote it: it answers on a socket beside the
// workspace. broken is what an agent makes of it.
const (
	server = "#!/bin/sh\nexec python3 -c '" + `
import os, socket
s = socket.socket(socket.AF_UNIX)
path = os.environ.get("ANSWER", "answer.sock")
try: os.unlink(path)
except FileNotFoundError: pass
s.bind(path)
s.listen()
while True:
    c, _ = s.accept()
    c.send(b"well")
    c.close()
` + "'\n"
	broken = "#!/bin/sh\nexit 3\n"
)

// putServer writes the program that the app runs.
func putServer(t *testing.T, ws, text string) {
	t.Helper()
	if err := testkit.WriteProgram(filepath.Join(ws, "serve.sh"), []byte(text)); err != nil {
		t.Fatal(err)
	}
}

// answers reports whether the app's program is up and answers.
func answers(ws string) bool {
	c, err := net.DialTimeout("unix", filepath.Join(ws, "answer.sock"), time.Second)
	if err != nil {
		return false
	}
	defer c.Close()
	b := make([]byte, 4)
	n, _ := c.Read(b)
	return string(b[:n]) == "well"
}

func stage(res ipc.RollbackResult, name ipc.StageName) ipc.Stage {
	for _, s := range res.Stages {
		if s.Stage == name {
			return s
		}
	}
	return ipc.Stage{}
}

func goBack(t *testing.T, d *daemon.Daemon, id ipc.CheckpointID, req ipc.RollbackRequest) ipc.RollbackResult {
	t.Helper()
	res, err := d.Rollback(t.Context(), root, "shop", id, req, nil)
	if err != nil {
		t.Fatalf("%v; %+v", err, res.Stages)
	}
	return res
}

// serviceText is a unit that is started again when it fails, and given up in the end.
func serviceText(ws, more string) string {
	return "[Unit]\nStartLimitBurst=4\nStartLimitIntervalSec=600\n[Service]\nRestart=on-failure\n" + more + "ExecStart=" + ws + "/serve.sh\nWorkingDirectory=" + ws + "\n"
}

// testRescueOfUnit breaks an app that systemd runs, in the ways in which agents do,
// and goes back: the app answers again.
func testRescueOfUnit(t *testing.T) {
	t.Parallel()
	h := systemdtest.Boot(t)
	ws := workspace(t)
	putServer(t, ws, server)
	h.WriteUnit(t, "shop.service", serviceText(ws, "RestartSec=1ms\n"))
	h.WriteUnit(t, "slow.service", serviceText(ws, "RestartSec=600\n"))
	h.WriteUnit(t, "once.service", strings.Replace(serviceText(ws, ""), "on-failure", "no", 1))
	run(t, h, "systemctl", "start", "shop.service")
	d := openHost(t, h)
	if _, err := d.AddApp(t.Context(), root, ipc.App{Slug: "shop", Workspace: ws, Unit: "shop.service"}); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the app answers", func() bool { return answers(ws) })
	for _, c := range []struct{ unit, serve, active string }{
		{"shop.service", broken, "failed"}, {"slow.service", broken, "activating"}, {"once.service", "#!/bin/sh\nexit 0\n", "inactive"},
	} {
		t.Run(c.unit, func(t *testing.T) {
			if _, err := d.SetApp(t.Context(), root, "shop", ipc.AppChange{Unit: &c.unit}); err != nil {
				t.Fatal(err)
			}
			run(t, h, "systemctl", "start", c.unit)
			waitFor(t, "the app answers", func() bool { return answers(ws) })
			cp, err := d.Create(t.Context(), root, "shop", ipc.CreateRequest{})
			if err != nil {
				t.Fatal(err)
			}
			if cp.Running == nil || !*cp.Running || cp.Healthy != nil {
				t.Errorf("running %v, healthy %v", cp.Running, cp.Healthy)
			}
			putServer(t, ws, c.serve)
			h.Exec("systemctl", "restart", c.unit) // it may well fail
			waitFor(t, c.active, func() bool {
				out, _ := h.Exec("systemctl", "is-active", c.unit)
				return strings.TrimSpace(string(out)) == c.active
			})
			res := goBack(t, d, cp.ID, ipc.RollbackRequest{})
			waitFor(t, "the app answers", func() bool { return answers(ws) })
			if s := stage(res, ipc.StageStart); s.Status != ipc.StageOK || state(t, d) != "running" {
				t.Errorf("start: %+v, the unit is %s", s, state(t, d))
			}
			if s := stage(res, ipc.StageStop); strings.Contains(s.Notes, "stopped") {
				t.Errorf("it was not running: %+v", s)
			}
			if safety := res.SafetyCheckpoint; safety.Running == nil || *safety.Running {
				t.Errorf("the safety checkpoint says running: %v", safety.Running)
			}
			run(t, h, "systemctl", "stop", c.unit)
		})
	}
}

// testStoppedOnPurpose goes back with a unit that a person stopped: it stays down, and
// the receipt says so, unless the request says otherwise.
func testStoppedOnPurpose(t *testing.T) {
	t.Parallel()
	h := systemdtest.Boot(t)
	ws := workspace(t)
	putServer(t, ws, server)
	h.WriteUnit(t, "shop.service", serviceText(ws, ""))
	run(t, h, "systemctl", "start", "shop.service")
	d := openHost(t, h)
	if _, err := d.AddApp(t.Context(), root, ipc.App{Slug: "shop", Workspace: ws, Unit: "shop.service"}); err != nil {
		t.Fatal(err)
	}
	cp, err := d.Create(t.Context(), root, "shop", ipc.CreateRequest{})
	if err != nil {
		t.Fatal(err)
	}
	yes, no := true, false
	for _, c := range []struct {
		name  string
		stop  bool
		start *bool
		want  string
	}{
		{"stopped", true, nil, "stopped"}, {"stopped, and asked for", true, &yes, "running"},
		{"running, and not asked for", false, &no, "stopped"}, {"stopped by that", false, nil, "stopped"}, {"asked for again", false, &yes, "running"},
	} {
		if c.stop {
			run(t, h, "systemctl", "stop", "shop.service")
		}
		before := state(t, d)
		res := goBack(t, d, cp.ID, ipc.RollbackRequest{Start: c.start})
		start := stage(res, ipc.StageStart)
		if got := state(t, d); got != c.want {
			t.Errorf("%s: the unit is %s, want %s: %+v", c.name, got, c.want, start)
		}
		told := strings.Contains(strings.Join(res.Warnings, "\n"), "down") && start.Status == ipc.StageSkipped && strings.Contains(start.Notes, "down")
		if told != (c.want == "stopped") {
			t.Errorf("%s: start-unit says %+v, the warnings %q", c.name, start, res.Warnings)
		}
		if s := stage(res, ipc.StageStop); strings.Contains(s.Notes, "shop.service stopped") != (before == "running") {
			t.Errorf("%s: it was %s: %+v", c.name, before, s)
		}
	}
}

// TestRescueOfCommand breaks the command of an app that the daemon runs itself, until
// it is given up, and in the middle of its restarts.
func TestRescueOfCommand(t *testing.T) {
	for want, program := range map[string]string{
		"failed":  broken,                     // given up
		"stopped": "#!/no/such/interpreter\n", // between two restarts, of which none runs, not even for a moment
	} {
		t.Run(want, func(t *testing.T) {
			t.Parallel()
			w := world{dir: worldDir(t)}
			putServer(t, w.ws(), server)
			d := w.open(t)
			defer w.close(t, d)
			health := &ipc.Health{Command: []string{"/bin/sh", "-c", "test -S answer.sock && grep -q exec serve.sh"}, Timeout: "20s"}
			if _, err := d.AddApp(t.Context(), root, ipc.App{Slug: "shop", Workspace: w.ws(), Run: []string{"./serve.sh"}, Health: health}); err != nil {
				t.Fatal(err)
			}
			waitFor(t, "the app answers", func() bool { return answers(w.ws()) })
			var cp ipc.Checkpoint
			waitFor(t, "a checkpoint says that the app runs and is well", func() bool { // the app has two seconds to say so
				var err error
				cp, err = d.Create(t.Context(), root, "shop", ipc.CreateRequest{})
				check(t, err)
				return cp.Running != nil && *cp.Running && cp.Healthy != nil && *cp.Healthy
			})
			waitFor(t, "the app answers", func() bool { return answers(w.ws()) })
			putServer(t, w.ws(), program)
			sh(t, `kill -9 $(pgrep -f "answer.sock" | while read p; do [ "$(readlink /proc/$p/cwd)" = "$1" ] && echo $p; done)`, w.ws())
			waitFor(t, want, func() bool { return state(t, d) == want })
			res := goBack(t, d, cp.ID, ipc.RollbackRequest{})
			waitFor(t, "the app answers", func() bool { return answers(w.ws()) }) // to its health check, it may be up a little earlier
			if got := state(t, d); got != "running" {
				t.Errorf("the app is %s: %+v", got, res.Stages)
			}
			if s := stage(res, ipc.StageStop); strings.Contains(s.Notes, "shop stopped") {
				t.Errorf("it was not running: %+v", s)
			}
			if safety := res.SafetyCheckpoint; safety.Running == nil || *safety.Running || safety.Healthy == nil || *safety.Healthy {
				t.Errorf("the safety checkpoint says running %v, healthy %v", safety.Running, safety.Healthy)
			}
		})
	}
}

// TestRescueAfterCut has operations that are cut short while the app is stopped, and an app that cannot be started any more. The next daemon ends the
// operation, and says that the app does not start. The rollback that it is asked for at once takes the app back.
func TestRescueAfterCut(t *testing.T) {
	const noStart = "#!/no/such/interpreter\n"
	killed := func(do, step string) func(*testing.T, *round) {
		return func(t *testing.T, r *round) {
			r.plan = fate{State: r.state(), Do: do, Target: r.first, Kind: step}
			if _, _, killed := r.victim(t, 1, 0); !killed {
				t.Fatalf("there is no step %q", step)
			}
			putServer(t, r.ws(), noStart)
		}
	}
	for name, c := range map[string]struct {
		cut  func(*testing.T, *round)
		ends string
	}{
		"create":             {killed("create", "capture files"), "a checkpoint that was cut short was dropped"},
		"rollback before it": {killed("rollback", "plan switching"), "was called off before it changed anything"},
		"rollback that is undone": {func(t *testing.T, r *round) {
			d := r.failing(t, func(step string) error {
				if step == "commit files" || step == "undo files" {
					return errors.New("the test lets it fail")
				}
				return nil
			})
			defer r.close(t, d)
			waitFor(t, "the app answers", func() bool { return answers(r.ws()) })
			putServer(t, r.ws(), noStart) // of which what runs takes no notice
			if _, err := d.Rollback(t.Context(), root, "shop", r.first, ipc.RollbackRequest{}, nil); err == nil {
				t.Error("the rollback did not fail")
			}
		}, "was undone"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := &round{world: world{dir: worldDir(t)}}
			putServer(t, r.ws(), server)
			d := r.open(t)
			_, err := d.AddApp(t.Context(), root, ipc.App{Slug: "shop", Workspace: r.ws(), Run: []string{"./serve.sh"}})
			check(t, err)
			waitFor(t, "the app answers", func() bool { return answers(r.ws()) })
			r.first = create(t, d)
			r.close(t, d)
			c.cut(t, r)
			d = r.open(t)
			defer r.close(t, d)
			goBack(t, d, r.first, ipc.RollbackRequest{})
			waitFor(t, "the app answers", func() bool { return answers(r.ws()) })
			said := strings.Join(d.Status(root).Recovered, "\n")
			if !strings.Contains(said, c.ends+", and the app could not be started: ") || !strings.Contains(said, "no such file") {
				t.Errorf("the daemon says %q", said)
			}
		})
	}
}
