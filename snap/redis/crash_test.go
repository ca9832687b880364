package redis

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/snaptest"
)

// fate is what a victim does, and the step that it dies at.
type fate struct {
	Dir, DSN string
	Do       string // "capture", "prepare", "commit", "undo"
	Step     int
}

// victim is a daemon that is killed at a step. It exits in order where the
// work has fewer steps.
func victim(arg string) {
	var f fate
	must(json.Unmarshal([]byte(arg), &f))
	cfg := config(f.Dir)
	var err error
	cfg.Store, err = cas.Open(filepath.Join(f.Dir, "store"), cas.Options{SegmentBytes: 64 << 10})
	must(err)
	cfg.DSN = f.DSN
	cfg.Failpoint = snaptest.DieAt(f.Step)
	d, err := New(cfg)
	must(err)
	must(f.run(d))
	must(cfg.Store.Close())
}

func (f fate) run(d *Driver) error { return snaptest.Do(context.Background(), d, f.Do) }

// crashSubject has snapshots db-target and db-base, the present, and for do
// whatever has to come before it.
func crashSubject(t *testing.T, do string, args ...string) (s *subject, target, base string) {
	t.Helper()
	s = newSubject(t, args...)
	for _, id := range []snap.SnapshotID{"db-target", "db-base"} {
		if id == "db-base" {
			target = s.digest(t)
			check(t, s.db.FlushAll(t.Context()).Err())
			s.mutate(t, 2)
		}
		_, err := s.driver.Capture(t.Context(), snap.CaptureRequest{ID: id})
		check(t, err)
	}
	base = s.digest(t)
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
	snaptest.RunCrashes(t, func(t *testing.T) snaptest.Crashable { return crashing{newSubject(t, "--appendonly", "yes")} })
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

func (c crashing) Process(t *testing.T, do string, step int) *exec.Cmd {
	return command(t, "victim", fate{filepath.Dir(c.cfg.StateDir), c.dsn(), do, step})
}

// alone checks that the server's settings are as they were, and that nothing is left of the switch.
func (s *subject) alone(t *testing.T) {
	t.Helper()
	auth, err := s.db.ConfigGet(t.Context(), "masterauth").Result()
	check(t, err)
	if auth["masterauth"] != "" {
		t.Errorf("masterauth is left as %q", auth["masterauth"])
	}
	if list, _ := os.ReadDir(filepath.Join(s.cfg.StateDir, "switches")); len(list) != 0 {
		t.Errorf("switches are left: %v", list)
	}
	if roots := s.cfg.Store.Roots(driverName + "/" + s.cfg.App + "/" + s.cfg.Name + "/switch/"); len(roots) != 0 {
		t.Errorf("roots are left: %v", roots)
	}
}

// TestSettingsComeBack: a restore sets how the server logs in to its master, and puts back what was set before.
func TestSettingsComeBack(t *testing.T) {
	s := newSubject(t)
	for setting, was := range map[string]string{"masterauth": "of before", "masteruser": "before"} {
		check(t, s.db.ConfigSet(t.Context(), setting, was).Err())
	}
	s.mutate(t, 1)
	_, err := s.driver.Capture(t.Context(), snap.CaptureRequest{ID: "db-1"})
	check(t, err)
	want := s.digest(t)
	s.mutate(t, 2)
	s.restore(t, "db-1")
	if s.digest(t) != want {
		t.Error("the server's keys are not those of the checkpoint")
	}
	for setting, was := range map[string]string{"masterauth": "of before", "masteruser": "before"} {
		if now, err := s.db.ConfigGet(t.Context(), setting).Result(); err != nil || now[setting] != was {
			t.Errorf("%s is left as %q, %v", setting, now[setting], err)
		}
	}
}

// A server that dies at whichever moment comes back with the old or the new
// state, and the switch can go either way.
func TestServerKilled(t *testing.T) {
	snaptest.RunServerKills(t, 1, func(t *testing.T) snaptest.Served {
		return served{newSubject(t, "--appendonly", "yes", "--appendfsync", "always")}
	})
}

// served is a subject whose server is killed.
type served struct{ *subject }

func (s served) Kill(*testing.T)    { s.kill() }
func (s served) Start(t *testing.T) { s.restart(t) }

func (s served) Alone(t *testing.T) {
	s.alone(t)
	check(t, s.db.Set(t.Context(), "writable", "yes", 0).Err())
	check(t, s.db.Del(t.Context(), "writable").Err())
}
