package daemon_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"mulligan/daemon"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/testkit"
)

// testBisectForks takes a fork from one test of a bisect to the next, has a new one where that fails, and has one for each test where a
// rollback would not give back what the app excludes.
func testBisectForks(t *testing.T) {
	t.Parallel()
	testkit.Need(t, "root") // the forks have namespaces
	w := forkWorld(t)
	var made, cleared, failAt int
	opt := w.options()
	opt.Failpoint = func(step string) error {
		switch step {
		case "fork: folder made":
			made++
		case "fork: cleared":
			if cleared++; cleared == failAt {
				return errors.New("the test says so")
			}
		}
		return nil
	}
	d := w.openAs(t, opt)
	defer w.close(t, d)
	all := ipc.DefaultRetention()
	all.KeepLast = 100
	_, err := d.AddApp(t.Context(), root, ipc.App{Slug: "shop", Workspace: w.ws(), Retention: all})
	check(t, err)
	r := testkit.Rand(t)
	const last = 20
	bad := 1 + r.IntN(last)
	var ids []ipc.CheckpointID
	for n := range last + 1 {
		check(t, os.WriteFile(filepath.Join(w.ws(), "n"), []byte(strconv.Itoa(n)), 0o644))
		cp, err := d.Create(t.Context(), root, "shop", ipc.CreateRequest{Quiesce: ipc.QuiesceNone})
		check(t, err)
		ids = append(ids, cp.ID)
	}
	search := func(what string, forks func(tests int) int) {
		t.Helper()
		made, cleared = 0, 0
		res, err := d.Bisect(t.Context(), root, "shop", ipc.BisectRequest{Bad: ids[last], Command: []string{"sh", "-c", `test "$(cat n)" -lt ` + strconv.Itoa(bad)}})
		check(t, err)
		if res.Outcome != ipc.BisectFound || res.Bad.ID != ids[bad] {
			t.Errorf("%s: bad from %d: %+v", what, bad, res)
		}
		if want := forks(len(res.Runs)); len(res.Runs) < 3 || made != want {
			t.Errorf("%s: %d tests had %d forks, and not %d", what, len(res.Runs), made, want)
		}
		if apps := d.Apps(t.Context(), root); len(apps) != 1 {
			t.Errorf("%s: there are the apps %+v", what, apps)
		}
	}
	search("alone", func(int) int { return 1 })
	failAt = 2
	search("with a fork that cannot be cleared", func(int) int { return 2 })
	failAt = 0
	_, err = d.SetApp(t.Context(), root, "shop", ipc.AppChange{Exclude: &[]string{"build"}})
	check(t, err)
	search("with excluded files", func(tests int) int { return tests })
}

// testForksPartly makes five forks, of which one fails. The others are whole, the answer says what failed, and nothing is left of that one.
func testForksPartly(t *testing.T) {
	t.Parallel()
	testkit.Need(t, "root")
	w := forkWorld(t)
	check(t, os.WriteFile(filepath.Join(w.ws(), "n"), []byte("here"), 0o644))
	var mu sync.Mutex // the forks are made beside each other
	made := 0
	opt := w.options()
	opt.Failpoint = func(step string) error {
		mu.Lock()
		defer mu.Unlock()
		if step == "fork: folder made" {
			if made++; made == 2 {
				return errors.New("the test says so")
			}
		}
		return nil
	}
	d := w.openAs(t, opt)
	defer w.close(t, d)
	_, err := d.AddApp(t.Context(), root, ipc.App{Slug: "shop", Workspace: w.ws(), Run: []string{"sh", "-c", "exec sleep 100000"}})
	check(t, err)
	list, err := d.Fork(t.Context(), root, "shop", ipc.ForkRequest{Count: 5})
	if err == nil || !strings.Contains(err.Error(), "the test says so") || made != 5 {
		t.Errorf("with one that fails: %v; %d forks were begun", err, made)
	}
	all, err := d.Forks(t.Context(), root, "shop")
	check(t, err)
	if len(list.Forks) != 4 || len(all.Forks) != 4 {
		t.Errorf("the answer has %d forks, and there are %d", len(list.Forks), len(all.Forks))
	}
	folders, err := filepath.Glob(filepath.Join(w.dir, "shop-forks", "[0-9]*"))
	check(t, err)
	if len(folders) != 4 {
		t.Errorf("there are the folders %v", folders)
	}
	for _, f := range list.Forks {
		text, err := os.ReadFile(filepath.Join(f.Workspace, "n"))
		if err != nil || string(text) != "here" || f.State != "running" || f.Fork.Making {
			t.Errorf("the fork %s has %q, %v, and is %+v", f.Slug, text, err, f)
		}
		check(t, d.DropFork(t.Context(), root, "shop", f.Fork.Name))
	}
}

// testForkSetWhileMade changes the settings of a fork just before the fork is made: the change waits for the fork's command to end, and the fork's record
// then has both, the change and that the fork is whole.
func testForkSetWhileMade(t *testing.T) {
	t.Parallel()
	testkit.Need(t, "root")
	w := forkWorld(t)
	in := filepath.Join(w.dir, "shop-forks", "1")
	var d *daemon.Daemon
	changed := make(chan error, 1)
	next := []string{"sh", "-c", "exec sleep 100000"}
	opt := w.options()
	opt.Failpoint = func(step string) error {
		if step == "fork: filled" {
			there := func(file string) func() bool {
				return func() bool { _, err := os.Stat(filepath.Join(in, file)); return err == nil }
			}
			testkit.Eventually(t, "the fork's command runs", there("ready"))
			go func() {
				_, err := d.SetApp(t.Context(), root, "shop-1", ipc.AppChange{Run: &next})
				changed <- err
			}()
			testkit.Eventually(t, "the fork's command is asked to end", there("asked"))
			check(t, os.WriteFile(filepath.Join(in, "may-end"), nil, 0o644))
		}
		return nil
	}
	d = w.openAs(t, opt)
	defer func() { w.close(t, d) }()
	slow := "trap 'touch asked; until [ -e may-end ]; do sleep 0.1; done; exit 0' TERM; touch ready; while :; do sleep 0.1; done"
	_, err := d.AddApp(t.Context(), root, ipc.App{Slug: "shop", Workspace: w.ws(), Run: []string{"sh", "-c", slow}, Exclude: []string{"ready", "asked", "may-end"}})
	check(t, err)
	_, err = d.Fork(t.Context(), root, "shop", ipc.ForkRequest{})
	check(t, err)
	check(t, <-changed)
	check(t, os.WriteFile(filepath.Join(w.ws(), "may-end"), nil, 0o644))
	f, err := d.App(t.Context(), root, "shop-1")
	check(t, err)
	if f.Fork.Making || !slices.Equal(f.Run, next) {
		t.Errorf("the record says that the fork is being made: %t, and that it runs %q", f.Fork.Making, f.Run)
	}
}

// testPartsOfFork changes a fork's registration: what was made for the fork stays the fork's, so that its drop leaves nothing, and other settings can be changed.
func testPartsOfFork(t *testing.T) {
	t.Parallel()
	testkit.Need(t, "root")
	w := forkWorld(t)
	w.set(t, "zero")
	d := w.open(t)
	defer w.close(t, d)
	_, err := d.AddApp(t.Context(), root, ipc.App{
		Slug: "shop", Workspace: w.ws(), Run: []string{"sh", "-c", "exec sleep 100000"},
		Databases: []ipc.Database{{Name: "cache", Driver: "redis", DSN: "redis:///?socket=" + startRedis(t)}, {Name: "shop", Driver: "sqlite", DSN: "shop.db"}},
	})
	check(t, err)
	made, err := d.Fork(t.Context(), root, "shop", ipc.ForkRequest{})
	check(t, err)
	f := made.Forks[0]
	name := "other"
	more := append(slices.Clone(f.Databases), ipc.Database{Name: "more", Driver: "sqlite", DSN: "more.db"})
	for what, change := range map[string]ipc.AppChange{
		"no databases": {Databases: &[]ipc.Database{}}, "a database more": {Databases: &more},
		"another unit": {Unit: &name}, "another domain": {Domain: &name}, "volumes": {Volumes: &[]ipc.Volume{{Name: "v"}}},
	} {
		if _, err := d.SetApp(t.Context(), root, f.Slug, change); errs.KindOf(err) != errs.Conflict || errs.HintOf(err) == "" {
			t.Errorf("a fork with %s: %v", what, err)
		}
	}
	files := t.TempDir()
	write(t, files, "fork.toml", fmt.Sprintf("slug = %q\nworkspace = %q\n", f.Slug, f.Workspace))
	d.WatchFiles(t.Context(), files)
	if problems := strings.Join(d.Status(root).Problems, "\n"); !strings.Contains(problems, f.Slug+" is a fork, and no app file describes one") {
		t.Errorf("an app file that names the fork: %q", problems)
	}
	run := []string{"sh", "-c", "exec sleep 200000"}
	f.Databases[1].Env = "DATABASE_URL"
	f, err = d.SetApp(t.Context(), root, f.Slug, ipc.AppChange{Run: &run, Databases: &f.Databases})
	if err != nil || f.Databases[1].Env != "DATABASE_URL" || !slices.Equal(f.Run, run) || f.State != "running" {
		t.Errorf("a fork that may be changed is %+v, %v", f, err)
	}
	check(t, d.DropFork(t.Context(), root, "shop", f.Fork.Name))
	if pids := mounters(filepath.Join(w.state(), "apps", string(f.ID))); len(pids) > 0 {
		t.Errorf("after the drop, the processes %q see the fork's folders", pids)
	}
}

// testReceiptsOfKeep keeps forks where a step fails. The client gets the receipt of a rollback that was put back, with the error, and of one that was done
// where only the fork could not be dropped.
func testReceiptsOfKeep(t *testing.T) {
	t.Parallel()
	testkit.Need(t, "root")
	w := forkWorld(t)
	var failAt atomic.Value
	failAt.Store("")
	opt := w.options()
	opt.Failpoint = func(step string) error {
		if step == failAt.Load() {
			return errors.New("the test says so")
		}
		return nil
	}
	d := w.openAs(t, opt)
	defer w.close(t, d)
	client := serveSocket(t, d)
	_, err := client.AddApp(t.Context(), ipc.App{Slug: "shop", Workspace: w.ws()})
	check(t, err)
	made, err := client.Fork(t.Context(), "shop", ipc.ForkRequest{Name: "tried"})
	check(t, err)
	write(t, made.Forks[0].Workspace, "state", "tried")

	failAt.Store("commit files")
	res, err := client.Keep(t.Context(), "shop", "tried", ipc.KeepRequest{})
	if err == nil || !strings.Contains(err.Error(), "the test says so") || res.RolledBack || !res.Recovered || res.SafetyCheckpoint == nil {
		t.Errorf("a rollback that was put back: %v, %+v", err, res)
	}
	failAt.Store("fork: stopped")
	res, err = client.Keep(t.Context(), "shop", "tried", ipc.KeepRequest{})
	if err != nil || !res.RolledBack || !slices.ContainsFunc(res.Warnings, func(w string) bool {
		return strings.HasPrefix(w, "the fork tried could not be dropped: ") && strings.Contains(w, "the test says so")
	}) {
		t.Errorf("a fork that could not be dropped: %v, %+v", err, res)
	}
	if got, err := os.ReadFile(filepath.Join(w.ws(), "state")); err != nil || string(got) != "tried" {
		t.Errorf("the app has %q, %v", got, err)
	}
}

// testWrittenWhileKept writes a file into a fork's folder while the app is taken to the fork's state. The fork does not run meanwhile; it stays, with the
// file, and runs again; if it cannot be started, the answer says so, and the daemon's next start tries again. Where nothing is written, it goes.
func testWrittenWhileKept(t *testing.T) {
	t.Parallel()
	testkit.Need(t, "root")
	w := forkWorld(t)
	w.set(t, "zero")
	var d *daemon.Daemon
	var during atomic.Pointer[func()] // is called once while the app is switched
	var starts atomic.Int64           // the number of the start, counted from now, that fails as do those after it; 0 or less: none
	opt := w.options()
	opt.Failpoint = func(step string) error {
		if step == "commit files" {
			if do := during.Swap(nil); do != nil {
				(*do)()
			}
		}
		if step == "start unit" && starts.Add(-1) == 0 {
			starts.Store(1) // again
			return errors.New("the test says so")
		}
		return nil
	}
	d = w.openAs(t, opt)
	defer func() { w.close(t, d) }()
	_, err := d.AddApp(t.Context(), root, ipc.App{
		Slug: "shop", Workspace: w.ws(), Run: []string{"sh", "-c", "exec sleep 100000"},
		Databases: []ipc.Database{{Name: "shop", Driver: "sqlite", DSN: "shop.db"}},
	})
	check(t, err)
	made, err := d.Fork(t.Context(), root, "shop", ipc.ForkRequest{Name: "tried"})
	check(t, err)
	fork := world{dir: filepath.Dir(made.Forks[0].Workspace), at: made.Forks[0].Workspace}
	fork.set(t, "tried")
	state := func() string {
		f, err := d.App(t.Context(), root, "shop-tried")
		check(t, err)
		return f.State
	}
	for what, write := range map[string]func(){
		"a file": func() { check(t, os.WriteFile(filepath.Join(fork.ws(), "late"), []byte("late"), 0o644)) },
		"a row":  func() { fork.setSQLite(t, "late") },
	} {
		was := ""
		do := func() { was = state(); write() }
		during.Store(&do)
		res, err := d.KeepFork(t.Context(), root, "shop", "tried", ipc.KeepRequest{})
		check(t, err)
		if was == "" || was == "running" {
			t.Errorf("%s: the fork was %q while the app was switched", what, was)
		}
		if !slices.ContainsFunc(res.Warnings, func(w string) bool { return strings.HasPrefix(w, "the fork tried was not dropped: ") }) {
			t.Errorf("%s: the receipt does not say that the fork stays: %q", what, res.Warnings)
		}
		if now := state(); now != "running" {
			t.Errorf("%s: the fork is %q afterwards", what, now)
		}
	}
	do := func() {
		check(t, os.WriteFile(filepath.Join(fork.ws(), "later"), nil, 0o644))
		starts.Store(2) // the app starts, and the fork does not
	}
	during.Store(&do)
	res, err := d.KeepFork(t.Context(), root, "shop", "tried", ipc.KeepRequest{})
	if err != nil || !slices.Contains(res.Warnings, "the fork tried could not be started again: the test says so") || state() == "running" {
		t.Errorf("a fork that cannot be started again is %s, and the answer says %v, %q", state(), err, res.Warnings)
	}
	isLent := func(want bool) {
		t.Helper()
		if f, err := d.App(t.Context(), root, "shop-tried"); err != nil || f.Fork.Lent != want {
			t.Errorf("the record says that the fork was stopped to be kept: %t, %v", f.Fork.Lent, err)
		}
	}
	isLent(true)
	starts.Store(0)
	w.close(t, d)
	d = w.openAs(t, opt)
	testkit.Eventually(t, "the daemon's next start starts the fork", func() bool { return state() == "running" })
	isLent(false)
	if got, err := os.ReadFile(filepath.Join(fork.ws(), "late")); err != nil || string(got) != "late" {
		t.Errorf("the fork has %q, %v", got, err)
	}
	if got, err := fork.sqliteSays(); err != nil || got != "late" {
		t.Errorf("the fork's database has %q, %v", got, err)
	}
	res, err = d.KeepFork(t.Context(), root, "shop", "tried", ipc.KeepRequest{})
	check(t, err)
	if list, err := d.Forks(t.Context(), root, "shop"); err != nil || len(list.Forks) != 0 || len(res.Warnings) != 0 {
		t.Errorf("kept again: %+v, %v, %q", list.Forks, err, res.Warnings)
	}
	if got, err := w.sqliteSays(); err != nil || got != "late" {
		t.Errorf("the app's database has %q, %v", got, err)
	}
}

// testInsideWhileKept runs a command inside of a fork that runs, of one that is stopped and of one without namespaces, while the fork is kept. What the command
// wrote after the fork was captured would be lost: it ends first, and nobody is let in until the app has the fork's state. A drop ends such a command too.
func testInsideWhileKept(t *testing.T) {
	t.Parallel()
	testkit.Need(t, "root")
	w := forkWorld(t)
	var d *daemon.Daemon
	var during atomic.Pointer[func()] // is called once while the app is switched
	opt := w.options()
	opt.Failpoint = func(step string) error {
		if step == "commit files" {
			if do := during.Swap(nil); do != nil {
				(*do)()
			}
		}
		return nil
	}
	d = w.openAs(t, opt)
	defer func() { w.close(t, d) }()
	_, err := d.AddApp(t.Context(), root, ipc.App{Slug: "shop", Workspace: w.ws(), Run: []string{"sh", "-c", "exec sleep 100000"}})
	check(t, err)
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	check(t, err)
	defer null.Close() // nothing is written to it
	for name, c := range map[string]struct {
		isolation string
		req       ipc.ForkRequest
	}{
		"running": {ipc.IsolationNamespace, ipc.ForkRequest{}},
		"stopped": {ipc.IsolationNamespace, ipc.ForkRequest{NoStart: true}},
		"onhost":  {ipc.IsolationPorts, ipc.ForkRequest{}},
	} {
		_, err := d.SetApp(t.Context(), root, "shop", ipc.AppChange{Forking: &ipc.Forking{Isolation: c.isolation}})
		check(t, err)
		c.req.Name = name
		made, err := d.Fork(t.Context(), root, "shop", c.req)
		check(t, err)
		ready := filepath.Join(made.Forks[0].Workspace, "ready")
		enter := func() (ended chan struct{}, leave func()) {
			t.Helper()
			check(t, os.RemoveAll(ready)) // the app has it from the fork that was kept before
			conn, leave, err := d.Enter(t.Context(), root, "shop", name)
			check(t, err)
			ended = make(chan struct{})
			go func() {
				defer close(ended)
				_, _ = ipc.RunInside(conn, ipc.Command{
					Args: []string{"sh", "-c", "touch ready; exec sleep 100000"}, Dir: made.Forks[0].Fork.ParentPath, Files: [3]*os.File{null, null, null},
				}, nil) // it says that the fork ended, or with what signal the command did
			}()
			testkit.Eventually(t, "the command runs", func() bool { _, err := os.Stat(ready); return err == nil })
			return ended, leave
		}
		ended, leave := enter()
		end := func(when string) {
			t.Helper()
			select {
			case <-ended:
			case <-time.After(testkit.Patience):
				t.Errorf("%s: the command runs inside %s", name, when)
			}
		}
		switched := false
		do := func() {
			switched = true
			end("while the app is switched")
			if conn, leave, err := d.Enter(t.Context(), root, "shop", name); errs.KindOf(err) != errs.Busy {
				t.Errorf("%s: while the fork is kept, entering it says %v", name, err)
				if err == nil {
					check(t, conn.Close())
					leave()
				}
			}
			check(t, os.WriteFile(ready, []byte("late"), 0o644)) // so that the fork stays
		}
		during.Store(&do)
		_, err = d.KeepFork(t.Context(), root, "shop", name, ipc.KeepRequest{})
		check(t, err)
		leave()
		if !switched {
			t.Errorf("%s: the app was not switched", name)
		}

		ended, leave = enter()
		check(t, d.DropFork(t.Context(), root, "shop", name))
		end("after the drop")
		leave()
	}
}

// testKeepPart takes a part of a fork. The app has that part of it alone, and the rest of the fork is in a checkpoint of the app. A scope
// that names nothing is refused before anything is made.
func testKeepPart(t *testing.T) {
	t.Parallel()
	testkit.Need(t, "root")
	w := forkWorld(t)
	w.set(t, "zero")
	d := w.open(t)
	defer w.close(t, d)
	_, err := d.AddApp(t.Context(), root, ipc.App{
		Slug: "shop", Workspace: w.ws(), Run: []string{"sh", "-c", "exec sleep 100000"},
		Databases: []ipc.Database{{Name: "shop", Driver: "sqlite", DSN: "shop.db"}},
	})
	check(t, err)
	made, err := d.Fork(t.Context(), root, "shop", ipc.ForkRequest{Name: "tried"})
	check(t, err)
	f := made.Forks[0]
	fork := world{dir: filepath.Dir(f.Workspace), at: f.Workspace}
	fork.set(t, "tried")
	is := func(file, want string) {
		t.Helper()
		if got, err := os.ReadFile(filepath.Join(w.ws(), file)); err != nil || string(got) != want {
			t.Errorf("%s of the app has %q, %v, want %q", file, got, err, want)
		}
	}
	count := func() int {
		list, err := d.Checkpoints(t.Context(), root, "shop", ipc.CheckpointQuery{})
		check(t, err)
		own, err := d.Checkpoints(t.Context(), root, f.Slug, ipc.CheckpointQuery{})
		check(t, err)
		return len(list.Checkpoints) + len(own.Checkpoints)
	}

	before := count()
	for scope, want := range map[string]errs.Kind{"../shop": errs.Invalid, "layer:db:other": errs.Invalid, "": errs.Invalid, "flie1": errs.NotFound} {
		_, err := d.KeepFork(t.Context(), root, "shop", "tried", ipc.KeepRequest{Scope: []string{scope}})
		if errs.KindOf(err) != want {
			t.Errorf("keep with the scope %q: %v, want the kind %s", scope, err, want)
		}
	}
	if n := count(); n != before {
		t.Errorf("%d checkpoints were made for requests that are refused", n-before)
	}

	_, err = d.KeepFork(t.Context(), root, "shop", "tried", ipc.KeepRequest{Scope: []string{"file1", "made-tried"}, AndStay: true})
	check(t, err)
	is("file1", "tried")
	is("made-tried/sub/f", "x\n")
	is("file2", "zero")
	if got, err := w.sqliteSays(); err != nil || got != "zero" {
		t.Errorf("the app's database has %q, %v, which was not in scope", got, err)
	}

	res, err := d.KeepFork(t.Context(), root, "shop", "tried", ipc.KeepRequest{Scope: []string{"layer:db:shop"}})
	check(t, err)
	is("file2", "zero")
	if got, err := w.sqliteSays(); err != nil || got != "tried" {
		t.Errorf("the app's database has %q, %v", got, err)
	}
	if list, err := d.Forks(t.Context(), root, "shop"); err != nil || len(list.Forks) != 0 {
		t.Errorf("after the fork was kept there are %+v, %v", list.Forks, err)
	}

	_, err = d.Rollback(t.Context(), root, "shop", res.RestoredTo.ID, ipc.RollbackRequest{}, nil)
	check(t, err)
	is("file2", "tried")
}
