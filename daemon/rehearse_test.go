package daemon_test

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"mulligan/daemon"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/snap/postgres/pgtest"
	"mulligan/testkit"
)

// rehearsing is a daemon that rehearses databases of up to so many bytes.
func (w world) rehearsing(t *testing.T, most int64, hook func(step string) error) *daemon.Daemon {
	t.Helper()
	opt := w.options()
	opt.RehearseMax, opt.UpkeepEvery, opt.Failpoint = most, 10*time.Millisecond, hook
	return w.openAs(t, opt)
}

// checkpoint makes a checkpoint.
func checkpoint(t *testing.T, d *daemon.Daemon) ipc.Checkpoint {
	t.Helper()
	cp, err := d.Create(t.Context(), root, "shop", ipc.CreateRequest{Pinned: true})
	if err != nil {
		t.Fatal(err)
	}
	return cp
}

// rehearsed waits until a checkpoint was rehearsed, and gives it.
func rehearsed(t *testing.T, d *daemon.Daemon, id ipc.CheckpointID) ipc.Checkpoint {
	t.Helper()
	for end := time.Now().Add(testkit.Patience); ; time.Sleep(10 * time.Millisecond) {
		cp, err := d.Checkpoint(t.Context(), root, "shop", id)
		if err != nil {
			t.Fatal(err)
		}
		if cp.Rehearsed != nil {
			return cp
		}
		if time.Now().After(end) {
			t.Fatalf("%s is never rehearsed; problems: %q", id, d.Status(root).Problems)
		}
	}
}

// aside are the databases on the server that restores and rehearsals made.
func aside(t *testing.T, c *pgtest.Cluster) string {
	t.Helper()
	return c.Psql(t, "postgres", `SELECT datname FROM pg_database WHERE datname LIKE '%\_\_mulligan\_%'`)
}

// The first checkpoint of a database is rehearsed, and the first of another schema, and no other;
// that stays known. What could not be restored is a problem at once, and none any more when it can be.
func testRehearsed(t *testing.T) {
	t.Parallel()
	c := pgtest.Start(t, pgtest.Options{Dir: quickDir(t)})
	w := newWorld(t, c)
	db := c.Psql(t, "postgres", "SELECT datname FROM pg_database WHERE datname LIKE 'mt%'")
	d := w.rehearsing(t, 1<<30, nil)
	first := checkpoint(t, d)
	if cp := rehearsed(t, d, first.ID); !*cp.Rehearsed || len(cp.DBSnapshots) != 2 {
		t.Errorf("a plain database cannot be restored: %+v", cp)
	} else {
		for _, s := range cp.DBSnapshots {
			if want := s.Database == "main"; (s.Rehearsed != nil) != want {
				t.Errorf("database %s: rehearsed %v", s.Database, s.Rehearsed)
			}
		}
	}
	w.set(t, "one")
	same := checkpoint(t, d)

	// pg_dump's text names nothing that a function's body needs, and no search_path finds it.
	c.Psql(t, db, `CREATE TABLE public.most (n int); INSERT INTO public.most VALUES (9);
		CREATE FUNCTION public.allowed(i int) RETURNS bool LANGUAGE plpgsql AS $$ BEGIN RETURN i <= (SELECT max(n) FROM most); END $$;
		CREATE TABLE public.checked (i int CHECK (public.allowed(i))); INSERT INTO public.checked VALUES (7)`)
	bad := checkpoint(t, d)
	cp := rehearsed(t, d, bad.ID)
	if said := strings.Join(cp.Warnings, "\n"); *cp.Rehearsed || !strings.Contains(said, "db:main: A rehearsal could not restore it") || !strings.Contains(said, "checked") {
		t.Errorf("what cannot be restored: rehearsed %v, warnings %q", *cp.Rehearsed, cp.Warnings)
	}
	waitFor(t, "the problem shows", func() bool { // it is noted after the checkpoint is
		return strings.Contains(strings.Join(d.Status(root).Problems, "\n"), "shop: db:main: A rehearsal could not restore it")
	})
	if cp, err := d.Checkpoint(t.Context(), root, "shop", same.ID); err != nil || cp.Rehearsed != nil {
		t.Errorf("one with a schema that is known was rehearsed again: %v, %v", cp.Rehearsed, err)
	}
	if again := checkpoint(t, d); !strings.Contains(strings.Join(again.Warnings, "\n"), "A rehearsal could not restore it") {
		t.Errorf("the next one warns of %q", again.Warnings)
	}
	w.close(t, d)
	if left := aside(t, c); left != "" {
		t.Errorf("left on the server: %s", left)
	}

	d = w.rehearsing(t, 1<<30, nil)
	for id, want := range map[ipc.CheckpointID]bool{first.ID: true, bad.ID: false} {
		if cp, err := d.Checkpoint(t.Context(), root, "shop", id); err != nil || cp.Rehearsed == nil || *cp.Rehearsed != want {
			t.Errorf("of %s a new daemon knows %v, %v", id, cp.Rehearsed, err)
		}
	}
	c.Psql(t, db, "CREATE OR REPLACE FUNCTION public.allowed(i int) RETURNS bool LANGUAGE plpgsql AS $$ BEGIN RETURN i < 10; END $$")
	mended := checkpoint(t, d)
	if cp := rehearsed(t, d, mended.ID); !*cp.Rehearsed {
		t.Errorf("mended: %+v", cp)
	}
	waitFor(t, "there is no problem any more", func() bool { return len(d.Status(root).Problems) == 0 })
	w.close(t, d)
}

// An operation waits for no rehearsal: it ends it, and what was made for it is gone. The rehearsal is
// begun again when nobody has the app.
func testRehearsalGivesWay(t *testing.T) {
	t.Parallel()
	c := pgtest.Start(t, pgtest.Options{Dir: quickDir(t)})
	w := newWorld(t, c)
	begun, goOn := make(chan string), make(chan bool)
	var times atomic.Int32
	d := w.rehearsing(t, 1<<30, func(step string) error {
		if step == "build: table" && times.Add(1) == 1 {
			begun <- step
			<-goOn
		}
		return nil
	})
	defer w.close(t, d)
	first := checkpoint(t, d)
	<-begun
	if aside(t, c) == "" {
		t.Error("nothing is built beside the live database")
	}
	made := make(chan error)
	go func() {
		_, err := d.Create(t.Context(), root, "shop", ipc.CreateRequest{})
		made <- err
	}()
	for end := time.Now().Add(testkit.Patience); ; time.Sleep(time.Millisecond) { // until it has the app, and waits
		a, err := d.App(t.Context(), root, "shop")
		if err != nil || time.Now().After(end) {
			t.Fatalf("nobody has the app: %v", err)
		}
		if a.Busy != "" {
			break
		}
	}
	close(goOn)
	if err := <-made; err != nil {
		t.Fatal(err)
	}
	cp, err := d.Checkpoint(t.Context(), root, "shop", first.ID)
	if err != nil || cp.Rehearsed != nil {
		t.Errorf("a rehearsal that was cut short counts: %v, %v", cp.Rehearsed, err)
	}
	list, err := d.Checkpoints(t.Context(), root, "shop", ipc.CheckpointQuery{})
	if err != nil {
		t.Fatal(err)
	}
	if cp := rehearsed(t, d, list.Checkpoints[0].ID); !*cp.Rehearsed {
		t.Errorf("begun again: %+v", cp)
	}
	if left := aside(t, c); left != "" {
		t.Errorf("left on the server: %s", left)
	}
}

// freeze stops the processes of a server that works in a folder, and returns what lets them go on.
func freeze(t *testing.T, dir string) (thaw func()) {
	t.Helper()
	var stopped []int
	links, _ := filepath.Glob("/proc/[0-9]*/cwd") // the pattern is good
	for _, link := range links {
		if at, err := os.Readlink(link); err != nil || at != dir {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(link)))
		if err == nil && syscall.Kill(pid, syscall.SIGSTOP) == nil {
			stopped = append(stopped, pid)
		}
	}
	if len(stopped) == 0 {
		t.Errorf("no process works in %s", dir)
	}
	return sync.OnceFunc(func() {
		for _, pid := range stopped {
			_ = syscall.Kill(pid, syscall.SIGCONT) // it may have ended
		}
	})
}

// A server freezes in a rehearsal, and the rehearsal does not come to its end: what can be rolled back
// without that server is rolled back all the same. When the server goes on, what the rehearsal left
// on it is dropped, and the rehearsal is begun again, without a restart.
func testRescueBesideFrozenRehearsal(t *testing.T) {
	for name, start := range map[string]func(t *testing.T) (s *awayServer, folder func() string, aside func() string){
		"Postgres": func(t *testing.T) (*awayServer, func() string, func() string) {
			c := pgtest.New(t, pgtest.Options{Dir: quickDir(t)})
			s := awayPostgresOf(c)
			return s, func() string { return c.DataDir }, func() string { return aside(t, c) }
		},
		"MariaDB": func(t *testing.T) (*awayServer, func() string, func() string) {
			s := awayMariaDB(t)
			return s, func() string { return s.folder }, func() string {
				return s.ask(t, "SELECT schema_name FROM information_schema.schemata WHERE schema_name LIKE '%mulligan%'")
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, folder, aside := start(t)
			s.start(t)
			s.set(t, "zero")
			w := world{dir: worldDir(t)}
			write(t, w.ws(), "work", "zero")
			frozen, goOn := make(chan bool), make(chan bool)
			var times atomic.Int32
			var thaw func()
			d := w.rehearsing(t, 1<<30, func(step string) error {
				if strings.HasPrefix(step, s.rehearses) && times.Add(1) == 1 {
					thaw = freeze(t, folder())
					close(frozen)
					<-goOn
				}
				return nil
			})
			defer w.close(t, d)
			release := sync.OnceFunc(func() { close(goOn) })
			defer release()
			if _, err := d.AddApp(t.Context(), root, ipc.App{Slug: "shop", Workspace: w.ws(), Databases: []ipc.Database{s.db}}); err != nil {
				t.Fatal(err)
			}
			cp := create(t, d)
			<-frozen
			defer thaw()
			write(t, w.ws(), "work", "one")
			done := make(chan error, 1)
			go func() {
				_, err := d.Rollback(context.Background(), root, "shop", cp, ipc.RollbackRequest{Without: []string{"db:main"}}, nil)
				done <- err
			}()
			select {
			case err := <-done:
				if err != nil {
					t.Fatal(err)
				}
			case <-time.After(testkit.Patience):
				t.Fatal("the rollback waits for a rehearsal that does not end")
			}
			if got := read(t, w.ws(), "work"); got != "zero" {
				t.Errorf("work says %q", got)
			}
			release()
			if err := keepLast(t.Context(), d, 3); err != nil { // it waits until the rehearsal has given up
				t.Fatal(err)
			}
			if !planned(t, w) { // asking the server that goes on again would race with those who drop it
				t.Error("the rehearsal left nothing on the frozen server")
			}
			thaw()
			if cp := rehearsed(t, d, cp); !*cp.Rehearsed {
				t.Errorf("begun again: %+v", cp)
			}
			waitFor(t, "nothing is left on the server", func() bool { return aside() == "" })
			goBack(t, d, cp, ipc.RollbackRequest{})
		})
	}
}

// planned reports whether the plan of a rehearsal is on the disk: what is on the server is to be dropped.
func planned(t *testing.T, w world) (found bool) {
	t.Helper()
	err := filepath.WalkDir(w.state(), func(path string, e fs.DirEntry, err error) error {
		found = found || e.Name() == "plan.json" && strings.HasPrefix(filepath.Base(filepath.Dir(path)), "rehearse-")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// A database that is larger than the limit is left alone, and is no problem.
func testTooLargeToRehearse(t *testing.T) {
	t.Parallel()
	c := pgtest.Start(t, pgtest.Options{Dir: quickDir(t)})
	w := newWorld(t, c)
	var built atomic.Int32
	looked := make(chan bool, 1)
	d := w.rehearsing(t, 1, func(step string) error {
		switch {
		case step == "estimate the size of db:main for a rehearsal":
			looked <- true
		case strings.HasPrefix(step, "build: "):
			built.Add(1)
		}
		return nil
	})
	cp := checkpoint(t, d)
	<-looked
	problems := d.Status(root).Problems
	w.close(t, d) // waits for what was begun
	d = w.open(t)
	defer w.close(t, d)
	if now, err := d.Checkpoint(t.Context(), root, "shop", cp.ID); err != nil || now.Rehearsed != nil || built.Load() > 0 || len(problems) > 0 {
		t.Errorf("%v, %v, built %d times, problems %q", now.Rehearsed, err, built.Load(), problems)
	}
}

// A database that cannot be reached keeps no other one of the app from its rehearsal.
func testRehearsedBesideOneThatIsDown(t *testing.T) {
	t.Parallel()
	c := pgtest.Start(t, pgtest.Options{Dir: quickDir(t)})
	w := newWorld(t, c)
	var asked atomic.Int32
	d := w.rehearsing(t, 1<<30, func(step string) error {
		if step != "estimate the size of db:main for a rehearsal" {
			return nil
		}
		asked.Add(1)
		return errs.New(errs.Unavailable, "", "the server is down")
	})
	defer func() { w.close(t, d) }()
	addSecond(t, w, c, d)
	id := checkpoint(t, d).ID
	waitFor(t, "the other database is rehearsed", func() bool { return restorable(t, d, id, "second") })
	if asked.Load() == 0 {
		t.Error("nobody asked for the first database")
	}
}

// addSecond registers a further database of the app, called second.
func addSecond(t *testing.T, w world, c *pgtest.Cluster, d *daemon.Daemon) {
	t.Helper()
	a, err := d.App(t.Context(), root, "shop")
	if err != nil {
		t.Fatal(err)
	}
	c.Psql(t, "postgres", "CREATE DATABASE second")
	dbs := append(a.Databases, ipc.Database{Name: "second", Driver: "postgres", DSN: c.DSN("second"), Mode: "logical"})
	for i := range dbs {
		if dbs[i].Name == "main" {
			dbs[i].DSN = w.pg // the answer has no passwords
		}
	}
	if _, err := d.SetApp(t.Context(), root, "shop", ipc.AppChange{Databases: &dbs}); err != nil {
		t.Fatal(err)
	}
}

// restorable reports whether a rehearsal restored that database of a checkpoint.
func restorable(t *testing.T, d *daemon.Daemon, id ipc.CheckpointID, database string) bool {
	t.Helper()
	cp, err := d.Checkpoint(t.Context(), root, "shop", id)
	if err != nil {
		t.Fatal(err)
	}
	at := slices.IndexFunc(cp.DBSnapshots, func(s ipc.DBSnapshot) bool { return s.Database == database })
	r := cp.DBSnapshots[at].Rehearsed
	return r != nil && *r
}

// An operation begins when the rehearsal of one database has just come to its end: that of the next
// database is made when nobody has the app.
func testRehearsalGivesWayBetween(t *testing.T) {
	t.Parallel()
	c := pgtest.Start(t, pgtest.Options{Dir: quickDir(t)})
	w := newWorld(t, c)
	d := w.open(t)
	addSecond(t, w, c, d)
	old, newest := create(t, d), create(t, d)
	w.close(t, d)

	ending, deleting := make(chan bool), make(chan bool)
	var ends, deletes atomic.Int32
	d = w.rehearsing(t, 1<<30, func(step string) error {
		switch {
		case step == "phase: dropped" && ends.Add(1) == 1:
			close(ending)
			<-deleting
		case step == "drop snapshots" && deletes.Add(1) == 1: // the operation has the app: the rehearsal is cut
			close(deleting)
		}
		return nil
	})
	defer w.close(t, d)
	<-ending
	if err := d.Delete(t.Context(), root, "shop", old); err != nil {
		t.Fatal(err)
	}
	for _, database := range []string{"main", "second"} {
		waitFor(t, "database "+database+" is rehearsed", func() bool { return restorable(t, d, newest, database) })
	}
	if ends.Load() < 2 {
		t.Error("the operation came after both rehearsals")
	}
}
