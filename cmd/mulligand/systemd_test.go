package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mulligan/ipc"
	"mulligan/systemd/systemdtest"
	"mulligan/testkit"
)

// installed is mulligan as a service of a booted host.
type installed struct {
	*systemdtest.Host
	t                *testing.T
	state, etc, apps string
}

// install puts the two programs and the units into a host, with folders of the test's own.
func install(t *testing.T) *installed {
	t.Helper()
	h := &installed{Host: systemdtest.Boot(t), t: t}
	state, err := os.MkdirTemp("/var/lib", "mulligan-test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(state) })
	h.state, h.etc = state, filepath.Join(h.RunDir, "mulligan-test", "etc")
	h.apps = filepath.Join(h.etc, "apps.d")
	if err := errors.Join(os.MkdirAll(h.apps, 0o755), os.WriteFile(filepath.Join(h.etc, "mulligand.toml"), []byte("log_level = 'debug'\n"), 0o644)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"mulligan", "mulligand"} {
		b, err := os.ReadFile(filepath.Join(bin, name))
		if err == nil {
			err = testkit.WriteProgram(filepath.Join(h.RunDir, "mulligan-test", name), b)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, unit := range []string{"mulligand.socket", "mulligand.service"} {
		b, err := os.ReadFile(filepath.Join("systemd", unit))
		if err != nil {
			t.Fatal(err)
		}
		h.WriteUnit(t, unit, strings.NewReplacer(
			"ExecStart=@BINDIR@/mulligand", "ExecStart=/run/mulligan-test/mulligand --config /run/mulligan-test/etc/mulligand.toml --state-dir "+state,
			"StateDirectory=mulligan", "StateDirectory="+filepath.Base(state),
			"ConfigurationDirectory=mulligan\n", "",
		).Replace(string(b)))
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(h.Journal("mulligand.service"))
		}
		_, _ = h.Exec("systemctl", "stop", "mulligand.socket", "mulligand.service") // else state is written to while it is removed
	})
	h.do("systemctl", "start", "mulligand.socket")
	return h
}

func (h *installed) do(cmd ...string) string {
	h.t.Helper()
	out, err := h.Exec(cmd...)
	if err != nil {
		h.t.Fatalf("%s: %v\n%s", strings.Join(cmd, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

func (h *installed) mulligan(args ...string) string {
	h.t.Helper()
	return h.do(append([]string{"/run/mulligan-test/mulligan"}, args...)...)
}

func (h *installed) status() (st ipc.Status) {
	h.t.Helper()
	if err := json.Unmarshal([]byte(h.mulligan("status", "--json")), &st); err != nil {
		h.t.Fatal(err)
	}
	return st
}

// again waits until another daemon than the one with that status is up. Whoever
// asks before may still be answered by that one.
func (h *installed) again(before ipc.Status) {
	h.t.Helper()
	h.until("another daemon is up", func() bool {
		out := h.do("systemctl", "show", "-p", "ActiveState", "--value", "mulligand.service")
		return out == "active" && h.status().PID != before.PID
	})
}

// until waits for what happens by itself.
func (h *installed) until(what string, ok func() bool) {
	h.t.Helper()
	for deadline := time.Now().Add(testkit.Patience); !ok(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			h.t.Fatalf("in vain: waited until %s", what)
		}
	}
}

// TestService takes the units through a service's life: started by its socket,
// started again in the middle of a rollback, killed, stopped.
func TestService(t *testing.T) {
	t.Parallel()
	h := install(t)
	if out, err := h.Exec("systemctl", "is-active", "mulligand.service"); err == nil {
		t.Errorf("before anybody asked it is %s", out)
	}
	first := h.status()
	if first.Mode != "host" || first.StateDir != h.state || h.do("systemctl", "is-active", "mulligand.service") != "active" {
		t.Errorf("%+v", first)
	}
	if st, err := os.Stat(h.state); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("state folder: %v, %v", st.Mode(), err)
	}
	if out := h.do("systemctl", "show", "-p", "WatchdogUSec,Type", "mulligand.service"); !strings.Contains(out, "WatchdogUSec=1min") || !strings.Contains(out, "Type=notify") {
		t.Error(out)
	}

	ws, err := os.MkdirTemp("/var/tmp", "mulligan-ws")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(ws)
	file := filepath.Join(ws, "file")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("good")
	// Stopping takes until somebody lets it: the rollback is in the middle meanwhile.
	slow := ws + ".go"
	defer os.Remove(slow)
	h.WriteUnit(t, "shop.service", "[Service]\nExecStart=/bin/sleep 10000\nExecStop=/bin/sh -c 'touch "+ws+".stopping; until [ -e "+slow+" ]; do sleep 0.05; done'\n")
	defer os.Remove(ws + ".stopping")
	h.do("systemctl", "start", "shop.service")
	h.mulligan("app", "add", "--slug", "shop", "--dir", ws, "--unit", "shop.service")
	var cp ipc.Checkpoint
	if err := json.Unmarshal([]byte(h.mulligan("--app", "shop", "create", "--quiesce", "none", "--json")), &cp); err != nil {
		t.Fatal(err)
	}
	write("bad")
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	client := h.Command(ctx, "/run/mulligan-test/mulligan", "--app", "shop", "rollback", string(cp.ID))
	if err := client.Start(); err != nil {
		t.Fatal(err)
	}
	h.until("the rollback stops the unit", func() bool { _, err := os.Stat(ws + ".stopping"); return err == nil })
	h.do("systemctl", "restart", "--no-block", "mulligand.service")
	h.until("the daemon is told to stop", func() bool {
		return h.do("systemctl", "show", "-p", "ActiveState", "--value", "mulligand.service") == "deactivating"
	})
	if err := os.WriteFile(slow, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := client.Wait(); err != nil {
		t.Errorf("who asked for the rollback was told: %v", err)
	}
	h.again(first)
	second := h.status()
	if b, err := os.ReadFile(file); err != nil || string(b) != "good" || second.PID == first.PID || len(second.Problems) > 0 {
		t.Errorf("after the restart: %q, %v, %+v", b, err, second)
	}
	if out := h.do("systemctl", "is-active", "shop.service"); out != "active" {
		t.Errorf("the app is %s", out)
	}

	h.do("systemctl", "kill", "-s", "KILL", "mulligand.service")
	h.again(second)
	third := h.status()
	if third.PID == second.PID || third.Apps != 1 {
		t.Errorf("after a kill: %+v", third)
	}
	h.journal()
	score := h.do("systemd-analyze", "security", "--no-pager", "mulligand.service")
	t.Log(score[strings.LastIndex(score, "\n")+1:])
	h.do("systemctl", "stop", "mulligand.socket", "mulligand.service")
	if out := h.do("systemctl", "show", "-p", "Result", "--value", "mulligand.service"); out != "success" {
		t.Errorf("stopped with %s", out)
	}
	if _, err := os.Stat(filepath.Join(h.state, "mulligan.db")); err != nil {
		t.Error(err)
	}
}

// TestServiceStartsInTheEnd has a daemon that cannot start, more often than systemd tries by default: who called is answered as soon as it can.
func TestServiceStartsInTheEnd(t *testing.T) {
	t.Parallel()
	h := install(t)
	text, err := os.ReadFile(filepath.Join(h.UnitDir, "mulligand.service"))
	if err != nil {
		t.Fatal(err)
	}
	pause := regexp.MustCompile(`(?m)^RestartSec=.*$`)
	h.WriteUnit(t, "mulligand.service", pause.ReplaceAllString(string(text), "RestartSec=500ms"))
	db := filepath.Join(h.state, "mulligan.db")
	if err := os.Mkdir(db, 0o700); err != nil {
		t.Fatal(err)
	}
	called := h.Command(t.Context(), "/run/mulligan-test/mulligan", "status")
	var said syncBuffer
	called.Stderr = &said
	if err := called.Start(); err != nil {
		t.Fatal(err)
	}
	h.until("the daemon was started more often than five times", func() bool {
		n, err := strconv.Atoi(h.do("systemctl", "show", "-p", "NRestarts", "--value", "mulligand.service"))
		return err == nil && n > 5
	})
	h.until("the waiting command has said why it waits", func() bool { return strings.Contains(said.String(), "mulligand.service is activating") })
	if err := os.Remove(db); err != nil {
		t.Fatal(err)
	}
	if err := called.Wait(); err != nil {
		t.Errorf("who called before the daemon could start: %v", err)
	}
	if st := h.status(); len(st.Problems) > 0 {
		t.Errorf("it started with problems: %q", st.Problems)
	}
}

// exposure is the level that systemd-analyze of systemd 252 gives the unit, times
// ten. Whoever tightens the unit lowers it; whoever must raise it says why in the unit.
const exposure = 77

// TestExposure holds the unit's exposure level.
func TestExposure(t *testing.T) {
	t.Parallel()
	testkit.Need(t, "systemd")
	b, err := os.ReadFile(filepath.Join("systemd", "mulligand.service"))
	if err != nil {
		t.Fatal(err)
	}
	text := strings.ReplaceAll(string(b), "@BINDIR@", "/usr/bin")
	analyze := func(text string) (string, error) {
		unit := filepath.Join(t.TempDir(), "mulligand.service")
		if err := os.WriteFile(unit, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		out, err := exec.CommandContext(t.Context(), "systemd-analyze", "security", "--offline=true", "--no-pager",
			fmt.Sprintf("--threshold=%d", exposure), unit).CombinedOutput()
		return string(out), err
	}
	if out, err := analyze(text); err != nil || strings.Contains(out, "bad unit file") {
		t.Errorf("more than %d: %v\n%s", exposure, err, out)
	}
	for _, line := range []string{"SystemCallFilter=", "CapabilityBoundingSet=", "RestrictRealtime="} {
		if out, err := analyze(strings.ReplaceAll(text, line, "X-Was-"+line)); err == nil {
			t.Errorf("it isn't noticed that %s is gone: %s", line, out[strings.LastIndex(strings.TrimSpace(out), "\n")+1:])
		}
	}
}

// trials is what programs do on a host. Each line says what was tried, and whether it can be done.
const trials = `
try() { "$@" >/dev/null 2>tried && echo "can $*" || echo "can't $*: $(cat tried)"; }
try unshare --user --map-root-user true
try unshare --user --map-root-user --mount sh -c 'mount -t tmpfs none /mnt && umount /mnt'
try unshare --user --map-root-user --pid --fork --mount --mount-proc true
try nice -n 5 true
try test "$(nice)" = 0
try test "$(ionice)" = "none: prio 0"
try test "$(umask)" = 0022
try test "$(ulimit -Sn)" = 1024
try test "$(ulimit -Hn)" -ge 524288
try taskset 1 true
try setarch -R true
try ls /proc/1/cmdline
try ls /lib/modules/.
try sh -c ': </dev/fuse'
try sh -c 'echo x >/tmp/mulligan-test-$$ && rm /tmp/mulligan-test-$$'
try perl -e 'my $m = syscall(9, 0, 4096, 7, 0x22, -1, 0); exit($m == -1)'
try perl -e 'use Socket; socket(my $s, 40, SOCK_STREAM, 0) or die $!'
try ./ping
try ./of32bits
`

// writeTrials puts the script with the trials and its programs into the folder dir: one with the rights that a file of ping commonly bears, and one
// that makes a system call of i386.
func writeTrials(t *testing.T, dir string) {
	t.Helper()
	program, err := os.ReadFile("/bin/true")
	if err != nil {
		t.Fatal(err)
	}
	source, raw := filepath.Join(t.TempDir(), "call.s"), []byte{
		1, 0, 0, 2, // version 2, effective (linux/capability.h)
		0, 1 << (unix.CAP_NET_RAW - 8), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "trials.sh"), []byte(trials), 0o644),
		testkit.WriteProgram(filepath.Join(dir, "ping"), program), unix.Setxattr(filepath.Join(dir, "ping"), "security.capability", raw, 0),
		os.WriteFile(source, []byte(".globl _start\n_start: movl $1, %eax\nxorl %ebx, %ebx\nint $0x80\n"), 0o644)); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "gcc", "-nostdlib", "-static", "-o", filepath.Join(dir, "of32bits"), source).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// TestServiceRuns has the installed daemon supervise a command of a user's, which
// does what programs do on a host: the unit's restrictions take nothing of it
// away. It outlives the daemon, and nothing that it says meanwhile is lost.
func TestServiceRuns(t *testing.T) {
	t.Parallel()
	h := install(t)
	h.status()
	ws, err := os.MkdirTemp("/var/tmp", "mulligan-ws")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(ws)
	const games = 5 // an account that every Debian has and nobody uses
	script := `
echo "as $(id -u)"
sh trials.sh
echo tried
until [ -e go ]; do sleep 0.02; done
seq 20000
echo said
exec sleep 1000
`
	writeTrials(t, ws)
	if err := errors.Join(os.WriteFile(filepath.Join(ws, "app.sh"), []byte(script), 0o644), os.Chown(ws, games, games)); err != nil {
		t.Fatal(err)
	}
	elsewhere := h.do("systemd-run", "--quiet", "--pipe", "--wait", "-p", "User=games", "-p", "WorkingDirectory="+ws, "sh", "trials.sh")
	file := filepath.Join(h.apps, "shop.toml")
	if err := os.WriteFile(file, []byte("slug = 'shop'\nowner = 'games'\nworkspace = '"+ws+"'\nrun = ['sh', 'app.sh']\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	output := func() string {
		logs, _ := filepath.Glob(filepath.Join(h.state, "apps", "*", "run", "run.log"))
		if len(logs) != 1 {
			return ""
		}
		b, err := os.ReadFile(logs[0])
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	h.until("the command has tried all", func() bool { return strings.Contains(output(), "tried\n") })
	if out := output(); strings.TrimSpace(strings.TrimSuffix(strings.TrimPrefix(out, "as 5\n"), "tried\n")) != elsewhere {
		t.Errorf("the command:\n%s\nelsewhere:\n%s", out, elsewhere)
	}
	const missing = 3 // what a container that tests run in may lack: /dev/fuse, a /proc without mounts in it, a high limit of files
	if n := strings.Count(elsewhere, "can't "); n > missing {
		t.Errorf("%d of the trials show nothing, as nobody can do that here:\n%s", n, elsewhere)
	}
	app := func() (a ipc.App) {
		t.Helper()
		if err := json.Unmarshal([]byte(h.mulligan("app", "show", "--app", "shop", "--json")), &a); err != nil {
			t.Fatal(err)
		}
		return a
	}
	before := h.status()
	h.do("systemctl", "kill", "-s", "KILL", "--kill-who", "main", "mulligand.service")
	if err := os.WriteFile(filepath.Join(ws, "go"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	h.again(before)
	h.until("all that it said is logged", func() bool { return strings.HasSuffix(output(), "said\n") })
	var want strings.Builder
	for i := range 20000 {
		fmt.Fprintln(&want, i+1)
	}
	if out := output(); strings.Count(out, "tried\n") != 1 || !strings.HasSuffix(out, "tried\n"+want.String()+"said\n") {
		t.Errorf("%d bytes were logged", len(out))
	}
	if a := app(); a.State != "running" {
		t.Errorf("it is %+v", a)
	}
	h.mulligan("app", "remove", "shop")
}

// journal makes sure that what is logged has fields.
func (h *installed) journal() {
	h.t.Helper()
	h.until("the journal has fields", func() bool {
		out, err := h.Exec("journalctl", "--no-pager", "-o", "json", "-u", "mulligand.service", "STATE="+h.state)
		return err == nil && strings.Contains(string(out), `"SOCKET"`) && strings.Contains(string(out), `"PRIORITY":"6"`)
	})
}

// TestAppFiles changes the folder of app files of a running daemon.
func TestAppFiles(t *testing.T) {
	t.Parallel()
	h := install(t)
	h.status()
	ws, err := os.MkdirTemp("/var/tmp", "mulligan-ws")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(ws)
	file := func(name, text string, mode os.FileMode) {
		t.Helper()
		path := filepath.Join(h.apps, name)
		if err := errors.Join(os.WriteFile(path, []byte(text), mode), os.Chmod(path, mode)); err != nil {
			t.Fatal(err)
		}
	}
	about := "slug = 'shop'\nworkspace = '" + ws + "'\n"
	file("broken.toml", "slug = 'x'\nworkspac = '/srv'\n", 0o644)
	file("shop.toml", about, 0o644)
	file("writable.toml", about, 0o666)
	h.until("the good file is registered and the others are shown", func() bool {
		st := h.status()
		all := strings.Join(st.Problems, "\n")
		return st.Apps == 1 && strings.Contains(all, "broken.toml:2") && strings.Contains(all, "workspace") && strings.Contains(all, "writable.toml: ") && len(st.Problems) == 2
	})
	h.mulligan("--app", "shop", "create")
	file("shop.toml", about+"exclude = ['*.log']\n", 0o644)
	if err := errors.Join(os.Remove(filepath.Join(h.apps, "broken.toml")), os.Remove(filepath.Join(h.apps, "writable.toml"))); err != nil {
		t.Fatal(err)
	}
	h.until("the change is in force and nothing is wrong", func() bool {
		return len(h.status().Problems) == 0 && strings.Contains(h.mulligan("app", "show", "--app", "shop"), "*.log")
	})
	h.do("systemctl", "restart", "mulligand.service")
	if st := h.status(); st.Apps != 1 || len(st.Problems) != 0 {
		t.Errorf("after a restart: %+v", st)
	}
}

// testServiceForks has the installed daemon fork a command of its own and a unit of the host's, which have a fixed path and port: the
// unit's restrictions keep neither from it. The forks outlive the daemon.
func testServiceForks(t *testing.T) {
	t.Parallel()
	testkit.Need(t, "python3")
	h := install(t)
	h.do("mount", "--make-rshared", "/") // as systemd does it when it boots a host
	h.status()
	ask := func(addr string) string {
		out, err := exec.CommandContext(t.Context(), "python3", "-c", "import sys, urllib.request as r; print(r.urlopen(sys.argv[1]).read().decode())", "http://"+addr+"/page").Output()
		if err != nil {
			return "" // it does not answer yet
		}
		return strings.TrimSpace(string(out))
	}
	for _, kind := range []string{"run", "unit"} {
		around, err := os.MkdirTemp("/var/tmp", "mulligan-ws")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.RemoveAll(around) })
		ws, addr := filepath.Join(around, "shop"), freeAddr(t)
		if err := errors.Join(os.Mkdir(ws, 0o755), os.WriteFile(filepath.Join(ws, "page"), []byte("zero"), 0o644)); err != nil {
			t.Fatal(err)
		}
		_, port, _ := strings.Cut(addr, ":")
		serve := "python3 -m http.server --bind 127.0.0.1 -d " + ws + " " + port
		slug := "shop-" + kind
		if kind == "unit" {
			h.WriteUnit(t, slug+".service", "[Service]\nExecStart="+serve+"\n")
			h.do("systemctl", "start", slug+".service")
			serve = slug + ".service"
		}
		h.mulligan("app", "add", "--slug", slug, "--dir", ws, "--"+kind, serve, "--health", "http://"+addr+"/page")
		var made ipc.ForkList
		if err := json.Unmarshal([]byte(h.mulligan("fork", "--app", slug, "--json")), &made); err != nil {
			t.Fatal(err)
		}
		f := made.Forks[0]
		if err := os.WriteFile(filepath.Join(f.Workspace, "page"), []byte("tried"), 0o644); err != nil {
			t.Fatal(err)
		}
		says := func(want string) {
			h.until("the fork says "+want, func() bool { return ask(f.Fork.Ports[0].Address) == want })
		}
		says("tried")
		before := h.status()
		h.do("systemctl", "kill", "-s", "KILL", "--kill-who", "main", "mulligand.service")
		h.again(before)
		if err := os.WriteFile(filepath.Join(f.Workspace, "page"), []byte("went on"), 0o644); err != nil {
			t.Fatal(err)
		}
		says("went on")
		h.mulligan("keep", f.Fork.Name, "--app", slug)
		h.until("the app says what the fork said", func() bool { return ask(addr) == "went on" })
		h.mountedForks(slug, ask)
		h.mulligan("app", "remove", slug)
	}
}

// mountedForks makes three forks of an app. Their folders are mounts of the host's, although the daemon has a mount namespace of its own.
func (h *installed) mountedForks(slug string, ask func(addr string) string) {
	h.t.Helper()
	var made ipc.ForkList
	if err := json.Unmarshal([]byte(h.mulligan("fork", "--app", slug, "--count", "3", "--json")), &made); err != nil {
		h.t.Fatal(err)
	}
	f := made.Forks[1]
	if f.Fork.Pinned == "" {
		h.t.Errorf("%s is not mounted: %s", f.Slug, h.do("journalctl", "--no-pager", "-n", "20", "-u", "mulligand.service"))
	}
	h.do("sh", "-c", `mountpoint -q "$0" && echo mounted >"$0/page"`, f.Workspace)
	says := func() {
		h.until("the mounted fork says what was written", func() bool { return ask(f.Fork.Ports[0].Address) == "mounted" })
	}
	says()
	before := h.status()
	h.do("systemctl", "kill", "-s", "KILL", "--kill-who", "main", "mulligand.service")
	h.again(before)
	says()
	h.mulligan("compare", "--app", slug)
	h.mulligan("drop", "--all", "--app", slug)
	if out, err := h.Exec("grep", "mulligan:", "/proc/1/mountinfo"); err == nil {
		h.t.Errorf("left are the mounts %s", out)
	}
	if _, err := os.Stat(filepath.Dir(f.Workspace)); !errors.Is(err, os.ErrNotExist) {
		h.t.Errorf("the folder of the forks is left: %v", err)
	}
}
