package systemd_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"mulligan/errs"
	"mulligan/systemd"
	"mulligan/testkit"
)

// TestMain makes this binary also the service that the tests start.
func TestMain(m *testing.M) {
	role := map[string]func() error{
		"notify": notifyRole, "activated": activatedRole, "watchdog": watchdogRole, "outsider": outsiderRole, "inside": insideRole,
	}[os.Getenv("TEST_ROLE")]
	if role == nil {
		os.Exit(m.Run())
	}
	if err := role(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// roleUnit is a service that runs this binary in a role; arg reaches it as TEST_ARG.
func roleUnit(role, arg, more string) string {
	return fmt.Sprintf("[Service]\nType=notify\nExecStart=%s\nEnvironment=TEST_ROLE=%s TEST_ARG=%s\n%s\n", os.Args[0], role, arg, more)
}

// notifyRole is ready when somebody writes to the fifo.
func notifyRole() error {
	if _, err := os.ReadFile(os.Getenv("TEST_ARG")); err != nil {
		return err
	}
	if err := errors.Join(systemd.ReportStatus("open for business"), systemd.Ready()); err != nil {
		return err
	}
	select {}
}

func TestNotify(t *testing.T) {
	ctx, h, m := setup(t)
	if out, err := h.Exec("mkfifo", "/run/gate"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	h.WriteUnit(t, "notify.service", roleUnit("notify", "/run/gate", ""))
	u := m.Unit("notify.service")
	done := make(chan error, 1)
	go func() { done <- u.Start(ctx) }()
	until(t, u, "running but not ready", func(s systemd.Status) bool { return s.Active == "activating" && s.MainPID != 0 })
	select {
	case err := <-done:
		t.Fatalf("the start was over before the service was ready: %v", err)
	default:
	}
	must(t, os.WriteFile(h.RunDir+"/gate", nil, 0))
	must(t, <-done)
	if !state(t, u).Running() {
		t.Errorf("%+v", state(t, u))
	}
	out, err := h.Exec("systemctl", "show", "-P", "StatusText", "notify.service")
	if err != nil || strings.TrimSpace(string(out)) != "open for business" {
		t.Errorf("status text %q (%v)", out, err)
	}
	must(t, u.Stop(ctx))
}

func TestNotifyWithoutManager(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	must(t, errors.Join(systemd.Ready(), systemd.Stopping()))
	t.Setenv("NOTIFY_SOCKET", t.TempDir()+"/none")
	wantErr(t, systemd.Ready(), errs.Unavailable, "notify systemd")
	t.Setenv("WATCHDOG_USEC", "many")
	wantErr(t, systemd.Watchdog(t.Context(), func() error { return nil }), errs.Invalid, "WATCHDOG_USEC")
}

// activatedRole answers each connection with the name of the socket it came in by.
func activatedRole() error {
	named, err := systemd.Listeners()
	if err != nil {
		return err
	}
	if again, err := systemd.Listeners(); err != nil || len(again) != 0 {
		return fmt.Errorf("given twice: %v, %v", again, err)
	}
	for name, list := range named {
		for _, l := range list {
			go func() {
				for {
					c, err := l.Accept()
					if err != nil {
						return
					}
					fmt.Fprintf(c, "%s %d\n", name, os.Getpid())
					c.Close()
				}
			}()
		}
	}
	if err := systemd.Ready(); err != nil {
		return err
	}
	select {}
}

func ask(path string) (string, error) {
	c, err := net.Dial("unix", path)
	if err != nil {
		return "", err
	}
	defer c.Close()
	return bufio.NewReader(c).ReadString('\n')
}

func TestSocketActivation(t *testing.T) {
	ctx, h, m := setup(t)
	for _, name := range []string{"web", "admin"} {
		h.WriteUnit(t, name+".socket", fmt.Sprintf("[Socket]\nListenStream=/run/%s.sock\nFileDescriptorName=%s\nService=act.service\n", name, name))
	}
	h.WriteUnit(t, "act.service", roleUnit("activated", "", "Sockets=web.socket admin.socket"))
	web, admin, u := m.Unit("web.socket"), m.Unit("admin.socket"), m.Unit("act.service")
	must(t, web.Start(ctx))
	must(t, admin.Start(ctx))
	if state(t, u).Running() {
		t.Error("the service is up before anybody connected")
	}
	first, err := ask(h.RunDir + "/web.sock")
	if err != nil || !strings.HasPrefix(first, "web ") {
		t.Fatalf("%q, %v", first, err)
	}
	if got, err := ask(h.RunDir + "/admin.sock"); err != nil || !strings.HasPrefix(got, "admin ") {
		t.Errorf("%q, %v", got, err)
	}

	// A stopped service stays stopped whoever knocks, and is back with its sockets.
	must(t, u.Stop(ctx))
	if got, err := ask(h.RunDir + "/web.sock"); err == nil {
		t.Errorf("a stopped service answered %q", got)
	}
	if st := state(t, u); st.Active != "inactive" {
		t.Errorf("it was started again: %+v", st)
	}
	must(t, u.Start(ctx))
	if !state(t, web).Running() || !state(t, admin).Running() {
		t.Error("the sockets are not back")
	}
	if got, err := ask(h.RunDir + "/web.sock"); err != nil || got == first {
		t.Errorf("%q, %v", got, err)
	}

	// Another process, which did not stop them, goes by what is enabled.
	must(t, u.Stop(ctx))
	h.WriteUnit(t, "web.socket", "[Socket]\nListenStream=/run/web.sock\nFileDescriptorName=web\nService=act.service\n[Install]\nWantedBy=sockets.target\n")
	if out, err := h.Exec("systemctl", "enable", "web.socket"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	other, err := systemd.Connect(ctx, systemd.Options{Address: h.Address})
	must(t, err)
	defer other.Close()
	must(t, other.Unit("act.service").Start(ctx))
	if !state(t, web).Running() {
		t.Error("the enabled socket is not back")
	}
}

// watchdogRole is alive as long as the file exists.
func watchdogRole() error {
	if err := systemd.Ready(); err != nil {
		return err
	}
	return systemd.Watchdog(context.Background(), func() error {
		_, err := os.Stat(os.Getenv("TEST_ARG"))
		return err
	})
}

func TestWatchdog(t *testing.T) {
	t.Parallel()
	ctx, h, m := setup(t)
	alive := h.RunDir + "/alive"
	must(t, os.WriteFile(alive, nil, 0o644))
	h.WriteUnit(t, "dog.service", roleUnit("watchdog", "/run/alive", "WatchdogSec=10s\nRestart=on-watchdog\nRestartSec=50ms\nTimeoutAbortSec=5"))
	u := m.Unit("dog.service")
	must(t, u.Start(ctx))
	started := state(t, u)
	// Several intervals on, it has not been touched.
	pings := func() uint64 {
		out, err := h.Exec("systemctl", "show", "-P", "WatchdogTimestampMonotonic", "dog.service")
		must(t, err)
		var n uint64
		_, err = fmt.Sscan(string(out), &n)
		must(t, err)
		return n
	}
	begin := pings()
	until(t, u, "pinged for five seconds", func(systemd.Status) bool { return pings() > begin+5_000_000 })
	if st := state(t, u); st.MainPID != started.MainPID || st.Restarts != 0 {
		t.Fatalf("it was restarted though it lives: %+v", st)
	}
	must(t, os.Remove(alive))
	until(t, u, "killed and restarted", func(s systemd.Status) bool { return s.Restarts > 0 && s.MainPID != 0 && s.MainPID != started.MainPID })
	must(t, u.Stop(ctx))
}

// outsiderRole starts a unit as somebody who may not, and prints the kind of the error.
func outsiderRole() error {
	ctx := context.Background()
	m, err := systemd.Connect(ctx, systemd.Options{Address: os.Getenv("TEST_ARG")})
	if err != nil {
		return err
	}
	defer m.Close()
	u := m.Unit("shop.service")
	if _, err := u.State(ctx); err != nil {
		return err
	}
	err = u.Start(ctx)
	fmt.Printf("%s: %v (%s)\n", errs.KindOf(err), err, errs.HintOf(err))
	return nil
}

func TestDenied(t *testing.T) {
	_, h, _ := setup(t)
	h.WriteUnit(t, "shop.service", "[Service]\nType=exec\nExecStart=/bin/sleep 1000\n")
	exe, err := os.ReadFile(os.Args[0]) // the build's folder is root's alone
	must(t, err)
	must(t, testkit.WriteProgram(h.RunDir+"/outsider", exe))
	cmd := exec.Command(h.RunDir + "/outsider")
	cmd.Dir = "/"
	cmd.Env = []string{"TEST_ROLE=outsider", "TEST_ARG=" + h.Address}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.HasPrefix(string(out), "denied: start shop.service") || !strings.Contains(string(out), "polkit") {
		t.Errorf("%v: %s", err, out)
	}
}

// insideRole drives a unit from where the manager is, in the ways that are usual there.
func insideRole() error {
	ctx := context.Background()
	for _, opts := range []systemd.Options{{}, {Address: "unix:path=/run/systemd/private"}} {
		m, err := systemd.Connect(ctx, opts)
		if err != nil {
			return err
		}
		defer m.Close()
		u := m.Unit("shop.service")
		if err := u.Start(ctx); err != nil {
			return err
		}
		st, err := u.State(ctx)
		if err != nil {
			return err
		}
		if err := u.Stop(ctx); err != nil {
			return err
		}
		fmt.Println(st.Active)
	}
	return nil
}

// TestInside uses the system's bus where it usually is, and the manager's private socket.
func TestInside(t *testing.T) {
	ctx, h, _ := setup(t)
	h.WriteUnit(t, "shop.service", "[Service]\nType=exec\nExecStart=/bin/sleep 1000\n")
	out, err := h.Command(ctx, "env", "-u", "DBUS_SYSTEM_BUS_ADDRESS", "TEST_ROLE=inside", os.Args[0]).CombinedOutput()
	if err != nil || string(out) != "active\nactive\n" {
		t.Errorf("%v: %s", err, out)
	}
}
