//go:build cgo && libvirt_dlopen

package rbd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"mulligan/snap"
	"mulligan/snap/disk/disktest"
	"mulligan/testkit"
)

// childEnv makes the test binary a daemon that dies at a step.
const childEnv = "MULLIGAN_RBD_CHILD"

// order is what a child is to do.
type order struct {
	Config Config
	Do     string // capture, rollback, undo, delete
	Target snap.SnapshotID
	ID     string // of what it makes
	Die    int64  // at the n-th step; 0: never
}

// child does what it is told and exits, or is killed.
func child() {
	var o order
	if err := json.Unmarshal([]byte(os.Getenv(childEnv)), &o); err != nil {
		panic(err)
	}
	var steps atomic.Int64
	o.Config.Failpoint = func(string) error {
		if steps.Add(1) == o.Die {
			_ = unix.Kill(os.Getpid(), unix.SIGKILL)
			select {}
		}
		return nil
	}
	d, err := New(o.Config)
	if err == nil {
		err = o.run(context.Background(), d)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func (o order) run(ctx context.Context, d *Driver) error {
	switch o.Do {
	case "capture":
		_, err := d.Capture(ctx, snap.CaptureRequest{ID: snap.SnapshotID(o.ID)})
		return err
	case "rollback":
		_, err := rollBack(ctx, d, snap.RestoreID(o.ID), o.Target)
		return err
	case "undo":
		sw, err := d.Resume(ctx, snap.RestoreID(o.ID))
		if err == nil {
			err = errors.Join(d.Unit().Stop(ctx), sw.Undo(ctx), sw.Finish(ctx))
		}
		return err
	case "delete":
		return errors.Join(d.Delete(ctx, o.Target), d.Maintain(ctx))
	}
	return errors.New("unknown order")
}

// rollBack takes the domain to a snapshot as the daemon does, and returns the safety snapshot. It leaves the switch unfinished.
func rollBack(ctx context.Context, d *Driver, id snap.RestoreID, target snap.SnapshotID) (snap.SnapshotID, error) {
	u := d.Unit()
	was, err := u.State(ctx)
	if err != nil {
		return "", err
	}
	for try := 0; ; try++ {
		base := snap.SnapshotID(fmt.Sprintf("%s-base%d", id, try))
		if _, err := d.Capture(ctx, snap.CaptureRequest{ID: base}); err != nil {
			return "", err
		}
		sw, err := d.Prepare(ctx, snap.RestoreRequest{ID: id, Target: target, Base: base})
		if err != nil {
			return "", err
		}
		if err := u.Stop(ctx); err != nil {
			return "", err
		}
		stale, err := sw.Stale(ctx)
		if err != nil {
			return "", err
		}
		if stale {
			if err := d.Delete(ctx, base); err != nil {
				return "", err
			}
			continue
		}
		if err := sw.Commit(ctx); err != nil {
			return "", err
		}
		proof, err := sw.Check(ctx)
		if err == nil && !proof.Match {
			err = fmt.Errorf("the restore is not proved: %+v", proof)
		}
		if err == nil && was.Running() {
			err = u.Start(ctx)
		}
		return base, err
	}
}

// spawn runs a child that does o, and reports whether it was killed.
func (v *vm) spawn(t *testing.T, o order, state string) (killed bool) {
	t.Helper()
	o.Config = v.config(t, state)
	o.Config.Log = nil
	text, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+string(text))
	cmd.Stderr = os.Stderr
	err = cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Sys().(interface{ Signaled() bool }).Signaled() {
		return true
	}
	if err != nil {
		t.Fatalf("%+v: %v", o, err)
	}
	return false
}

// TestLongKilled: the daemon is killed at each step of a capture, a deletion, a rollback and its undo. The next one finds the guest on its
// feet, all checkpoints whole, and nothing in the cluster that no checkpoint needs.
func TestLongKilled(t *testing.T) {
	testkit.NeedLong(t)
	t.Parallel()
	v := newVM(t, 2, 64, true, disktest.GuestOptions{})
	state := t.TempDir()
	known := map[snap.SnapshotID]map[string]string{} // the sums of the disks
	var d *Driver
	open := func() {
		d = v.driver(t, state, nil)
		var gone snap.Gone
		rec, err := readRecord("", state)
		if err != nil {
			t.Fatal(err)
		}
		if rec != nil {
			for id := range rec.Snapshots {
				if known[id] == nil {
					gone.Snapshots = append(gone.Snapshots, id)
				}
			}
		}
		if err := d.Sweep(t.Context(), gone); err != nil {
			t.Fatal(err)
		}
	}
	shut := func() { _ = d.Close() }
	whole := func(at string) {
		t.Helper()
		testkit.Eventually(t, "the guest goes on", func() bool {
			d.mu.Lock()
			defer d.mu.Unlock()
			return d.rec.Hold == nil && d.rec.Intent == nil
		})
		for id, sums := range known {
			for dev, sum := range sums {
				if now := v.sum(t, d.rec.Snapshots[id].Disks[dev].at()); now != sum {
					t.Fatalf("%s: %s of %s was changed", at, dev, id)
				}
			}
		}
		v.litter(t, d)
	}
	take := func(value string) snap.SnapshotID {
		t.Helper()
		v.Do(t, "set "+value)
		id := snap.SnapshotID("vm-" + value)
		if _, err := d.Capture(t.Context(), snap.CaptureRequest{ID: id}); err != nil {
			t.Fatal(err)
		}
		known[id] = v.sums(t, d, id)
		return id
	}
	v.boot(t)
	open()
	a := take("A")
	take("B")
	v.Do(t, "set C")
	shut()
	kills := 0
	everyStep := func(o order, after func(at string)) {
		t.Helper()
		cut := false
		part, parts := 0, 1
		if o.Do == "rollback" || o.Do == "undo" { // a boot each
			part, parts = testkit.Part(t, 4)
		}
		for n := 1 + part; ; n += parts {
			o.Die = int64(n)
			o.ID = fmt.Sprintf("%s-%d", o.Do, n)
			killed := v.spawn(t, o, state)
			open()
			after(fmt.Sprintf("%s, killed at step %d", o.Do, n))
			shut()
			if !killed {
				break
			}
			cut = true
			kills++
		}
		if !cut {
			t.Errorf("%s was never killed", o.Do)
		}
	}
	everyStep(order{Do: "capture"}, func(at string) {
		whole(at)
		if got := v.Do(t, "get"); got != "C C" {
			t.Fatalf("%s: the guest reads %q", at, got)
		}
		v.Do(t, "sh echo x >/a/x; sync") // it is not frozen
	})
	present := "C"
	everyStep(order{Do: "rollback", Target: a}, func(at string) {
		// As the daemon would, the next one finishes what was begun, or leaves what was not.
		for id, p := range d.rec.Switches {
			sw, err := d.Resume(t.Context(), id)
			if err == nil && p.Phase != "prepared" {
				if err = errors.Join(d.Unit().Stop(t.Context()), sw.Commit(t.Context())); err == nil {
					present = "A"
				}
			}
			if err == nil {
				err = sw.Finish(t.Context())
			}
			if err != nil {
				t.Fatalf("%s: %v", at, err)
			}
		}
		if err := d.Unit().Start(t.Context()); err != nil {
			t.Fatalf("%s: %v", at, err)
		}
		v.WaitReady(t)
		if got := v.Do(t, "get"); got != present+" "+present {
			t.Fatalf("%s: the guest reads %q, and should read %q", at, got, present)
		}
		whole(at)
		present += "x"
		v.Do(t, "set "+present)
	})
	// To be undone, a rollback is made first.
	n := 0
	for _, step := range []int64{2, 4, 5} { // before and after the phase, and the definition
		open()
		id := snap.RestoreID(fmt.Sprintf("op-undo%d", step))
		if _, err := rollBack(t.Context(), d, id, a); err != nil {
			t.Fatal(err)
		}
		v.WaitReady(t)
		v.Do(t, "set lost")
		shut()
		if v.spawn(t, order{Do: "undo", ID: string(id), Die: step}, state) {
			n++
			kills++
		}
		open()
		sw, err := d.Resume(t.Context(), id)
		if err == nil {
			err = errors.Join(d.Unit().Stop(t.Context()), sw.Undo(t.Context()), sw.Finish(t.Context()))
		}
		if err == nil {
			err = d.Unit().Start(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
		v.WaitReady(t)
		if got := v.Do(t, "get"); got != present+" "+present {
			t.Fatalf("undo, killed at step %d: the guest reads %q, and should read %q", step, got, present)
		}
		whole("undo")
		shut()
	}
	if n == 0 {
		t.Error("no undo was killed")
	}
	for n, killed := int64(1), true; killed; n++ {
		open()
		gone := take(fmt.Sprintf("D%d", n))
		delete(known, gone)
		shut()
		if killed = v.spawn(t, order{Do: "delete", Target: gone, Die: n}, state); killed {
			kills++
		}
		open()
		whole(fmt.Sprintf("delete, killed at step %d", n))
		shut()
	}
	testkit.Tally(t, "kills", kills)
}
