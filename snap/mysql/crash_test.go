package mysql

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/snaptest"
)

// fate is what a victim does, and the step that it dies at.
type fate struct {
	Dir, Socket, DB string
	Do              string // "capture", "prepare", "commit", "undo"
	Step            int
}

// victim is a daemon that is killed at a step. It exits in order where the
// work has fewer steps.
func victim(arg string) {
	var f fate
	must(json.Unmarshal([]byte(arg), &f))
	cfg := config(f.Dir, f.Socket, f.DB)
	var err error
	cfg.Store, err = cas.Open(filepath.Join(f.Dir, "store"), cas.Options{SegmentBytes: 64 << 10})
	must(err)
	cfg.Failpoint = snaptest.DieAt(f.Step)
	d, err := New(cfg)
	must(err)
	must(f.run(d))
	must(cfg.Store.Close())
}

func (f fate) run(d *Driver) error { return snaptest.Do(context.Background(), d, f.Do) }

// crashSubject has snapshots db-target and db-base, the present, and for do
// whatever has to come before it.
func crashSubject(t *testing.T, do string, srv *server) (s *subject, target, base string) {
	t.Helper()
	s = newSubject(t, srv)
	for _, id := range []snap.SnapshotID{"db-target", "db-base"} {
		if id == "db-base" {
			target = s.dump(t, s.db)
			s.mutate(t, 2)
		}
		_, err := s.driver.Capture(t.Context(), snap.CaptureRequest{ID: id})
		check(t, err)
	}
	base = s.dump(t, s.db)
	if do == "commit" || do == "undo" {
		check(t, fate{Do: "prepare"}.run(s.driver))
	}
	if do == "undo" {
		check(t, fate{Do: "commit"}.run(s.driver))
		s.mutate(t, 3)
	}
	return s, target, base
}

func TestKilledAtEachStep(t *testing.T) {
	snaptest.RunCrashes(t, func(t *testing.T) snaptest.Crashable { return crashing{newSubject(t, sharedServer(t))} })
}

// TestWrittenSinceTheCrash: what is written to tables that a daemon which died was about to exchange is not lost when the next one goes on.
func TestWrittenSinceTheCrash(t *testing.T) {
	for name, write := range map[string]struct{ sql, look, want string }{
		"row":        {"INSERT INTO loose VALUES (78, 'since')", "SELECT COUNT(*) FROM loose WHERE a = 78", "1"},
		"table":      {"CREATE TABLE since (a INT); INSERT INTO since VALUES (78)", "SELECT a FROM since", "78"},
		"definition": {"ALTER TABLE parent ADD COLUMN since INT DEFAULT 78", "SELECT since FROM parent LIMIT 1", "78"},
	} {
		t.Run(name, func(t *testing.T) {
			s, _, _ := crashSubject(t, "commit", sharedServer(t))
			s.diesInCommit(t)
			s.sql(t, s.db, write.sql)
			if err := (fate{Do: "commit"}).run(s.driver); !errors.Is(err, snap.ErrChanged) {
				t.Errorf("the next Commit did not see it: %v", err)
			}
			check(t, fate{Do: "undo"}.run(s.driver))
			check(t, fate{Do: "finish"}.run(s.driver))
			s.alone(t)
			if got := s.sql(t, s.db, write.look); got != write.want {
				t.Errorf("%s is %q after Undo, want %q", write.look, got, write.want)
			}
			if got := s.sql(t, "", "SELECT COUNT(*) FROM information_schema.triggers WHERE trigger_schema = '"+s.db+"'"); got != "2" {
				t.Errorf("the database has %s triggers after Undo, want the base's 2", got)
			}
		})
	}
}

// diesInCommit has a driver begin a Commit and die right before the exchange, and opens another.
func (s *subject) diesInCommit(t *testing.T) {
	t.Helper()
	died := errors.New("the daemon died")
	s.cfg.Failpoint = func(step string) error {
		if step == "exchange" {
			return died
		}
		return nil
	}
	s.reopen(t)
	if err := (fate{Do: "commit"}).run(s.driver); !errors.Is(err, died) {
		t.Fatalf("the first Commit was to die: %v", err)
	}
	s.cfg.Failpoint = nil
	s.reopen(t)
}

// TestKeyToMissingTable: a Commit that begins anew finds the base unchanged where one of its foreign keys refers to a table that is missing.
func TestKeyToMissingTable(t *testing.T) {
	s := newSubject(t, sharedServer(t))
	check(t, s.capture("db-target"))
	target := s.dump(t, s.db)
	s.sql(t, s.db, "SET foreign_key_checks = 0; DROP TABLE parent")
	check(t, s.capture("db-base"))
	check(t, fate{Do: "prepare"}.run(s.driver))
	s.diesInCommit(t)
	check(t, fate{Do: "commit"}.run(s.driver))
	if s.dump(t, s.db) != target {
		t.Error("Commit did not get to the target")
	}
}

// crashing is a subject that a process which is killed shares.
type crashing struct{ *subject }

func (c crashing) Close(t *testing.T) { check(t, c.cfg.Store.Close()) }
func (c crashing) Alone(t *testing.T) { c.alone(t) }

func (c crashing) Reopen(t *testing.T) {
	t.Helper()
	var err error
	c.cfg.Store, err = cas.Open(filepath.Join(filepath.Dir(c.cfg.StateDir), "store"), cas.Options{SegmentBytes: 64 << 10})
	check(t, err)
	c.subject.Reopen(t)
}

// Halfway says that tables are exchanged one after the other.
func (c crashing) Halfway() {}

func (c crashing) Process(t *testing.T, do string, step int) *exec.Cmd {
	return command(t, "victim", fate{filepath.Dir(c.cfg.StateDir), c.socket(), c.db, do, step})
}

// crashIDs names what an operation of fate makes.
var crashIDs = snap.Gone{Snapshots: []snap.SnapshotID{"db-cut"}, Restores: []snap.RestoreID{"op-1"}}

// alone checks that nothing is left of a switch.
func (s *subject) alone(t *testing.T) {
	t.Helper()
	if left := s.sql(t, "", "SHOW DATABASES LIKE '"+s.db+"\\_\\_%'"); left != "" {
		t.Errorf("databases are left: %s", left)
	}
	if list, _ := os.ReadDir(filepath.Join(s.cfg.StateDir, "switches")); len(list) != 0 {
		t.Errorf("switches are left: %v", list)
	}
	if roots := s.cfg.Store.Roots(driverName + "/" + s.cfg.App + "/" + s.cfg.Name + "/switch/"); len(roots) != 0 {
		t.Errorf("roots are left: %v", roots)
	}
}

// A server that dies at whichever moment comes back with the old or the new
// state, and the switch can go either way.
func TestServerKilled(t *testing.T) {
	snaptest.RunServerKills(t, 1, func(t *testing.T) snaptest.Served { return served{newSubject(t, ownServer(t))} })
}

// served is a subject whose server is killed.
type served struct{ *subject }

func (s served) Kill(*testing.T)    { s.kill() }
func (s served) Start(t *testing.T) { s.restart(t) }

// Alone does what is asked for where a server died in DROP DATABASE: it removes the files of a database that is empty.
func (s served) Alone(t *testing.T) {
	t.Helper()
	left, err := s.driver.DropLeftovers(t.Context())
	check(t, err)
	for _, what := range left {
		t.Log(what)
		db, _, _ := strings.Cut(strings.TrimPrefix(what, "database "), " is empty")
		if tables := s.sql(t, "", "SELECT table_name FROM information_schema.tables WHERE table_schema = '"+db+"'"); tables != "" {
			t.Errorf("the database has %s", tables)
		}
		files, err := filepath.Glob(filepath.Join(s.server.dir, "data", db, "*"))
		check(t, err)
		if len(files) == 0 {
			t.Error("it has no file")
		}
		for _, file := range files {
			check(t, os.Remove(file))
		}
	}
	if left, err = s.driver.DropLeftovers(t.Context()); err != nil || len(left) > 0 {
		t.Errorf("left behind is %q, %v", left, err)
	}
	s.alone(t)
}

// Halfway says that tables are exchanged one after the other.
func (s served) Halfway() {}

// A file that no table owns, as a server leaves it that dies in DROP DATABASE, keeps a
// database of a switch from being removed. The restore ends all the same; what is left has a
// name, and goes when it can.
func testFileInTheSide(t *testing.T) {
	for _, do := range []string{"prepare", "commit", "undo"} {
		t.Run(do, func(t *testing.T) {
			srv := ownServer(t)
			s, target, base := crashSubject(t, do, srv)
			check(t, fate{Do: do}.run(s.driver))
			db := map[string]string{"prepare": s.driver.side("op-1"), "commit": s.driver.old("op-1"), "undo": s.driver.gone("op-1")}[do]
			file := filepath.Join(srv.dir, "data", db, "parts.MAI~")
			check(t, os.WriteFile(file, []byte("x"), 0o600))
			s.restart(t)
			want := map[string]string{"prepare": base, "commit": target, "undo": base}[do]
			if do != "prepare" {
				sw, err := s.driver.Resume(t.Context(), "op-1")
				check(t, err)
				check(t, sw.Finish(t.Context()))
				if _, err := s.driver.Resume(t.Context(), "op-1"); errs.KindOf(err) != errs.NotFound {
					t.Errorf("after Finish, the switch is there: %v", err)
				}
			}
			gone := snap.Gone{Restores: []snap.RestoreID{"op-1"}}
			for range 2 { // and again
				check(t, s.driver.Sweep(t.Context(), gone))
				left, err := s.driver.DropLeftovers(t.Context())
				check(t, err)
				if len(left) != 1 || !strings.Contains(left[0], db) {
					t.Fatalf("left behind is %q, want %s", left, db)
				}
			}
			if s.dump(t, s.db) != want {
				t.Error("the live state is not what it was taken to")
			}
			s.restores(t, target)
			check(t, os.Remove(file))
			left, err := s.driver.DropLeftovers(t.Context())
			check(t, err)
			if len(left) > 0 {
				t.Errorf("left behind is %q, want nothing", left)
			}
			s.alone(t)
		})
	}
}

// A server that dies as it drops a trigger leaves a file of it, which keeps the
// trigger from being made again.
func TestTornTrigger(t *testing.T) {
	srv := ownServer(t)
	s, _, base := crashSubject(t, "undo", srv)
	file := filepath.Join(srv.dir, "data", s.db, "second.TRN")
	data, err := os.ReadFile(file)
	check(t, err)
	torn := false
	s.driver.cfg.Failpoint = func(step string) error {
		if step != "exchanged" {
			return nil
		}
		torn = true
		return os.WriteFile(file, data, 0o600)
	}
	check(t, fate{Do: "undo"}.run(s.driver))
	if !torn || s.dump(t, s.db) != base {
		t.Errorf("Undo, which met the file %v, did not get back to the base", torn)
	}
}

// restores goes to db-target by another restore.
func (s *subject) restores(t *testing.T, target string) {
	t.Helper()
	check(t, s.capture("db-now"))
	sw, err := s.driver.Prepare(t.Context(), snap.RestoreRequest{ID: "op-2", Target: "db-target", Base: "db-now"})
	check(t, err)
	check(t, sw.Commit(t.Context()))
	check(t, sw.Finish(t.Context()))
	if s.dump(t, s.db) != target {
		t.Error("another restore does not get to its target")
	}
}

// A table that a server tore apart in a RENAME is made again from the store, wherever it was.
func TestTornTable(t *testing.T) {
	for _, where := range []string{"live", "old"} {
		t.Run(where, func(t *testing.T) {
			srv := ownServer(t)
			s, _, base := crashSubject(t, "undo", srv)
			db := map[string]string{"live": s.db, "old": s.driver.old("op-1")}[where]
			s.sql(t, "", "FLUSH TABLES")
			for _, file := range []string{"parts.MAI", "old.MYD"} {
				check(t, os.Remove(filepath.Join(srv.dir, "data", db, file)))
			}
			s.restart(t)
			check(t, fate{Do: "undo"}.run(s.driver))
			if s.dump(t, s.db) != base {
				t.Error("Undo did not get back to the base")
			}
		})
	}
}

// What a process that dies in a rehearsal leaves is dropped by Sweep, as that of a restore.
func TestDiesInRehearsal(t *testing.T) {
	s := newSubject(t, sharedServer(t))
	check(t, s.capture("db-1"))
	id, before := snap.SnapshotID("db-1"), s.dump(t, s.db)
	s.cfg.Failpoint = func(step string) error {
		if step == "prepare: load" {
			panic(step)
		}
		return nil
	}
	s.reopen(t)
	func() {
		defer func() {
			if recover() == nil {
				t.Error("it did not come to that")
			}
		}()
		_ = s.driver.Rehearse(t.Context(), "rehearse-0123456789ab", id)
	}()
	ours := "SELECT COUNT(*) FROM information_schema.schemata WHERE schema_name LIKE '" + s.db + "\\_\\_mulligan%'"
	if left := s.sql(t, "", ours); left != "1" {
		t.Fatalf("%s databases are left, not one", left)
	}
	s.cfg.Failpoint = nil
	s.reopen(t)
	check(t, s.driver.Sweep(t.Context(), snap.Gone{}))
	if left := s.sql(t, "", ours); left != "0" {
		t.Errorf("%s databases are left", left)
	}
	if s.dump(t, s.db) != before {
		t.Error("the live database is another")
	}
}
