package snaptest

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/testkit"
	"mulligan/testkit/sysfault"
)

// Crashable is a Subject whose driver can also be opened by another process, which the suite
// kills.
type Crashable interface {
	Subject

	// Close releases what only one process can have open, such as the store. Reopen opens it
	// again.
	Close(t *testing.T)

	// Process returns a process that opens a driver over the same states, with DieAt(step) as its
	// failpoint, calls Do with it, and ends.
	Process(t *testing.T, do string, step int) *exec.Cmd

	// Alone checks that nothing of a restore is left, on the server or on the disk.
	Alone(t *testing.T)
}

// Halfway is a Crashable whose driver replaces the live state in several steps. A driver killed
// between them leaves a state that is neither the base nor the target.
type Halfway interface {
	Halfway()
}

// The ids that Do uses.
const (
	crashCut     = snap.SnapshotID("db-cut")
	crashTarget  = snap.SnapshotID("db-target")
	crashBase    = snap.SnapshotID("db-base")
	crashRestore = snap.RestoreID("op-1")
)

// deed is an operation that a process is killed in.
type deed struct {
	do     string
	before []string // the operations that must precede it
}

var deeds = []deed{
	{"capture", nil}, {"prepare", nil}, {"commit", []string{"prepare"}}, {"undo", []string{"prepare", "commit"}}, {"finish", []string{"prepare", "commit"}},
}

// Do performs one of the operations that RunCrashes kills a process in.
func Do(ctx context.Context, d snap.Driver, do string) error {
	switch do {
	case "capture":
		_, err := d.Capture(ctx, snap.CaptureRequest{ID: crashCut})
		return err
	case "prepare":
		_, err := d.Prepare(ctx, snap.RestoreRequest{ID: crashRestore, Target: crashTarget, Base: crashBase})
		return err
	}
	sw, err := d.Resume(ctx, crashRestore)
	if err != nil {
		return err
	}
	switch do {
	case "commit":
		return sw.Commit(ctx)
	case "undo":
		return sw.Undo(ctx)
	}
	return sw.Finish(ctx)
}

// DieAt is a failpoint that kills the process at its nth step, counted from 1.
func DieAt(n int) func(string) error {
	steps := 0
	return func(string) error {
		if steps++; steps != n {
			return nil
		}
		if err := unix.Kill(os.Getpid(), unix.SIGKILL); err != nil {
			return err
		}
		select {}
	}
}

// RunCrashes kills a process at each step of each operation of the driver. After each kill, it
// checks that the live state is the old or the new one, that the next process can commit or undo,
// that no other snapshot is lost, and that nothing is left behind. The default run takes one of the five
// operations, and the next run another. A process that is not killed makes durable what it writes, in each run.
func RunCrashes(t *testing.T, newSubject func(t *testing.T) Crashable) {
	t.Run("synced", func(t *testing.T) {
		t.Parallel()
		c := &crash{harness: newHarness(t, newSubject(t))}
		c.subject = c.harness.subject.(Crashable)
		c.synced()
	})
	for _, i := range testkit.Sample(t, "operations", len(deeds), 1) {
		deed := deeds[i]
		t.Run(deed.do, func(t *testing.T) {
			t.Parallel()
			EachStep(t, func(step int) bool {
				c := &crash{harness: newHarness(t, newSubject(t)), do: deed.do, step: step}
				c.subject = c.harness.subject.(Crashable)
				return c.run(deed.before)
			})
		})
	}
}

// crash is one run of a process that is killed.
type crash struct {
	*harness
	subject      Crashable
	do           string
	step         int
	target, base string // fingerprints
}

// synced watches the system calls of processes that are not killed: what an operation wrote is on the disk when it ends. What the
// content store writes, the store's own tests look at.
func (c *crash) synced() {
	c.takes(crashTarget)
	c.mutate()
	c.takes(crashBase)
	for _, do := range []string{"capture", "prepare", "commit", "undo", "finish"} {
		c.subject.Close(c.t)
		calls, err := sysfault.Watch(c.subject.Process(c.t, do, 0), func(path string) string {
			for _, of := range []string{"/proc/", "/sys/", "/dev/null", "/store/", "/memfd:"} {
				if strings.Contains(path, of) {
					return ""
				}
			}
			return path
		})
		c.must(do, err)
		if synced := slices.ContainsFunc(calls, func(c string) bool { return strings.HasPrefix(c, "sync ") }); !synced && do == "prepare" {
			c.Errorf("no plan was synced in %d calls", len(calls))
		}
		for _, lost := range sysfault.Unsynced(calls) {
			c.Errorf("%s: %s", do, lost)
		}
		c.reopen()
	}
}

// run reports whether the process was killed; false means that the operation has fewer steps.
func (c *crash) run(before []string) (killed bool) {
	c.target = c.takes(crashTarget)
	c.mutate()
	c.base = c.takes(crashBase)
	for _, do := range before {
		c.must(do, Do(c.ctx, c.driver(), do))
	}
	live := c.print()
	if c.do == "capture" || c.do == "undo" {
		live = c.mutate()
	}
	killed = c.kill()
	if _, torn := c.subject.(Halfway); !torn || len(before) == 0 {
		c.awaitOldOrNew(live)
	}
	want := c.recover(killed)
	if want == "" {
		want = live
	}
	if c.print() != want {
		c.Errorf("%s killed at step %d: the live state is not what it was taken to", c.do, c.step)
	}
	for _, id := range []snap.SnapshotID{crashTarget, crashBase} {
		c.must("Verify", c.driver().Verify(c.ctx, id, snap.Full))
	}
	c.subject.Alone(c.t)
	c.subject.Close(c.t)
	return killed
}

// awaitOldOrNew waits until the live state is the old or the new one: the server may still work
// on a request of the killed process.
func (c *crash) awaitOldOrNew(live string) {
	c.Helper()
	for deadline := time.Now().Add(testkit.Patience); ; {
		if now := c.print(); now == live || now == c.target || now == c.base {
			return
		}
		if time.Now().After(deadline) {
			c.Fatalf("%s killed at step %d: the live state is neither old nor new", c.do, c.step)
		}
	}
}

// takes captures the live state and returns its fingerprint.
func (c *crash) takes(id snap.SnapshotID) string {
	_, err := c.driver().Capture(c.ctx, snap.CaptureRequest{ID: id})
	c.must("Capture", err)
	return c.print()
}

// kill runs the process that is to be killed, and opens the driver anew.
func (c *crash) kill() bool {
	c.subject.Close(c.t)
	cmd := c.subject.Process(c.t, c.do, c.step)
	cmd.Stderr = nil
	out, err := cmd.CombinedOutput()
	exit := (*exec.ExitError)(nil)
	killed := errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signaled()
	if err != nil && !killed {
		c.Fatalf("%s, step %d: %v: %s", c.do, c.step, err, out)
	}
	c.reopen()
	return killed
}

// recover does what a daemon does after a start. It returns the fingerprint that the live state
// must then have, or "" if it must be unchanged.
func (c *crash) recover(killed bool) (want string) {
	switch c.do {
	case "capture", "prepare":
		c.must("Sweep", c.driver().Sweep(c.ctx, snap.Gone{Snapshots: []snap.SnapshotID{crashCut}, Restores: []snap.RestoreID{crashRestore}}))
		c.fails("Verify of what was swept", c.driver().Verify(c.ctx, crashCut, snap.Quick), errs.NotFound)
		_, err := c.driver().Resume(c.ctx, crashRestore)
		c.fails("Resume of what was swept", err, errs.NotFound)
		return ""
	}
	sw, err := c.driver().Resume(c.ctx, crashRestore)
	if c.do == "finish" {
		if killed && err == nil { // else the plan is gone, or dropped
			c.must("Finish", sw.Finish(c.ctx))
		}
		c.must("Sweep", c.driver().Sweep(c.ctx, snap.Gone{Restores: []snap.RestoreID{crashRestore}}))
		return c.target
	}
	c.must("Resume", err)
	if want = c.base; c.step%2 == 0 && c.do == "commit" {
		want = c.target
		c.must("Commit", sw.Commit(c.ctx))
	} else {
		c.must("Undo", sw.Undo(c.ctx))
	}
	if p := c.check(sw); !p.Match {
		c.Errorf("%s killed at step %d: the proof does not match: %+v", c.do, c.step, p)
	}
	c.must("Finish", sw.Finish(c.ctx))
	return want
}
