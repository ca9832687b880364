package sqlite

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/database"
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
	steps := 0
	cfg.Failpoint = func(string) error {
		if steps++; steps == f.Step {
			must(unix.Kill(os.Getpid(), unix.SIGKILL))
			select {}
		}
		return nil
	}
	d, err := New(cfg)
	must(err)
	must(f.run(d))
	must(cfg.Store.Close())
}

func (f fate) run(d *Driver) error {
	ctx := context.Background()
	switch f.Do {
	case "capture":
		_, err := d.Capture(ctx, snap.CaptureRequest{ID: "db-cut"})
		return err
	case "prepare":
		_, err := d.Prepare(ctx, snap.RestoreRequest{ID: "op-1", Target: "db-target", Base: "db-base"})
		return err
	}
	sw, err := d.Resume(ctx, "op-1")
	if err != nil {
		return err
	}
	if f.Do == "undo" {
		return sw.Undo(ctx)
	}
	return sw.Commit(ctx)
}

// Whatever is cut at whichever step, the live state is the old or the new one,
// and the next process can go either way.
func TestKilledAtEachStep(t *testing.T) {
	operations, states := []string{"capture", "prepare", "commit", "undo"}, []string{"clean", "log", "journal"}
	for _, i := range testkit.Sample(t, "operations and what they find", len(operations)*len(states), 6) {
		do, leave := operations[i/len(states)], states[i%len(states)]
		t.Run(do+"/"+leave, func(t *testing.T) {
			t.Parallel()
			snaptest.EachStep(t, func(step int) bool { return killAt(t, do, leave, step) })
		})
	}
}

// killAt reports whether the victim got killed: whether there is such a step.
func killAt(t *testing.T, do, leave string, step int) bool {
	s, target, base := crashSubject(t, leave)
	dir := filepath.Dir(s.cfg.StateDir)
	if do == "undo" || do == "commit" {
		sw, err := s.driver.Prepare(t.Context(), snap.RestoreRequest{ID: "op-1", Target: "db-target", Base: "db-base"})
		check(t, err)
		if do == "undo" {
			check(t, sw.Commit(t.Context()))
			s.leave(t, leave)
		}
	}
	before := s.Fingerprint(t)
	check(t, s.cfg.Store.Close())
	_ = command(t, "victim", fate{dir, do, step}).Run() // what is on disk tells whether it died
	var err error
	s.cfg.Store, err = cas.Open(filepath.Join(dir, "store"), cas.Options{SegmentBytes: 64 << 10})
	check(t, err)
	s.Reopen(t)
	now := s.Fingerprint(t)
	if now != before && now != target && now != base {
		t.Fatalf("%s killed at step %d: the live state is neither old nor new", do, step)
	}
	killed := !s.finishes(t, do, step%2 == 0, target, base)
	check(t, s.cfg.Store.Close())
	entries, err := os.ReadDir(filepath.Dir(s.path()))
	check(t, err)
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".mulligan") {
			t.Errorf("%s killed at step %d: %s is left", do, step, e.Name())
		}
	}
	return killed
}

// finishes does what the daemon does after a start, and reports whether the
// victim had ended by itself.
func (s *subject) finishes(t *testing.T, do string, forward bool, target, base string) bool {
	t.Helper()
	ctx := t.Context()
	ended := false
	switch do {
	case "capture":
		ended = s.driver.Verify(ctx, "db-cut", snap.Full) == nil
		check(t, s.driver.Sweep(ctx, snap.Gone{Snapshots: []snap.SnapshotID{"db-cut"}}))
		if kind := errs.KindOf(s.driver.Verify(ctx, "db-cut", snap.Quick)); kind != errs.NotFound {
			t.Errorf("after a sweep, the capture that was cut is %s", kind)
		}
		return ended
	case "prepare":
		_, err := s.driver.Resume(ctx, "op-1")
		ended = err == nil
		check(t, s.driver.Sweep(ctx, snap.Gone{Restores: []snap.RestoreID{"op-1"}}))
		_, err = s.driver.Resume(ctx, "op-1")
		if list, _ := os.ReadDir(filepath.Join(s.cfg.StateDir, "switches")); len(list) != 0 || errs.KindOf(err) != errs.NotFound {
			t.Errorf("after a sweep, there is %v, %v", list, err)
		}
		if roots := s.cfg.Store.Roots(driverName + "/" + s.cfg.App + "/" + s.cfg.Name + "/switch/"); len(roots) != 0 {
			t.Errorf("after a sweep, there are roots %v", roots)
		}
		return ended
	}
	p, err := s.driver.Resumable("test", "op-1")
	check(t, err)
	ended = p.Phase == database.Committed && do == "commit" || p.Phase == database.Undone
	sw, err := s.driver.Resume(ctx, "op-1")
	check(t, err)
	want := base
	if forward && do == "commit" {
		want = target
		check(t, sw.Commit(ctx))
	} else {
		check(t, sw.Undo(ctx))
	}
	if s.Fingerprint(t) != want {
		t.Errorf("the live state is not what the restore was taken to")
	}
	proof, err := sw.Check(ctx)
	check(t, err)
	if !proof.Match {
		t.Errorf("the proof does not match: %+v", proof)
	}
	check(t, sw.Finish(ctx))
	return ended
}

// crashSubject has snapshots db-target and db-base, the present, whose files
// are as leave says.
func crashSubject(t *testing.T, leave string) (s *subject, target, base string) {
	t.Helper()
	s = newSubject(t, startClient(t), "DELETE")
	capture := func(id snap.SnapshotID) string {
		_, err := s.driver.Capture(t.Context(), snap.CaptureRequest{ID: id})
		check(t, err)
		return s.Fingerprint(t)
	}
	target = capture("db-target")
	s.leave(t, leave)
	return s, target, capture("db-base")
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

// A failing step is an error, and leaves one of the two states to go on from. A short run fails one in three of them.
func TestFailingSteps(t *testing.T) {
	broken := errors.New("broken")
	part, parts := testkit.Part(t, 3)
	for step := 1 + part; ; step += parts {
		s, _, base := crashSubject(t, "log")
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
