package systemd_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"mulligan/errs"
	"mulligan/systemd"
	"mulligan/systemd/systemdtest"
	"mulligan/testkit"
)

const patience = testkit.Patience

// setup boots a systemd and connects to it.
func setup(t *testing.T) (context.Context, *systemdtest.Host, *systemd.Manager) {
	t.Helper()
	h := systemdtest.Boot(t)
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	t.Cleanup(cancel)
	m, err := systemd.Connect(ctx, systemd.Options{Address: h.Address})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return ctx, h, m
}

// until looks at u until ok says so of what it sees.
func until(t *testing.T, u systemd.Unit, what string, ok func(systemd.Status) bool) systemd.Status {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		st := state(t, u)
		if ok(st) {
			return st
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("%s: not %s: %+v", u.Name(), what, st)
		}
	}
}

// timeout is a context whose deadline passes when the test cancels the context in it.
type timeout struct{ context.Context }

func (c timeout) Err() error {
	if c.Context.Err() != nil {
		return context.DeadlineExceeded
	}
	return nil
}

// outOfTime calls f with a context whose deadline passes as soon as the unit is in the state.
func outOfTime(t *testing.T, u systemd.Unit, state string, f func(context.Context) error) error {
	t.Helper()
	ctx, pass := context.WithCancel(t.Context())
	defer pass()
	done := make(chan error, 1)
	go func() { done <- f(timeout{ctx}) }()
	until(t, u, state, func(s systemd.Status) bool { return s.Active == state })
	pass()
	return <-done
}

func state(t *testing.T, u systemd.Unit) systemd.Status {
	t.Helper()
	st, err := u.State(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return st
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// wantErr checks an error's kind and words of its text and hint.
func wantErr(t *testing.T, err error, kind errs.Kind, words ...string) {
	t.Helper()
	if errs.KindOf(err) != kind {
		t.Fatalf("got %v, of kind %q; want kind %q", err, errs.KindOf(err), kind)
	}
	all := err.Error() + " | " + errs.HintOf(err)
	for _, w := range words {
		if !strings.Contains(all, w) {
			t.Errorf("%q is missing in: %s", w, all)
		}
	}
	if strings.Contains(all, "\n") {
		t.Errorf("more than one line: %s", all)
	}
}

func TestStartStop(t *testing.T) {
	ctx, h, m := setup(t)
	h.WriteUnit(t, "shop.service", "[Service]\nType=exec\nExecStart=/bin/sleep 1000\n")
	u := m.Unit("shop.service")
	before := time.Now()
	if st := state(t, u); st.Active != "inactive" || st.Running() || st.MainPID != 0 {
		t.Errorf("at first: %+v", st)
	}
	must(t, u.Stop(ctx)) // down already
	must(t, u.Start(ctx))
	first := state(t, u)
	if !first.Running() || first.Sub != "running" || first.MainPID == 0 || first.Since.Before(before) {
		t.Errorf("after the start: %+v", first)
	}
	must(t, u.Start(ctx)) // up already
	if again := state(t, u); again.MainPID != first.MainPID {
		t.Errorf("a second start made another process: %+v, then %+v", first, again)
	}
	must(t, u.Stop(ctx))
	if st := state(t, u); st.Active != "inactive" || st.MainPID != 0 || st.Result != "success" {
		t.Errorf("after the stop: %+v", st)
	}
	if _, err := h.Exec("ps", "-p", fmt.Sprint(first.MainPID)); err == nil {
		t.Error("the process still runs")
	}
}

// TestManyStarts goes over systemd's limit of 5 starts in 10 s, as a row of rollbacks may.
func TestManyStarts(t *testing.T) {
	ctx, h, m := setup(t)
	h.WriteUnit(t, "shop.service", "[Service]\nType=exec\nExecStart=/bin/sleep 1000\n")
	u := m.Unit("shop.service")
	for i := range 12 {
		if err := u.Start(ctx); err != nil {
			t.Fatalf("start %d: %v", i, err)
		}
		if err := u.Stop(ctx); err != nil {
			t.Fatalf("stop %d: %v", i, err)
		}
	}
}

func TestStartErrors(t *testing.T) {
	ctx, h, m := setup(t)
	units := map[string]string{
		"exits.service":     "[Service]\nType=notify\nExecStart=/bin/sh -c 'exit 7'\n",
		"signal.service":    "[Service]\nType=notify\nExecStart=/bin/sh -c 'kill -ABRT $$$$'\n",
		"again.service":     "[Service]\nType=notify\nRestart=always\nRestartSec=600\nExecStart=/bin/sh -c 'exit 9'\n",
		"gone.service":      "[Service]\nType=notify\nExecStart=/bin/true\n",
		"nobinary.service":  "[Service]\nType=exec\nExecStart=/no/such/program\n",
		"condition.service": "[Unit]\nConditionPathExists=/no/such/file\n[Service]\nExecStart=/bin/sleep 1000\n",
		"needs.service":     "[Unit]\nRequires=exits.service\nAfter=exits.service\n[Service]\nExecStart=/bin/sleep 1000\n",
		"bad.service":       "[Service]\nType=exec\n",
		"manual.service":    "[Unit]\nRefuseManualStart=yes\n[Service]\nExecStart=/bin/sleep 1000\n",
		"masked.service":    "[Service]\nExecStart=/bin/sleep 1000\n",
	}
	for name, text := range units {
		must(t, os.WriteFile(h.UnitDir+"/"+name, []byte(text), 0o644))
	}
	must(t, os.Remove(h.UnitDir+"/masked.service"))
	must(t, os.Symlink("/dev/null", h.UnitDir+"/masked.service"))
	must(t, m.Reload(ctx))
	for _, c := range []struct {
		unit  string
		kind  errs.Kind
		words []string
	}{
		{"exits.service", errs.Failed, []string{"start exits.service", "exit-code", "exit status 7", "journalctl -u exits.service"}},
		{"signal.service", errs.Failed, []string{"signal 6", "journalctl -u signal.service"}},
		{"again.service", errs.Failed, []string{"exit status 9", "activating"}},
		{"gone.service", errs.Failed, []string{"protocol", "exit status 0"}},
		{"nobinary.service", errs.Failed, []string{"exit status 203", "journalctl -u nobinary.service"}},
		{"condition.service", errs.Failed, []string{"condition"}},
		{"needs.service", errs.Failed, []string{"dependency"}},
		{"bad.service", errs.Failed, []string{"bad.service", "journalctl"}},
		{"manual.service", errs.Failed, []string{"manual.service"}},
		{"masked.service", errs.Failed, []string{"masked", "systemctl unmask masked.service"}},
		{"unknown.service", errs.NotFound, []string{"unknown.service"}},
	} {
		t.Run(c.unit, func(t *testing.T) {
			err := m.Unit(c.unit).Start(ctx)
			t.Log(err, "|", errs.HintOf(err))
			wantErr(t, err, c.kind, c.words...)
		})
	}
}

func TestUnknownAndMasked(t *testing.T) {
	ctx, h, m := setup(t)
	must(t, os.Symlink("/dev/null", h.UnitDir+"/masked.service"))
	h.WriteUnit(t, "plain.service", "[Service]\nExecStart=/bin/sleep 1000\n")
	for name, want := range map[string]bool{"plain.service": true, "masked.service": true, "unknown.service": false} {
		if got, err := m.Exists(ctx, name); err != nil || got != want {
			t.Errorf("Exists(%s) = %v, %v", name, got, err)
		}
	}
	unknown := m.Unit("unknown.service")
	_, err := unknown.State(ctx)
	wantErr(t, err, errs.NotFound, "unknown.service")
	wantErr(t, unknown.Stop(ctx), errs.NotFound, "unknown.service")
	must(t, m.Unit("masked.service").Stop(ctx))
}

func TestOneshot(t *testing.T) {
	ctx, h, m := setup(t)
	h.WriteUnit(t, "once.service", "[Service]\nType=oneshot\nExecStart=/bin/true\n")
	h.WriteUnit(t, "app.target", "[Unit]\nDescription=a group\n")
	must(t, m.Unit("once.service").Start(ctx))
	group := m.Unit("app.target")
	must(t, group.Start(ctx))
	if !state(t, group).Running() {
		t.Errorf("%+v", state(t, group))
	}
	must(t, group.Stop(ctx))
}

func TestStubborn(t *testing.T) {
	ctx, h, m := setup(t)
	h.WriteUnit(t, "mule.service", "[Service]\nType=notify\nNotifyAccess=all\nTimeoutStopSec=600\n"+
		`ExecStart=/bin/sh -c 'trap "" TERM; systemd-notify --ready; while :; do sleep 1000; done'`+"\n")
	u := m.Unit("mule.service")
	must(t, u.Start(ctx))
	pid := state(t, u).MainPID

	wantErr(t, outOfTime(t, u, "deactivating", u.Stop), errs.Failed, "stop mule.service", "still deactivating",
		fmt.Sprintf("pid %d (/bin/sh -c", pid), "kill --signal=SIGKILL mule.service")
	if st := state(t, u); st.Active != "deactivating" || st.MainPID != pid {
		t.Errorf("lost track: %+v", st)
	}

	left, leave := context.WithCancel(ctx)
	leave()
	wantErr(t, u.Stop(left), errs.Unavailable, "stop mule.service")

	done := make(chan error, 1)
	go func() { done <- u.Stop(ctx) }() // joins the stop that is under way
	if out, err := h.Exec("systemctl", "kill", "--signal=SIGKILL", "mule.service"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	must(t, <-done)
	if st := state(t, u); st.MainPID != 0 || st.Running() {
		t.Errorf("after the stop: %+v", st)
	}
}

func TestLeftovers(t *testing.T) {
	t.Parallel()
	ctx, h, m := setup(t)
	h.WriteUnit(t, "litter.service", "[Service]\nType=forking\nKillMode=process\nExecStart=/bin/sh -c '/bin/sleep 1234 & /bin/sleep 1000 & exit 0'\n")
	u := m.Unit("litter.service")
	must(t, u.Start(ctx))
	wantErr(t, u.Stop(ctx), errs.Failed, "left processes", "/bin/sleep 1", "KillMode=control-group")

	done := make(chan error, 1)
	go func() { done <- u.Stop(ctx) }()
	if out, err := h.Exec("pkill", "-x", "sleep"); err != nil { // in the instance's own pid namespace
		t.Fatalf("%v: %s", err, out)
	}
	must(t, <-done)
}

func TestRestartAlways(t *testing.T) {
	ctx, h, m := setup(t)
	h.WriteUnit(t, "phoenix.service", "[Service]\nType=exec\nRestart=always\nRestartSec=100ms\nExecStart=/bin/sleep 1000\n")
	h.WriteUnit(t, "waiting.service", "[Service]\nType=exec\nRestart=always\nRestartSec=600\nExecStart=/bin/sleep 1000\n")
	u := m.Unit("phoenix.service")
	must(t, u.Start(ctx))
	pid := state(t, u).MainPID
	kill := func(pid int) {
		t.Helper()
		if out, err := h.Exec("kill", "-KILL", fmt.Sprint(pid)); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	kill(pid)
	until(t, u, "restarted", func(s systemd.Status) bool { return s.Restarts == 1 && s.Running() && s.MainPID != pid })
	must(t, u.Stop(ctx))
	if st := state(t, u); st.Active != "inactive" || st.Sub != "dead" {
		t.Errorf("after the stop: %+v", st)
	}

	w := m.Unit("waiting.service")
	must(t, w.Start(ctx))
	kill(state(t, w).MainPID)
	until(t, w, "waiting for its restart", func(s systemd.Status) bool { return s.Sub == "auto-restart" })
	must(t, w.Stop(ctx))
	if st := state(t, w); st.Running() || st.Sub == "auto-restart" {
		t.Errorf("after the stop: %+v", st)
	}
}

func TestStartsAtOnce(t *testing.T) {
	ctx, h, m := setup(t)
	h.WriteUnit(t, "shop.service", "[Service]\nType=exec\nExecStartPre=/bin/sleep 0.2\nExecStart=/bin/sleep 1000\n")
	for range 3 {
		both(t, func() error { return m.Unit("shop.service").Start(ctx) })
		if !state(t, m.Unit("shop.service")).Running() {
			t.Error("not up")
		}
		both(t, func() error { return m.Unit("shop.service").Stop(ctx) })
	}
}

func both(t *testing.T, f func() error) {
	t.Helper()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if err := f(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

// TestOvertaken stops a unit while it starts: the start says that it did not happen.
func TestOvertaken(t *testing.T) {
	ctx, h, m := setup(t)
	h.WriteUnit(t, "slow.service", "[Service]\nType=notify\nExecStart=/bin/sleep 1000\n")
	u := m.Unit("slow.service")
	done := make(chan error, 1)
	go func() { done <- u.Start(ctx) }()
	until(t, u, "starting", func(s systemd.Status) bool { return s.Active == "activating" })
	must(t, u.Stop(ctx))
	wantErr(t, <-done, errs.Conflict, "start slow.service", "another systemd job")

	wantErr(t, outOfTime(t, u, "activating", u.Start), errs.Failed, "still activating", "journalctl -u slow.service")
	must(t, u.Stop(ctx))
}

func TestLostConnection(t *testing.T) {
	ctx, h, m := setup(t)
	gate := h.RunDir + "/gate"
	h.WriteUnit(t, "gated.service", "[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=/bin/sh -c 'read x < /run/gate'\n")
	if out, err := h.Exec("mkfifo", "/run/gate"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	restart := func() {
		t.Helper()
		if out, err := h.Exec("systemctl", "restart", "dbus.service"); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	u := m.Unit("gated.service")
	restart() // between calls
	if st := state(t, u); st.Active != "inactive" {
		t.Errorf("%+v", st)
	}
	done := make(chan error, 1)
	go func() { done <- u.Start(ctx) }()
	until(t, u, "starting", func(s systemd.Status) bool { return s.Active == "activating" })
	restart() // in the middle of a wait
	must(t, os.WriteFile(gate, []byte("go\n"), 0))
	must(t, <-done)
	if !state(t, u).Running() {
		t.Errorf("%+v", state(t, u))
	}
}

// TestReexec has the manager execute itself anew while somebody waits for a job.
func TestReexec(t *testing.T) {
	ctx, h, m := setup(t)
	h.WriteUnit(t, "gated.service", "[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=/bin/sh -c 'read x < /run/gate'\n")
	if out, err := h.Exec("mkfifo", "/run/gate"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	u := m.Unit("gated.service")
	done := make(chan error, 1)
	go func() { done <- u.Start(ctx) }()
	until(t, u, "starting", func(s systemd.Status) bool { return s.Active == "activating" })
	if out, err := h.Exec("systemctl", "daemon-reexec"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	must(t, os.WriteFile(h.RunDir+"/gate", []byte("go\n"), 0))
	must(t, <-done)
}

func TestUnavailable(t *testing.T) {
	_, err := systemd.Connect(t.Context(), systemd.Options{Address: "unix:path=" + t.TempDir() + "/none"})
	wantErr(t, err, errs.Unavailable, "connect to systemd", "does systemd run this host")
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	t.Setenv("DBUS_SESSION_BUS_ADDRESS", "")
	_, err = systemd.Connect(t.Context(), systemd.Options{User: true})
	wantErr(t, err, errs.Unavailable, "XDG_RUNTIME_DIR")
}

// TestDeaf connects to something that listens and never answers.
func TestDeaf(t *testing.T) {
	path := t.TempDir() + "/bus"
	l, err := net.Listen("unix", path)
	must(t, err)
	defer l.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err = systemd.Connect(ctx, systemd.Options{Address: "unix:path=" + path})
	wantErr(t, err, errs.Unavailable)
}

func TestClosed(t *testing.T) {
	ctx, _, m := setup(t)
	must(t, m.Close())
	must(t, m.Close())
	_, err := m.Unit("shop.service").State(ctx)
	wantErr(t, err, errs.Unavailable, "closed")
}
