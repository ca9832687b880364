package daemon_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"mulligan/daemon"
	"mulligan/ipc"
	"mulligan/testkit"
)

// testCommandThatIsKilled has a supervised command that ignores SIGTERM. It is killed after StopTimeout, and so the app can be captured and
// rolled back like any other.
func testCommandThatIsKilled(t *testing.T) {
	t.Parallel()
	w := world{dir: worldDir(t)}
	opt := w.options()
	opt.StopTimeout = time.Second
	d := w.openAs(t, opt)
	defer func() { w.close(t, d) }()
	starts := filepath.Join(w.dir, "starts")
	if _, err := d.AddApp(t.Context(), root, ipc.App{
		Slug: "shop", Workspace: w.ws(), Run: []string{"sh", "-c", `trap "" TERM; echo >>"$0"; while :; do sleep 1; done`, starts},
	}); err != nil {
		t.Fatal(err)
	}
	stop := func(times int, do func()) {
		t.Helper()
		testkit.Eventually(t, "the command ignores SIGTERM", func() bool {
			text, _ := os.ReadFile(starts)
			return strings.Count(string(text), "\n") == times
		})
		begun := time.Now()
		do()
		if took := time.Since(begun); took < opt.StopTimeout {
			t.Errorf("it took %s, in which nothing is killed", took)
		}
	}
	write(t, w.ws(), "work", "before")
	var cp ipc.CheckpointID
	stop(1, func() { cp = create(t, d) })
	write(t, w.ws(), "work", "after")
	stop(2, func() { goBack(t, d, cp, ipc.RollbackRequest{}) })
	if got := read(t, w.ws(), "work"); got != "before" || state(t, d) != "running" {
		t.Errorf("after the rollback work says %q, and the app is %s", got, state(t, d))
	}
}

// testChangeOfClientThatLeaves has the client of a registration leave, and that of a change while the command is being stopped: both are done
// all the same, and the app runs and is followed.
func testChangeOfClientThatLeaves(t *testing.T) {
	t.Parallel()
	w := world{dir: worldDir(t)}
	ctx, leave := context.WithCancel(t.Context())
	d := w.failing(t, func(step string) error {
		if step == "write records" {
			leave()
		}
		return nil
	})
	defer func() { w.close(t, d) }()
	at := filepath.Join(w.dir, "stop") // the command says there that it is asked to end, and waits for the word that it may
	if _, err := d.AddApp(ctx, root, ipc.App{
		Slug: "shop", Workspace: w.ws(), Auto: true,
		Run: []string{"sh", "-c", `trap 'echo >"$0"; until [ -e "$0.ends" ]; do sleep 0.1; done; exit' TERM; echo >"$0.begun"; while :; do sleep 0.1; done`, at},
	}); err != nil || ctx.Err() == nil {
		t.Fatalf("%v; its client: %v", err, ctx.Err())
	}
	runsOn(t, d)
	exists := func(path string) func() bool {
		return func() bool { _, err := os.Stat(path); return err == nil }
	}
	testkit.Eventually(t, "the command has begun", exists(at+".begun"))
	later, leaveLater := context.WithCancel(t.Context())
	next, done := []string{"sleep", "1000000"}, make(chan error, 1)
	go func() {
		_, err := d.SetApp(later, root, "shop", ipc.AppChange{Run: &next})
		done <- err
	}()
	testkit.Eventually(t, "the command is asked to end", exists(at))
	leaveLater()
	write(t, w.dir, "stop.ends", "")
	if err := <-done; err != nil {
		t.Error(err)
	}
	if a, err := d.App(t.Context(), root, "shop"); err != nil || !slices.Equal(a.Run, next) {
		t.Errorf("the app's command is %q, %v", a.Run, err)
	}
	runsOn(t, d)
}

// testChangeThatFails has the change and the removal of an app fail, because its command cannot be stopped, or because the removal cannot be
// recorded: the app runs on and is followed.
func testChangeThatFails(t *testing.T) {
	t.Parallel()
	w := world{dir: worldDir(t)}
	var full atomic.Bool
	noRoom := errors.New("no room for records")
	d := w.failing(t, func(step string) error {
		if step == "write records" && full.Load() {
			return noRoom
		}
		return nil
	})
	defer func() { w.close(t, d) }()
	if _, err := d.AddApp(t.Context(), root, ipc.App{Slug: "shop", Workspace: w.ws(), Auto: true, Run: []string{"sleep", "1000000"}}); err != nil {
		t.Fatal(err)
	}
	runsOn(t, d)
	next := []string{"sleep", "2000000"}
	change := func() error {
		_, err := d.SetApp(t.Context(), root, "shop", ipc.AppChange{Run: &next})
		return err
	}
	remove := func() error { return d.RemoveApp(t.Context(), root, "shop", false) }

	records, err := filepath.Glob(filepath.Join(w.state(), "apps", "*", "run", "run.json"))
	if err != nil || len(records) != 1 {
		t.Fatalf("%q, %v", records, err)
	}
	record := records[0]
	if err := os.Rename(record, record+".was"); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(record, "full"), 0o700); err != nil { // a record cannot take its place
		t.Fatal(err)
	}
	for what, do := range map[string]func() error{"change": change, "removal": remove} {
		if err := do(); err == nil || !strings.Contains(err.Error(), "record the run") {
			t.Errorf("a %s whose stop cannot be recorded: %v", what, err)
		}
		runsOn(t, d)
	}
	if err := os.RemoveAll(record); err != nil {
		t.Fatal(err)
	}
	full.Store(true)
	err = remove()
	full.Store(false)
	if !errors.Is(err, noRoom) {
		t.Errorf("a removal that cannot be recorded: %v", err)
	}
	runsOn(t, d)
	if err := change(); err != nil {
		t.Error(err)
	}
	runsOn(t, d)
	if err := remove(); err != nil {
		t.Error(err)
	}
}

// runsOn checks that the app runs, and waits until its files are followed.
func runsOn(t *testing.T, d *daemon.Daemon) {
	t.Helper()
	if got := state(t, d); got != "running" {
		t.Errorf("the app is %s", got)
	}
	awaitFollowing(t, d)
}

// testCommandsEndTogether closes a daemon with two supervised commands, each of which ends only once both were asked to.
func testCommandsEndTogether(t *testing.T) {
	t.Parallel()
	w := world{dir: worldDir(t)}
	opt := w.options()
	opt.StopTimeout = 20 * time.Second // after which a command is killed, and says nothing
	d := w.openAs(t, opt)
	here := filepath.Join(w.dir, "asked")
	if err := os.Mkdir(here, 0o755); err != nil {
		t.Fatal(err)
	}
	names := []string{"one", "two"}
	for _, name := range names {
		ws := filepath.Join(w.dir, name)
		if err := os.Mkdir(ws, 0o755); err != nil {
			t.Fatal(err)
		}
		script := `trap ':>"$0/$1"; while [ ! -e "$0/one" ] || [ ! -e "$0/two" ]; do sleep 0.1; done; :>"$0/$1-ended"; exit 0' TERM; :>"$0/$1-ready"; while :; do sleep 0.1; done`
		if _, err := d.AddApp(t.Context(), root, ipc.App{Slug: name, Workspace: ws, Run: []string{"sh", "-c", script, here, name}}); err != nil {
			t.Fatal(err)
		}
	}
	there := func(name string) bool { _, err := os.Stat(filepath.Join(here, name)); return err == nil }
	for _, name := range names {
		testkit.Eventually(t, name+" runs", func() bool { return there(name + "-ready") })
	}
	w.close(t, d)
	for _, name := range names {
		if !there(name + "-ended") {
			t.Errorf("%s was killed", name)
		}
	}
}
