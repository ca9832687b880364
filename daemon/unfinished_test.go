package daemon_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mulligan/daemon"
	"mulligan/daemon/store"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/snap"
	"mulligan/snap/postgres/pgtest"
	"mulligan/testkit"
)

// becomesWhole waits until nothing is wrong any more, with no command given.
func (w world) becomesWhole(t *testing.T, d *daemon.Daemon) {
	t.Helper()
	waitFor(t, "nothing is unfinished", func() bool { return len(d.Status(root).Problems) == 0 })
}

// A daemon dies in a rollback whose layers it was switching, and the database server with it.
// The next daemon is up before the server: it says what it waits for, and finishes
// when the server is there, with nobody asking for anything.
//
// With MULLIGAN_TEST_LONG=1 that is a hundred times, in ten apps with a server each, and
// the server is up 30 seconds after the daemon. They wait together, in the place of one parallel test.
func testServerUpAfterTheDaemon(t *testing.T) {
	t.Parallel()
	apps, rounds, late := 1, 1, time.Duration(0)
	if long() {
		apps, rounds, late = 10, 10, 30*time.Second
	}
	var all sync.WaitGroup
	defer all.Wait()
	for app := range apps {
		all.Go(func() {
			t.Run(fmt.Sprint("app ", app), func(t *testing.T) { diesWithServer(t, testkit.Rand(t), rounds, late) })
		})
	}
}

// diesWithServer has a daemon and its app's server die in the switch of a rollback, some
// rounds long, and the server come up some time after the next daemon.
func diesWithServer(t *testing.T, rnd *rand.Rand, rounds int, late time.Duration) {
	c := pgtest.Start(t, pgtest.Options{Dir: quickDir(t)})
	r := newRound(t, newWorld(t, c))
	r.prepare(t, "rollback")
	names, _, _ := r.victim(t, 0, 0)
	r.check(t, "rollback")
	from, to := slices.Index(names, "plan switching"), slices.Index(names, "plan switched")
	if from < 0 || to < from {
		t.Fatalf("no switch among the steps %q", names)
	}
	clear(r.tally)
	for range rounds {
		r.prepare(t, "rollback")
		step := from + 2 + rnd.IntN(to-from) // the first step after the plan was written, to the last
		if _, _, killed := r.victim(t, step, 0); !killed {
			t.Fatalf("there is no step %d", step)
		}
		c.Kill(t)
		d := r.open(t)
		r.waitsForServer(t, d, "killed at "+names[step-1], late)
		c.Start(t)
		r.becomesWhole(t, d)
		word := r.word(t)
		if word != r.before && word != "zero" {
			t.Fatalf("killed at %s: the app is in state %q", names[step-1], word)
		}
		r.runs(t, d, word)
		r.close(t, d)
		r.check(t, "killed at "+names[step-1])
		progress(t, "killed at %s: %v", names[step-1], r.tally)
	}
	t.Logf("%d rounds: %v", rounds, r.tally)
}

// waitsForServer checks that a daemon says that it waits for the app's server, at once
// and for as long as the server takes.
func (r *round) waitsForServer(t *testing.T, d *daemon.Daemon, what string, late time.Duration) {
	t.Helper()
	for began := time.Now(); ; time.Sleep(min(late, time.Second)) { // the server's lateness is the point
		problems := d.Status(root).Problems
		if all := strings.Join(problems, "\n"); !strings.Contains(all, "shop: ") || !strings.Contains(all, "tries again") {
			t.Fatalf("%s, and the server is down: problems %q", what, problems)
		}
		if time.Since(began) >= late {
			return
		}
	}
}

// failing is a daemon whose steps fail for as long as they are told to.
func (w world) failing(t *testing.T, fails func(step string) error) *daemon.Daemon {
	t.Helper()
	opt := w.options()
	opt.Failpoint = fails
	d, err := daemon.Open(t.Context(), opt)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// patient is failing, with agents that wait until a turn's begin is exact, and ends of turns that compare the databases, however long that takes.
func (w world) patient(t *testing.T, fails func(step string) error) *daemon.Daemon {
	t.Helper()
	opt := w.options()
	opt.Failpoint, opt.AgentWait, opt.CompareTime = fails, testkit.Patience, testkit.Patience
	return w.openAs(t, opt)
}

// A rollback fails, and so does putting one of the layers back: the others are put back, the
// app has a problem, and is whole and up once the last can be.
func TestPutBackThatFails(t *testing.T) {
	t.Parallel()
	c := pgtest.Start(t, pgtest.Options{Dir: quickDir(t)})
	w := newWorld(t, c)
	var full atomic.Bool
	d := w.failing(t, func(step string) error {
		if full.Load() && (step == "commit db:main" || step == "undo db:shop") {
			return unix.ENOSPC
		}
		return nil
	})
	defer w.close(t, d)
	cp, err := d.Create(t.Context(), root, "shop", ipc.CreateRequest{})
	if err != nil {
		t.Fatal(err)
	}
	w.set(t, "one")
	full.Store(true)
	_, err = d.Rollback(t.Context(), root, "shop", cp.ID, ipc.RollbackRequest{}, nil)
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("a rollback with a full disk: %v", err)
	}
	a, err := d.App(t.Context(), root, "shop")
	if err != nil {
		t.Fatal(err)
	}
	for what, list := range map[string][]string{"status": d.Status(root).Problems, "the app": a.Problems} {
		if !strings.Contains(strings.Join(list, "\n"), unix.ENOSPC.Error()) {
			t.Errorf("the problems of %s are %q", what, list)
		}
	}
	files, sqlite, pg, err := w.words()
	if err != nil || files != "one" || sqlite != "zero" || pg != "one" {
		t.Errorf("one layer cannot be put back: files %q, SQLite %q, Postgres %q, %v", files, sqlite, pg, err)
	}
	full.Store(false)
	w.becomesWhole(t, d)
	if got := w.word(t); got != "one" {
		t.Errorf("the app is in state %q, want the one before", got)
	}
	w.runs(t, d, "one")
}

// A rollback fails, and so does the end of putting its files back, where they are made durable:
// although they are all there, the app has a problem until that succeeds too.
func TestPutBackThatFailsAtItsEnd(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	var failing, undoing atomic.Bool
	var failed atomic.Int64
	d := w.failing(t, func(step string) error {
		undoing.CompareAndSwap(false, step == "undo files")
		if failing.Load() && (step == "commit db:shop" || step == "synced" && undoing.Load()) {
			if step == "synced" {
				failed.Add(1)
			}
			return unix.EIO
		}
		return nil
	})
	defer w.close(t, d)
	cp, err := d.Create(t.Context(), root, "shop", ipc.CreateRequest{})
	if err != nil {
		t.Fatal(err)
	}
	w.set(t, "one")
	failing.Store(true)
	res, err := d.Rollback(t.Context(), root, "shop", cp.ID, ipc.RollbackRequest{}, nil)
	if failed.Load() == 0 || !errors.Is(err, unix.EIO) || res.Recovered {
		t.Fatalf("the undo failed %d times: recovered %v, %v", failed.Load(), res.Recovered, err)
	}
	if got := w.word(t); got != "one" {
		t.Fatalf("the app is in state %q: the undo failed before its end, and this shows nothing", got)
	}
	if problems := strings.Join(d.Status(root).Problems, "\n"); !strings.Contains(problems, unix.EIO.Error()) {
		t.Errorf("the problems are %q", problems)
	}
	failing.Store(false)
	w.becomesWhole(t, d)
	if got := w.word(t); got != "one" {
		t.Errorf("the app is in state %q, want the one before", got)
	}
	w.runs(t, d, "one")
}

// The server dies while a copy is built there: the rollback is called off, and the copy
// is dropped when the server is up again.
func testServerDiesInPrepare(t *testing.T) {
	t.Parallel()
	c := pgtest.Start(t, pgtest.Options{Dir: quickDir(t)})
	w := newWorld(t, c)
	copies := func() string {
		return c.Psql(t, "postgres", `SELECT string_agg(datname, ' ') FROM pg_database WHERE datname LIKE '%\_\_mulligan\_%'`)
	}
	var armed atomic.Bool // while it is, no copy was there yet
	d := w.failing(t, func(step string) error {
		if strings.HasPrefix(step, "build: ") && armed.CompareAndSwap(true, false) {
			if copies() == "" {
				armed.Store(true)
			} else {
				c.Kill(t)
			}
		}
		return nil
	})
	defer w.close(t, d)
	cp, err := d.Create(t.Context(), root, "shop", ipc.CreateRequest{})
	if err != nil {
		t.Fatal(err)
	}
	w.set(t, "one")
	armed.Store(true)
	if _, err = d.Rollback(t.Context(), root, "shop", cp.ID, ipc.RollbackRequest{}, nil); err == nil || armed.Load() {
		t.Fatalf("the server died in a rollback (%v): %v", !armed.Load(), err)
	}
	waitFor(t, "what it waits for is said", func() bool { return len(d.Status(root).Problems) > 0 })
	c.Start(t)
	w.becomesWhole(t, d)
	if left := copies(); left != "" {
		t.Errorf("copies are left: %s", left)
	}
	w.runs(t, d, "one")
}

// testClusterStoppedForNothing has rollbacks end after the server of a cluster was stopped, because the cluster could not be captured while
// it ran, and before the cluster is prepared: the server runs again.
func testClusterStoppedForNothing(t *testing.T) {
	t.Parallel()
	w := world{dir: worldDir(t)}
	w = w.register(t, []ipc.Database{{Name: "shop", Driver: "sqlite", DSN: "shop.db"}, w.ownCluster(t, quickDir(t))})
	var last atomic.Value // the step at which the rollback ends
	var kept atomic.Bool  // the cluster, as its files are
	d := w.failing(t, func(step string) error {
		end := last.Load()
		if end != nil && step == "salvage: record" {
			kept.Store(true)
		}
		if end != nil && (step == end && kept.Load() || step == "capture: mark") {
			return unix.EIO
		}
		return nil
	})
	defer w.close(t, d)
	cp, err := d.Create(t.Context(), root, "shop", ipc.CreateRequest{})
	check(t, err)
	for _, step := range []string{"salvage: record", "record checkpoint", "prepare files", "prepare db:main"} {
		last.Store(step)
		kept.Store(false)
		if _, err := d.Rollback(t.Context(), root, "shop", cp.ID, ipc.RollbackRequest{}, nil); !errors.Is(err, unix.EIO) || !kept.Load() {
			t.Fatalf("a rollback that ends at %s, after the server was stopped (%v): %v", step, kept.Load(), err)
		}
		if says, err := w.postgresSays(); err != nil || says != "zero" {
			t.Errorf("after a rollback that ended at %s the database says %q, %v", step, says, err)
		}
	}
}

// mariaDB starts a MariaDB server of the test's own with a database shop, and gives the
// folder of its data, its socket, and a client.
func mariaDB(t *testing.T) (data, socket string, sql func(text string) string) {
	t.Helper()
	testkit.Need(t, "mariadb")
	dir := worldDir(t)
	data, socket = filepath.Join(dir, "data"), filepath.Join(dir, "s")
	testkit.MariaDB(t, data)
	cmd := exec.Command("mariadbd", testkit.MariaDBServer(data, socket, "--skip-networking", "--pid-file="+dir+"/pid", "--innodb-log-file-size=8M")...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	client := func(text string) ([]byte, error) {
		cmd := exec.Command("mariadb", "--no-defaults", "-uroot", "-S", socket, "-N", "-B")
		cmd.Stdin = strings.NewReader(text)
		return cmd.CombinedOutput()
	}
	waitFor(t, "MariaDB answers", func() bool { _, err := client("SELECT 1"); return err == nil })
	sql = func(text string) string {
		t.Helper()
		out, err := client(text)
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return strings.TrimSpace(string(out))
	}
	sql("CREATE DATABASE shop; CREATE TABLE shop.words (i int PRIMARY KEY, word text); INSERT INTO shop.words VALUES (1, 'zero')")
	return data, socket, sql
}

// A database that the server cannot remove is no failure of the rollback, and keeps none from
// the next: it is told until it can be removed.
func testLeftoverOnTheServer(t *testing.T) {
	t.Parallel()
	data, socket, sql := mariaDB(t)
	w := world{dir: worldDir(t)}.register(t, []ipc.Database{{Name: "main", Driver: "mysql", DSN: "mysql://root@localhost/shop?socket=" + socket}})
	var file string
	d := w.failing(t, func(step string) error {
		if step != "finish db:main" || file != "" {
			return nil
		}
		folders, err := filepath.Glob(filepath.Join(data, "shop__mulligan_*_old"))
		if err != nil || len(folders) != 1 {
			return fmt.Errorf("the databases put aside are %q, %v", folders, err)
		}
		file = filepath.Join(folders[0], "words.MAI~")
		return os.WriteFile(file, nil, 0o600)
	})
	defer w.close(t, d)
	cp, err := d.Create(t.Context(), root, "shop", ipc.CreateRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, word := range []string{"one", "two"} {
		sql("UPDATE shop.words SET word = '" + word + "'")
		res, err := d.Rollback(t.Context(), root, "shop", cp.ID, ipc.RollbackRequest{}, nil)
		if err != nil || !res.RolledBack {
			t.Fatalf("%v, %+v", err, res)
		}
		if got := sql("SELECT word FROM shop.words"); got != "zero" {
			t.Errorf("after the rollback the database says %q", got)
		}
		waitFor(t, "the leftover is told", func() bool {
			return strings.Contains(strings.Join(d.Status(root).Problems, "\n"), filepath.Base(filepath.Dir(file)))
		})
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	w.becomesWhole(t, d)
	if left := sql(`SHOW DATABASES LIKE 'shop\_\_mulligan\_%'`); left != "" {
		t.Errorf("databases are left: %s", left)
	}
}

// TestPurgeTriedAgain: what a purge could not remove is removed later, by the same daemon and by the next one. One purge that cannot be finished keeps
// no other from it.
func TestPurgeTriedAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	var drop, clear, finish atomic.Bool // whether these steps fail
	var tries atomic.Int32
	opt := w.options()
	opt.UpkeepEvery = time.Millisecond
	opt.Failpoint = func(step string) error {
		if step == "finish purge" {
			n := tries.Add(1)
			if finish.Load() && n%2 == 1 {
				return unix.EIO
			}
		}
		if step == "clear purged app" && clear.Load() || step == "append-change" && drop.Load() && calledBy("files.(*Driver).Delete") {
			return unix.EIO
		}
		return nil
	}
	left := func() int {
		list, err := os.ReadDir(filepath.Join(w.state(), "apps"))
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	d := w.openAs(t, opt)
	defer func() { w.close(t, d) }()
	other := filepath.Join(w.dir, "other")
	if err := os.Mkdir(other, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := d.AddApp(t.Context(), root, ipc.App{Slug: "other", Workspace: other}); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Create(t.Context(), root, "shop", ipc.CreateRequest{}); err != nil {
		t.Fatal(err)
	}
	clear.Store(true)
	finish.Store(true)
	for _, slug := range []string{"shop", "other"} {
		if err := d.RemoveApp(t.Context(), root, slug, true); !errors.Is(err, unix.EIO) || !strings.Contains(err.Error(), "tried again") {
			t.Fatalf("the purge of %s: %v", slug, err)
		}
	}
	waitFor(t, "one of two purges is finished", func() bool { return left() < 2 })
	finish.Store(false)
	waitFor(t, "both purges are finished", func() bool { return left() == 0 && len(d.Status(root).Problems) == 0 })

	w = world{dir: worldDir(t)}
	opt.StateDir, opt.User, opt.UpkeepEvery = w.state(), false, time.Hour
	d2 := w.openAs(t, opt)
	defer func() { w.close(t, d2) }()
	who := ipc.Caller{UID: 65534, PID: 2} // no other app is in this owner's content store
	keep(t, d2, who, "diary", testkit.Bytes(t, 1<<20))
	drop.Store(true)
	contents := filepath.Join(w.state(), "store-65534")
	if err := d2.RemoveApp(t.Context(), who, "diary", true); !errors.Is(err, unix.EIO) {
		t.Fatal(err)
	}
	w.close(t, d2)
	if len(rootsIn(t, contents)) == 0 {
		t.Error("the failed purge left no contents to the next daemon")
	}
	drop.Store(false)
	d2 = w.openAs(t, opt)
	if n := left(); n != 0 || len(d2.Status(root).Problems) > 0 {
		t.Errorf("the next daemon left %d apps: %q", n, d2.Status(root).Problems)
	}
	waitFor(t, "the contents are gone", func() bool { n := d2.Status(who).StoreBytes; return 0 < n && n < 1<<20 })
}

// TestStartBesideAnOwnerWhoseAppsWait: what the apps of one owner wait for when the daemon starts keeps nobody else waiting. They are tried one after
// the other, and the daemon can end meanwhile. The checkpoints of an app whose turn has not come can be read all the same, and a rollback of it decides
// whether it runs.
func TestStartBesideAnOwnerWhoseAppsWait(t *testing.T) {
	t.Parallel()
	testkit.Need(t, "root")
	held, goOn := make(chan struct{}), make(chan struct{})
	opt := daemon.Options{StateDir: filepath.Join(t.TempDir(), "state"), Watches: -1, StartWait: time.Millisecond}
	open := func(opt daemon.Options) *daemon.Daemon {
		t.Helper()
		d, err := daemon.Open(t.Context(), opt)
		check(t, err)
		return d
	}
	d := open(opt)
	add := func(slug, owner string) ipc.AppID {
		t.Helper()
		ws := workspace(t)
		sh(t, `chown -R "$1" "$2"`, owner, ws)
		a, err := d.AddApp(t.Context(), root, ipc.App{Slug: slug, Owner: owner, Workspace: ws, Run: []string{"sleep", "1000"}, Auto: owner == "games"})
		check(t, err)
		return a.ID
	}
	waiting := []ipc.AppID{add("one", "games"), add("two", "games")}
	add("zoo", "root")
	cp, err := d.Create(t.Context(), root, "two", ipc.CreateRequest{Quiesce: ipc.QuiesceNone})
	check(t, err)
	two, err := d.App(t.Context(), root, "two")
	check(t, err)
	write(t, two.Workspace, "state", "changed")
	target := map[string]ipc.CheckpointID{}
	for _, slug := range []string{"started", "stopped"} {
		add(slug, "games")
		cp, err := d.Create(t.Context(), root, slug, ipc.CreateRequest{})
		check(t, err)
		target[slug] = cp.ID
	}
	check(t, d.Close(t.Context()))
	records, err := store.Open(t.Context(), filepath.Join(opt.StateDir, "mulligan.db"), nil)
	check(t, err)
	for _, id := range waiting {
		check(t, records.PutOperation(t.Context(), store.Operation{ID: ipc.OperationID("start-" + id), AppID: id, Kind: "start", Plan: []byte("{}")}, time.Now()))
	}
	check(t, records.Close())

	waits := opt
	var starts atomic.Int64
	waits.Failpoint = func(step string) error {
		if step == "start unit" && starts.Add(1) == 1 {
			close(held)
			select {
			case <-goOn:
			case <-time.After(testkit.Patience):
			}
		}
		return nil
	}
	d = open(waits)
	stateOf := func(slug string) string {
		a, err := d.App(t.Context(), root, slug)
		check(t, err)
		return a.State
	}
	<-held
	waitFor(t, "root's app is up", func() bool { return stateOf("zoo") == "running" })
	if problems, want := d.Status(root).Problems, "two: the app is not started yet; mulligand keeps trying"; !slices.Contains(problems, want) {
		t.Errorf("the second app of the other owner is not waiting: %q", problems)
	}
	if diff, err := d.Diff(t.Context(), root, "two", cp.ID, ipc.DiffQuery{}); err != nil || diff.Total != 1 {
		t.Errorf("what an app that waits changed: %+v; %v", diff, err)
	}
	if v, err := d.Verify(t.Context(), root, "two", cp.ID, snap.Full); err != nil || !v.OK || len(v.Warnings) > 0 {
		t.Errorf("a checkpoint of an app that waits: %+v; %v", v, err)
	}
	no := false
	for slug, want := range map[string]string{"started": "running", "stopped": "stopped"} {
		req := ipc.RollbackRequest{}
		if slug == want {
			req.Start = &no
		}
		res, err := d.Rollback(t.Context(), root, slug, target[slug], req, nil)
		check(t, err)
		if got := stateOf(slug); got != want {
			t.Errorf("%s is %s after a rollback before its first start: %+v", slug, got, res.Stages)
		}
		waitFor(t, "nothing about "+slug+" is unfinished, and it is followed", func() bool {
			a, err := d.App(t.Context(), root, slug)
			check(t, err)
			return len(a.Problems) == 0 && a.Following != ""
		})
		if got := stateOf(slug); got != want {
			t.Errorf("%s is %s once nothing about it is unfinished", slug, got)
		}
	}
	_, err = d.Rollback(t.Context(), root, "started", ipc.Redo, ipc.RollbackRequest{}, nil)
	check(t, err)
	if got := stateOf("started"); got != "running" {
		t.Errorf("nobody has stopped it, and it is %s after a redo", got)
	}
	before, closed := starts.Load(), make(chan error, 1)
	go func() { closed <- d.Close(context.Background()) }()
	waitFor(t, "the daemon is stopping", func() bool {
		_, err := d.Create(t.Context(), root, "zoo", ipc.CreateRequest{Quiesce: ipc.QuiesceNone}) // it starts nothing
		return errs.KindOf(err) == errs.Unavailable
	})
	close(goOn)
	check(t, <-closed)
	if starts.Load() != before {
		t.Error("a daemon that ends has begun with the second app")
	}

	opt.StartWait = testkit.Patience
	d = open(opt)
	for _, slug := range []string{"one", "two", "zoo"} {
		if got := stateOf(slug); got != "running" {
			t.Errorf("with nothing to wait for, %s is %s after the start", slug, got)
		}
	}
	if p := d.Status(root).Problems; len(p) > 0 {
		t.Errorf("problems: %q", p)
	}
	check(t, d.Close(t.Context()))
}
