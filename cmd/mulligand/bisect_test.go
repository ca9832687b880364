package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"mulligan/ipc"
	"mulligan/testkit"
)

// history makes an app of files alone with the checkpoints 0 to last, whose number is in the file n. The files are at last+1.
func history(t *testing.T, d *daemonProcess, last int) (dir string, ids []ipc.CheckpointID) {
	t.Helper()
	top, err := os.MkdirTemp("/var/tmp", "forks")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(top) })
	dir = filepath.Join(top, "ws")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	d.must("app", "add", "--slug", "shop", "--dir", dir)
	d.must("app", "set", "--app", "shop", "retention.keep_last=100")
	for n := range last + 2 {
		if err := os.WriteFile(filepath.Join(dir, "n"), []byte(strconv.Itoa(n)), 0o644); err != nil {
			t.Fatal(err)
		}
		if n <= last {
			ids = append(ids, ask[ipc.Checkpoint](d, "create", "--app", "shop").ID)
		}
	}
	return dir, ids
}

// bisect runs mulligan bisect with a shell command.
func (d *daemonProcess) bisect(command string, flags ...string) (ipc.BisectResult, string, int) {
	d.t.Helper()
	out, errOut, code := d.mulligan(append(append([]string{"bisect", "--app", "shop", "--json", "--socket", d.socket}, flags...), "--", "sh", "-c", command)...)
	var res ipc.BisectResult
	if out != "" {
		if err := json.Unmarshal([]byte(out), &res); err != nil {
			d.t.Fatalf("%v: %s", err, out)
		}
	}
	return res, errOut, code
}

// testBisect finds the first bad one of 24 checkpoints, of 64 in a long run, wherever it is, with and without a good and a bad one that are named, and with one
// or more tests at a time. It names what was skipped, does not believe a command that answers now this, now that, and leaves no fork behind,
// also when its client or the daemon is killed. The app is not touched.
func testBisect(t *testing.T) {
	t.Parallel()
	testkit.Need(t, "root")
	d := startDaemon(t)
	last, rounds := 23, 1
	if testkit.Long() {
		last, rounds = 63, 20
	}
	dir, ids := history(t, d, last)
	folders := filepath.Join(filepath.Dir(dir), "shop-forks")
	clean := func(when string) {
		t.Helper()
		if list, err := os.ReadDir(folders); err == nil && len(list) > 0 {
			t.Errorf("%s: the folder of forks has %v", when, list)
		}
		if apps, err := os.ReadDir(filepath.Join(d.dir, "state", "apps")); err != nil || len(apps) != 1 {
			t.Errorf("%s: there is state of %v, %v", when, apps, err)
		}
		if left := d.inForks(""); len(left) != 0 {
			t.Errorf("%s: processes are left: %v", when, left)
		}
	}
	r := testkit.Rand(t)
	for range rounds {
		bad := 1 + r.IntN(last)
		flags := []string{"--jobs", strconv.Itoa(1 + r.IntN(3))}
		if r.IntN(2) == 0 {
			flags = append(flags, "--good", string(ids[r.IntN(bad)]))
		}
		if r.IntN(2) == 0 {
			flags = append(flags, "--bad", string(ids[bad+r.IntN(last+1-bad)]))
		}
		res, errOut, code := d.bisect(fmt.Sprintf("test $(cat n) -lt %d", bad), flags...)
		if code != 0 || res.Outcome != ipc.BisectFound || res.Good.ID != ids[bad-1] || res.Bad.ID != ids[bad] {
			t.Fatalf("bad from %d, %q: %d, %s, %+v", bad, flags, code, errOut, res)
		}
		if res.ChangesTotal != 1 || res.Changes[0].Path != "n" || len(res.Runs) > 24 {
			t.Errorf("bad from %d, %q: %+v", bad, flags, res)
		}
	}
	clean("after the searches")
	// What a test changes, leaves behind or still runs, the next one does not see.
	bad := 1 + r.IntN(last)
	res, errOut, code := d.bisect(fmt.Sprintf(`n=$(cat n); test ! -e left -a ! -e /tmp/left -a ! -e /dev/shm/left || exit $((n < %[1]d))
		mkfifo left; touch /tmp/left /dev/shm/left; ln -s /etc /tmp/etc; rm n; sleep 1000 & exit $((n >= %[1]d))`, bad))
	if code != 0 || res.Outcome != ipc.BisectFound || res.Bad.ID != ids[bad] {
		t.Errorf("bad from %d, with tests that leave things behind: %d, %s, %+v", bad, code, errOut, res)
	}
	clean("after tests that left things behind")

	res, _, code = d.bisect("n=$(cat n); test $n -lt 10 && exit 0; test $n -lt 13 && exit 125; exit 1", "--jobs", "2")
	if code != 0 || res.Outcome != ipc.BisectRange || res.Good.ID != ids[9] || res.Bad.ID != ids[13] || !slices.Equal(res.Skipped, ids[10:13]) {
		t.Errorf("with three skipped: %d, %+v", code, res)
	}
	// The second time that it sees a state, it says something else.
	seen := filepath.Join(filepath.Dir(dir), "seen-")
	res, errOut, code = d.bisect(fmt.Sprintf("n=$(cat n); b=0; test $n -lt 10 || b=1; test -e %[1]s$n && b=$((1-b)); touch %[1]s$n; exit $b", seen), "--good", string(ids[0]))
	if code != 1 || res.Outcome != ipc.BisectUnsure || !strings.Contains(errOut, "cannot tell") {
		t.Errorf("a flaky command: %d, %s, %+v", code, errOut, res)
	}
	for _, c := range []struct {
		command string
		flags   []string
		code    int
		says    string
	}{
		{"true", nil, 4, "not bad"},
		{"false", nil, 4, "no checkpoint is good"},
		{"false", []string{"--good", string(ids[3])}, 4, "is not"},
		{"false", []string{"--good", string(ids[9]), "--bad", string(ids[3])}, 2, "not older"},
		{"false", []string{"--good", "cp-000000000000"}, 3, "no checkpoint"},
		{"false", []string{"--jobs", "99"}, 2, "99 tests"},
		{"false", []string{"--start"}, 2, "no unit"},
	} {
		if _, errOut, code := d.bisect(c.command, c.flags...); code != c.code || !strings.Contains(errOut, c.says) {
			t.Errorf("%s with %q: %d, %s", c.command, c.flags, code, errOut)
		}
	}
	if _, errOut, code := d.mulligan("bisect", "--app", "shop"); code != 2 || !strings.Contains(errOut, "no health check") {
		t.Errorf("without a command: %d, %s", code, errOut)
	}
	clean("after errors")
	if n, err := os.ReadFile(filepath.Join(dir, "n")); err != nil || string(n) != strconv.Itoa(last+1) {
		t.Errorf("the app has %q, %v", n, err)
	}

	mark := filepath.Join(filepath.Dir(dir), "mark")
	for _, victim := range []string{"client", "daemon"} {
		cmd := exec.Command(filepath.Join(bin, "mulligan"), "bisect", "--app", "shop", "--socket", d.socket, "--jobs", "2", "--", "sh", "-c", "echo > "+mark+"; exec sleep 1000")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "a test runs", func() bool { _, err := os.Stat(mark); return err == nil })
		if victim == "client" {
			if err := cmd.Process.Signal(unix.SIGKILL); err != nil {
				t.Fatal(err)
			}
		} else {
			d.kill()
			d.cmd = nil
			d.start()
		}
		_ = cmd.Wait() // it was killed, or lost its daemon
		eventually(t, "its forks are gone", func() bool {
			list, err := os.ReadDir(folders)
			state, _ := os.ReadDir(filepath.Join(d.dir, "state", "apps")) // removed last, when the fork is listed no more
			return (err != nil || len(list) == 0) && len(d.inForks("")) == 0 && len(ask[ipc.AppList](d, "app", "list").Apps) == 1 && len(state) == 1
		})
		clean("after the " + victim + " was killed")
		if err := os.Remove(mark); err != nil {
			t.Fatal(err)
		}
	}
}

// TestTooManyForks refuses more forks of an app than it may have, before any is made.
func TestTooManyForks(t *testing.T) {
	t.Parallel()
	testkit.Need(t, "root")
	d := newDaemon(t)
	config := filepath.Join(d.dir, "mulligand.toml")
	if err := os.WriteFile(config, []byte("[limits]\nmax_forks = 3\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	d.args = []string{"--user", "--config", config}
	d.start()
	history(t, d, 0)
	d.must("fork", "--app", "shop", "--count", "2")
	if _, errOut, code := d.mulligan("fork", "--app", "shop", "--count", "2"); code != 5 || !strings.Contains(errOut, "2 forks, and may have 3") {
		t.Errorf("four forks: %d, %s", code, errOut)
	}
	d.must("fork", "--app", "shop")
	if list := ask[ipc.ForkList](d, "forks", "--app", "shop").Forks; len(list) != 3 {
		t.Errorf("there are %d forks", len(list))
	}
	d.must("drop", "--all", "--app", "shop")
}

// testBisectByHealth finds the turn that broke a running app, by its health check.
func testBisectByHealth(t *testing.T) {
	t.Parallel()
	testkit.Need(t, "root")
	d := startDaemon(t)
	a := newForkable(t, d)
	// An app that does not answer yet is not healthy. The time is that of a start on a slow host.
	d.must("app", "set", "--app", "shop", "auto=true", "health.command="+`["sh", "-c", "`+filepath.Join(a.ws, "app")+` visit `+a.addr+` | grep -v broken"]`, "health.timeout=30s")
	hook := func(event, word string) {
		t.Helper()
		cmd := exec.Command(filepath.Join(bin, "mulligan"), "hook", "claude-code")
		cmd.Dir, cmd.Env = a.ws, append(os.Environ(), "MULLIGAN_SOCKET="+d.socket)
		cmd.Stdin = strings.NewReader(fmt.Sprintf(`{"hook_event_name":%q,"session_id":"s1","prompt_id":%q,"prompt":"go","cwd":%q}`, event, word, a.ws))
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	for _, word := range []string{"one", "two", "broken", "broken still"} {
		hook("UserPromptSubmit", word)
		a.set(t, word)
		hook("Stop", word)
		hooks{t, d, "claude-code", a.ws}.over()
	}
	turns := ask[ipc.TurnList](d, "turns", "--app", "shop").Turns // newest first
	if len(turns) != 4 {
		t.Fatalf("the turns are %+v", turns)
	}
	res := ask[ipc.BisectResult](d, "bisect", "--app", "shop", "--jobs", "2")
	if res.Outcome != ipc.BisectFound || len(res.Turns) != 1 || res.Turns[0].ID != turns[1].ID || *turns[1].CheckpointID != res.Good.ID {
		t.Errorf("the bisect says %+v; the turns are %+v", res, turns)
	}
	if page := visit(t.Context(), a.addr); page != "broken still\n" {
		t.Errorf("the app says %q", page)
	}
}
