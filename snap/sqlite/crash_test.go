package sqlite

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/snaptest"
	"mulligan/testkit"
)

// fate is what a victim does, and the step that it dies at.
type fate struct {
	Dir  string // of the subject
	Do   string // "capture", "prepare", "commit", "undo"
	Step int
}

func (f fate) config() Config {
	return Config{App: "app-1", Name: "main", Dir: filepath.Join(f.Dir, "app"), Path: "data/app.db",
		StateDir: filepath.Join(f.Dir, "state"), BusyTimeout: time.Second}
}

// victim is a daemon that is killed at a step. It exits in order where the
// work has fewer steps.
func victim(arg string) {
	var f fate
	must(json.Unmarshal([]byte(arg), &f))
	cfg := f.config()
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

// The app's client leaves the files in order, or dies and leaves a log or a journal.
func TestKilledAtEachStep(t *testing.T) {
	states := []string{"clean", "log", "journal"}
	for _, i := range testkit.Sample(t, "states of the files", len(states), 1) {
		leave := states[i]
		t.Run(leave, func(t *testing.T) {
			snaptest.RunCrashes(t, func(t *testing.T) snaptest.Crashable {
				return crashing{newSubject(t, startClient(t), "DELETE"), leave}
			})
		})
	}
}

// crashing is a subject that a process which is killed shares.
type crashing struct {
	*subject
	leaves string // how files are left by what writes
}

func (c crashing) Close(t *testing.T)           { check(t, c.cfg.Store.Close()) }
func (c crashing) Mutate(t *testing.T, _ int64) { c.leave(t, c.leaves) }

func (c crashing) Reopen(t *testing.T) {
	t.Helper()
	var err error
	c.cfg.Store, err = cas.Open(filepath.Join(filepath.Dir(c.cfg.StateDir), "store"), cas.Options{SegmentBytes: 64 << 10})
	check(t, err)
	c.subject.Reopen(t)
}

func (c crashing) Process(t *testing.T, do string, step int) *exec.Cmd {
	return command(t, "victim", fate{filepath.Dir(c.cfg.StateDir), do, step})
}

func (c crashing) Alone(t *testing.T) {
	t.Helper()
	if list, _ := os.ReadDir(filepath.Join(c.cfg.StateDir, "switches")); len(list) != 0 {
		t.Errorf("switches are left: %v", list)
	}
	if roots := c.cfg.Store.Roots(driverName + "/" + c.cfg.App + "/" + c.cfg.Name + "/switch/"); len(roots) != 0 {
		t.Errorf("roots are left: %v", roots)
	}
	entries, err := os.ReadDir(filepath.Dir(c.path()))
	check(t, err)
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".mulligan") {
			t.Errorf("%s is left", e.Name())
		}
	}
}

// leave writes, with a client that ends in one of three ways.
func (s *subject) leave(t *testing.T, how string) {
	t.Helper()
	s.client.do(t, order{Path: s.path(), SQL: []string{"UPDATE kv SET seed = seed + 1, v = randomblob(9000)"}})
	switch how {
	case "log":
		startClient(t).do(t, order{Path: s.path(), Die: true, SQL: []string{
			"PRAGMA journal_mode=WAL", "UPDATE kv SET seed = seed + 1, v = randomblob(9000)"}})
		exists(t, s.path()+"-wal")
	case "journal":
		startClient(t).do(t, order{Path: s.path(), SQL: append([]string{"PRAGMA journal_mode=DELETE"}, halfway(1)...), Die: true})
		exists(t, s.path()+"-journal")
	}
}

// exists checks that a file is there and not empty.
func exists(t *testing.T, path string) {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil || info.Size() == 0 {
		t.Fatalf("%s should hold something: %v", path, err)
	}
}

// TestNobodyReadsWhileItIsReplaced: from the moment at which a database is given up until the new one is in its place, both are locked.
func TestNobodyReadsWhileItIsReplaced(t *testing.T) {
	s := newSubject(t, startClient(t), "DELETE")
	for _, id := range []snap.SnapshotID{"db-target", "db-base"} {
		s.leave(t, "clean")
		_, err := s.driver.Capture(t.Context(), snap.CaptureRequest{ID: id})
		check(t, err)
	}
	looked := 0
	s.cfg.Failpoint = func(step string) error {
		if step != "replace: cleared" && step != "replace: renamed" {
			return nil
		}
		looked++
		f, err := os.Open(s.path())
		if err != nil {
			return err
		}
		defer f.Close()
		if pid, err := lockHolder(f, unix.F_RDLCK, sharedFirst, sharedSize); pid == 0 || err != nil {
			t.Errorf("at the step %q a program may read the database: %v", step, err)
		}
		return nil
	}
	s.Reopen(t)
	check(t, fate{Do: "prepare"}.run(s.driver))
	check(t, fate{Do: "commit"}.run(s.driver))
	if looked < 2 {
		t.Errorf("there were %d steps to look at", looked)
	}
}

// A failing step is an error, and leaves one of the two states to go on from. A short run fails one in three of them.
func TestFailingSteps(t *testing.T) {
	broken := errors.New("broken")
	part, parts := testkit.Part(t, 3)
	for step := 1 + part; ; step += parts {
		s := newSubject(t, startClient(t), "DELETE")
		for _, id := range []snap.SnapshotID{"db-target", "db-base"} {
			s.leave(t, "log")
			_, err := s.driver.Capture(t.Context(), snap.CaptureRequest{ID: id})
			check(t, err)
		}
		base := s.Fingerprint(t)
		steps := 0
		s.cfg.Failpoint = func(string) error {
			if steps++; steps == step {
				return broken
			}
			return nil
		}
		s.Reopen(t)
		err := fate{Do: "prepare"}.run(s.driver)
		if err == nil {
			err = fate{Do: "commit"}.run(s.driver)
		}
		if steps < step {
			if step < 8 {
				t.Errorf("a restore has only %d steps", step)
			}
			return
		}
		if !errors.Is(err, broken) {
			t.Fatalf("step %d failed, the error is %v", step, err)
		}
		if err := (fate{Do: "undo"}).run(s.driver); err != nil && errs.KindOf(err) != errs.NotFound {
			t.Fatal(err)
		}
		if s.Fingerprint(t) != base {
			t.Fatalf("step %d failed, and Undo did not get back to the base", step)
		}
	}
}
