package duckdb

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"mulligan/privsep"
	"mulligan/snap/cas"
	"mulligan/snap/snaptest"
)

// fate is what a victim does, and the step that it dies at.
type fate struct {
	Dir  string // of the subject
	Do   string
	Step int
}

const victimEnv = "MULLIGAN_DUCKDB_VICTIM"

// victim is a daemon that is killed at a step. It exits in order where the work has fewer steps.
func victim(arg string) error {
	var f fate
	if err := json.Unmarshal([]byte(arg), &f); err != nil {
		return err
	}
	store, err := cas.Open(filepath.Join(f.Dir, "store"), cas.Options{SegmentBytes: 64 << 10})
	if err != nil {
		return err
	}
	d, err := New(Config{App: "app-1", Name: "main", Dir: filepath.Join(f.Dir, "app"), Path: "data/app.duckdb",
		StateDir: filepath.Join(f.Dir, "state"), Store: store, Owner: privsep.Self, Failpoint: snaptest.DieAt(f.Step)})
	if err != nil {
		return err
	}
	if err := snaptest.Do(context.Background(), d, f.Do); err != nil {
		return err
	}
	return store.Close()
}

func TestMain(m *testing.M) {
	privsep.Main()
	if arg := os.Getenv(victimEnv); arg != "" {
		if err := victim(arg); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func TestKilledAtEachStep(t *testing.T) {
	c := newClient(t)
	t.Run("each", func(t *testing.T) {
		snaptest.RunCrashes(t, func(t *testing.T) snaptest.Crashable { return crashing{newSubject(t, c)} })
	})
}

// crashing is a subject that a process which is killed shares.
type crashing struct{ *subject }

// Halfway says that the database and its log are exchanged one after the other.
func (c crashing) Halfway() {}

func (c crashing) dir() string { return filepath.Dir(c.cfg.StateDir) }

func (c crashing) Close(t *testing.T) { check(t, c.cfg.Store.Close()) }

func (c crashing) Reopen(t *testing.T) {
	t.Helper()
	var err error
	c.cfg.Store, err = cas.Open(filepath.Join(c.dir(), "store"), cas.Options{SegmentBytes: 64 << 10})
	check(t, err)
	c.subject.Reopen(t)
}

func (c crashing) Process(t *testing.T, do string, step int) *exec.Cmd {
	arg, err := json.Marshal(fate{c.dir(), do, step})
	check(t, err)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), victimEnv+"="+string(arg))
	return cmd
}

func (c crashing) Alone(t *testing.T) {
	t.Helper()
	if list, _ := os.ReadDir(filepath.Join(c.cfg.StateDir, "switches")); len(list) != 0 {
		t.Errorf("switches are left: %v", list)
	}
	if roots := c.cfg.Store.Roots("duckdb/" + c.cfg.App + "/" + c.cfg.Name + "/switch/"); len(roots) != 0 {
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
