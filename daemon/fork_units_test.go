package daemon_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mulligan/daemon"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/systemd"
	"mulligan/systemd/systemdtest"
	"mulligan/testkit"
)

// TestForksOfUnits forks an app that a unit runs, whose port and path are fixed: twice, and one of the forks again. Each serves its own
// page; one is kept; the daemon ends and comes back under the others; after the files of the units are gone, as after a reboot, a fork
// starts again; dropped, nothing of them is left.
func TestForksOfUnits(t *testing.T) {
	testkit.Need(t, "python3")
	h := systemdtest.Boot(t)
	around := workspace(t)
	ws := filepath.Join(around, "shop")
	if err := os.Mkdir(ws, 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, ws, "page", "zero")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	l.Close()
	address := fmt.Sprintf("127.0.0.1:%d", port)
	h.WriteUnit(t, "shop.service", fmt.Sprintf("[Service]\nExecStart=python3 -m http.server --bind 127.0.0.1 -d %s %d\nWorkingDirectory=%[1]s\n", ws, port))
	run(t, h, "systemctl", "start", "shop.service")
	opt := daemon.Options{
		StateDir: filepath.Join(t.TempDir(), "state"), BusAddress: h.Address, BusRoot: h.Root(), StopTimeout: 10 * time.Second,
	}
	d := openForks(t, opt)
	if _, err := d.AddApp(t.Context(), root, ipc.App{Slug: "shop", Workspace: ws, Unit: "shop.service",
		Health: &ipc.Health{URL: "http://" + address + "/page"}}); err != nil {
		t.Fatal(err)
	}
	says := func(address, want string) {
		t.Helper()
		got := ""
		testkit.Eventually(t, address+" says "+want+", and not "+got, func() bool {
			got = page(address)
			return got == want
		})
	}
	says(address, "zero")
	made, err := d.Fork(t.Context(), root, "shop", ipc.ForkRequest{Count: 2})
	if err != nil {
		t.Fatalf("%v\n%s", err, h.Journal("*"))
	}
	var forks []ipc.App
	for i, f := range made.Forks {
		write(t, f.Workspace, "page", fmt.Sprintf("try %d", i+1))
		says(f.Fork.Ports[0].Address, fmt.Sprintf("try %d", i+1))
		forks = append(forks, f)
	}
	again, err := d.Fork(t.Context(), root, made.Forks[0].Slug, ipc.ForkRequest{})
	if err != nil {
		t.Fatal(err)
	}
	says(again.Forks[0].Fork.Ports[0].Address, "try 1")
	write(t, again.Forks[0].Workspace, "page", "try 1 again")
	says(again.Forks[0].Fork.Ports[0].Address, "try 1 again")
	says(forks[0].Fork.Ports[0].Address, "try 1")
	says(address, "zero")

	if _, err := d.KeepFork(t.Context(), root, "shop", "2", ipc.KeepRequest{}); err != nil {
		t.Fatal(err)
	}
	says(address, "try 2")
	if err := d.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	d = openForks(t, opt)
	defer func() {
		if err := d.Close(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	says(forks[0].Fork.Ports[0].Address, "try 1")
	a, err := d.App(t.Context(), root, forks[0].Slug)
	if err != nil || a.State != "running" {
		t.Errorf("after a restart of the daemon, the fork is %s, %v", a.State, err)
	}

	run(t, h, "systemctl", "stop", a.Unit)
	run(t, h, "sh", "-c", "rm -r /run/systemd/system/"+strings.TrimSuffix(a.Unit, ".service")+"*")
	run(t, h, "systemctl", "daemon-reload")
	if err := d.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	d = openForks(t, opt)
	run(t, h, "systemctl", "start", a.Unit)
	says(forks[0].Fork.Ports[0].Address, "try 1")

	if err := d.DropFork(t.Context(), root, made.Forks[0].Slug, again.Forks[0].Fork.Name); err != nil {
		t.Fatal(err)
	}
	if err := d.DropFork(t.Context(), root, "shop", "1"); err != nil {
		t.Fatal(err)
	}
	if left, _ := filepath.Glob(h.Root() + "/run/systemd/system/" + systemd.CopyPrefix + "*"); len(left) > 0 {
		t.Errorf("left are %q", left)
	}
	if out, err := h.Exec("systemctl", "list-units", "--all", "--plain", "--no-legend", systemd.CopyPrefix+"*"); err != nil || strings.TrimSpace(string(out)) != "" {
		t.Errorf("units are left: %s, %v", out, err)
	}
	if left, _ := filepath.Glob(around + "/*"); len(left) != 2 { // the workspace, and workspace's own file
		t.Errorf("left are %q", left)
	}
	says(address, "try 2")
}

// An app whose unit writes outside of the workspace is not forked, and nothing is made.
func TestUnitThatForksWouldShare(t *testing.T) {
	h := systemdtest.Boot(t)
	ws := workspace(t)
	h.WriteUnit(t, "shop.service", "[Service]\nExecStart=/bin/sleep 1000\nStateDirectory=shop\nWorkingDirectory="+ws+"\n")
	d := openHost(t, h)
	if _, err := d.AddApp(t.Context(), root, ipc.App{Slug: "shop", Workspace: ws, Unit: "shop.service"}); err != nil {
		t.Fatal(err)
	}
	_, err := d.Fork(t.Context(), root, "shop", ipc.ForkRequest{})
	if err == nil || !strings.Contains(err.Error(), "StateDirectory") || errs.HintOf(err) == "" {
		t.Errorf("a fork of a unit with a state folder: %v", err)
	}
	if list, err := d.Checkpoints(t.Context(), root, "shop", ipc.CheckpointQuery{}); err != nil || len(list.Checkpoints) != 0 {
		t.Errorf("a refused fork made %+v, %v", list, err)
	}
}

func openForks(t *testing.T, opt daemon.Options) *daemon.Daemon {
	t.Helper()
	d, err := daemon.Open(t.Context(), opt)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// page asks a web server for the file page; "" if it does not answer.
func page(address string) string {
	res, err := http.Get("http://" + address + "/page")
	if err != nil {
		return ""
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		return ""
	}
	return string(b)
}
