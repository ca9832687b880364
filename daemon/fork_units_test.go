package daemon_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
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

// testForksOfUnits forks an app that a unit runs, whose port and path are fixed: three times, and one of the forks again. Each serves its own
// page, of a folder that is copied: what the daemon mounts, this systemd would not see; one is kept; the daemon ends and comes back under the others; after the files of the units are gone, as after a reboot, a fork
// starts again; dropped, nothing of them is left.
func testForksOfUnits(t *testing.T) {
	t.Parallel()
	testkit.Need(t, "python3")
	h := systemdtest.Boot(t)
	around := workspace(t)
	ws := filepath.Join(around, "shop")
	if err := os.Mkdir(ws, 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, ws, "page", "zero")
	port := testkit.Port(t)
	address := fmt.Sprintf("127.0.0.1:%d", port)
	h.WriteUnit(t, "shop.service", fmt.Sprintf("[Service]\nExecStart=python3 -m http.server --bind 127.0.0.1 -d %s %d\nWorkingDirectory=%[1]s\n", ws, port))
	run(t, h, "systemctl", "start", "shop.service")
	opt := daemon.Options{
		StateDir: filepath.Join(t.TempDir(), "state"), BusAddress: h.Address, BusRoot: h.Root(), StopTimeout: 10 * time.Second, Steady: steady,
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
	made, err := d.Fork(t.Context(), root, "shop", ipc.ForkRequest{Count: 3})
	if err != nil {
		t.Fatalf("%v\n%s", err, h.Journal("*"))
	}
	var forks []ipc.App
	for i, f := range made.Forks {
		if f.Fork.Pinned != "" {
			t.Errorf("%s is mounted over %s", f.Slug, f.Fork.Pinned)
		}
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
	for _, fork := range []string{"1", "3"} {
		if err := d.DropFork(t.Context(), root, "shop", fork); err != nil {
			t.Fatal(err)
		}
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

// testForksOfUnitsWithServers forks an app that a unit runs and that has two Redis servers in its code: one by a port, the other by a
// socket. Each fork has servers of its own at both places; commands run inside of forks that run and of one that is stopped; one is
// kept; of the others nothing is left.
func testForksOfUnitsWithServers(t *testing.T) {
	t.Parallel()
	testkit.Need(t, "python3", "redis")
	h := systemdtest.Boot(t)
	around := workspace(t)
	ws := filepath.Join(around, "shop")
	if err := errors.Join(os.Mkdir(ws, 0o755), os.Chmod(around, 0o755)); err != nil { // the unit's user reads it
		t.Fatal(err)
	}
	port, served := testkit.Port(t), testkit.Port(t)
	sockets, err := os.MkdirTemp("/var/tmp", "mulligan-unit")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(sockets) })
	if err := os.Chmod(sockets, 0o755); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(sockets, "redis", "redis.sock") // in a folder of its own
	if err := os.Mkdir(filepath.Dir(socket), 0o755); err != nil {
		t.Fatal(err)
	}
	redisServer(t, "--port", fmt.Sprint(port))
	redisServer(t, "--port", "0", "--unixsocket", socket, "--unixsocketperm", "777")
	// Asked for /page, the app says what its file and its servers say; asked for anything else, it writes that to the servers.
	write(t, ws, "app.py", fmt.Sprintf(`
import http.server, subprocess
def ask(*words):
    return [subprocess.run(["redis-cli", *at, *words], capture_output=True, text=True).stdout.strip() for at in (["-p", "%d"], ["-s", "%s"])]
class App(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        word = self.path[1:]
        if word != "page":
            ask("SET", "word", word)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(" ".join([open("%s/file").read(), *ask("GET", "word")]).encode())
http.server.ThreadingHTTPServer(("127.0.0.1", %d), App).serve_forever()
`, port, socket, ws, served))
	write(t, ws, "file", "zero")
	h.WriteUnit(t, "shop.service", fmt.Sprintf("[Service]\nUser=nobody\nExecStart=python3 %s/app.py\nWorkingDirectory=%[1]s\n", ws))
	run(t, h, "systemctl", "start", "shop.service")
	opt := daemon.Options{
		StateDir: filepath.Join(sockets, "state"), BusAddress: h.Address, BusRoot: h.Root(), StopTimeout: 10 * time.Second, Steady: steady,
	}
	opt.Log = slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	d := openForks(t, opt)
	defer func() {
		if err := d.Close(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	parent := fmt.Sprintf("127.0.0.1:%d", served)
	if _, err := d.AddApp(t.Context(), root, ipc.App{Slug: "shop", Workspace: ws, Unit: "shop.service",
		Health: &ipc.Health{URL: "http://" + parent + "/page"},
		Databases: []ipc.Database{
			{Name: "byport", Driver: "redis", DSN: fmt.Sprintf("redis://127.0.0.1:%d", port)},
			{Name: "bysocket", Driver: "redis", DSN: "redis:///?socket=" + socket},
		}}); err != nil {
		t.Fatal(err)
	}
	says := func(address, want string) {
		t.Helper()
		got := ""
		testkit.Eventually(t, "the app says "+want, func() bool {
			got = page(address)
			return got == want
		})
	}
	visit := func(address, word string) {
		t.Helper()
		res, err := http.Get("http://" + address + "/" + word)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
	}
	says(parent, "zero  ")
	visit(parent, "first")
	made, err := d.Fork(t.Context(), root, "shop", ipc.ForkRequest{Count: 2})
	if err != nil {
		t.Fatalf("%v\n%s", err, h.Journal("*"))
	}
	for i, f := range made.Forks {
		address := f.Fork.Ports[0].Address
		says(address, "zero first first")
		visit(address, fmt.Sprintf("try%d", i+1))
		write(t, f.Workspace, "file", fmt.Sprint(i+1))
		says(address, fmt.Sprintf("%d try%[1]d try%[1]d", i+1))
	}
	says(parent, "zero first first")

	// Inside, a command sees the fork's file, servers and port, and the files that other commands and the app have in /tmp.
	command := fmt.Sprintf("cat %s/file; redis-cli -p %d GET word; redis-cli -s %s GET word; echo $(python3 -c 'import urllib.request; print(urllib.request.urlopen(\"http://%s/page\").read().decode())'); id -u; grep NoNewPrivs /proc/self/status",
		ws, port, socket, parent)
	inside := func(name string, running bool) {
		t.Helper()
		res, err := d.Compare(t.Context(), root, "shop", ipc.CompareRequest{Names: []string{name}, Command: []string{"sh", "-c", command}})
		if err != nil {
			t.Fatal(err)
		}
		c := res.Forks[0].Command
		want := fmt.Sprintf("%[1]stry%[1]s\ntry%[1]s\n", name)
		if running {
			want += fmt.Sprintf("%[1]s try%[1]s try%[1]s\n0\nNoNewPrivs:\t1\n", name)
		}
		if c == nil || c.Problem != "" || running && c.Output != want || !strings.HasPrefix(c.Output, want) {
			t.Errorf("inside of fork %s: %+v, want %q\n%s", name, c, want, h.Journal("*"))
		}
	}
	inside("1", true)
	inside("2", true)
	run(t, h, "systemctl", "stop", made.Forks[0].Unit)
	inside("1", false)
	if out, err := h.Exec("systemctl", "list-units", "--plain", "--no-legend", "--state=active", strings.TrimSuffix(made.Forks[0].Unit, ".service")+"*"); err != nil || strings.TrimSpace(string(out)) != "" {
		t.Errorf("after a command inside of a stopped fork, these run: %s, %v", out, err)
	}
	run(t, h, "systemctl", "start", made.Forks[0].Unit)
	says(made.Forks[0].Fork.Ports[0].Address, "1 try1 try1")
	inside("1", true)

	if _, err := d.KeepFork(t.Context(), root, "shop", "2", ipc.KeepRequest{}); err != nil {
		t.Fatal(err)
	}
	says(parent, "2 try2 try2")
	says(made.Forks[0].Fork.Ports[0].Address, "1 try1 try1")
	inside("1", true)
	if err := d.DropFork(t.Context(), root, "shop", "1"); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "no process has a folder of the forks mounted", func() bool { return len(mounters(opt.StateDir+"/apps/")) == 0 })
	if out, err := h.Exec("systemctl", "list-units", "--all", "--plain", "--no-legend", systemd.CopyPrefix+"*"); err != nil || strings.TrimSpace(string(out)) != "" {
		t.Errorf("units are left: %s, %v", out, err)
	}
	says(parent, "2 try2 try2")
}

// redisServer starts a Redis server, which ends with the test.
func redisServer(t *testing.T, args ...string) {
	t.Helper()
	cmd := exec.Command("redis-server", append([]string{"--save", "", "--dir", t.TempDir()}, args...)...)
	cmd.Stdout, cmd.Stderr = t.Output(), t.Output()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()         // its status says nothing
	})
	at := []string{"-p", args[1]}
	if len(args) > 2 {
		at = []string{"-s", args[3]}
	}
	testkit.Eventually(t, "Redis answers", func() bool {
		out, err := exec.Command("redis-cli", append(at, "PING")...).Output()
		return err == nil && strings.TrimSpace(string(out)) == "PONG"
	})
}

// mounters are the processes that see a mount of something in a folder.
func mounters(dir string) (pids []string) {
	list, _ := filepath.Glob("/proc/[0-9]*/mountinfo")
	for _, file := range list {
		if text, err := os.ReadFile(file); err == nil && strings.Contains(string(text), dir) { // else it has ended
			pids = append(pids, filepath.Base(filepath.Dir(file)))
		}
	}
	return pids
}

// An app whose unit writes outside of the workspace is not forked, and nothing is made.
func TestUnitThatForksWouldShare(t *testing.T) {
	t.Parallel()
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
