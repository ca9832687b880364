package database

import (
	"errors"
	"os"
	"slices"
	"testing"

	"mulligan/errs"
	"mulligan/failpoint"
	"mulligan/snap"
	"mulligan/snap/cas"
)

// own is a driver's plan.
type own struct {
	Plan
	Extra string
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func open(t *testing.T, hook failpoint.Hook) (*Records, *cas.Store) {
	t.Helper()
	store, err := cas.Open(t.TempDir(), cas.Options{})
	must(t, err)
	t.Cleanup(func() { must(t, store.Close()) })
	r, err := Open(Config{Driver: "some", App: "app", Name: "main", Store: store, StateDir: t.TempDir(), Failpoint: hook})
	must(t, err)
	return r, store
}

// put makes a snapshot with content of its own.
func put(t *testing.T, r *Records, store *cas.Store, id snap.SnapshotID) {
	t.Helper()
	b := store.Begin()
	defer b.Discard()
	h, err := b.Blob([]byte("content of " + id))
	must(t, err)
	must(t, b.Commit(cas.Root{Name: r.SnapshotRoot(id), Hash: h}))
}

func kind(t *testing.T, err error, want errs.Kind) {
	t.Helper()
	if errs.KindOf(err) != want {
		t.Errorf("error %v, want one of kind %s", err, want)
	}
}

func TestOpenRefuses(t *testing.T) {
	_, store := open(t, nil)
	for _, c := range []Config{
		{App: "a/b", Name: "main", Store: store, StateDir: "/tmp"}, {App: "app", Name: "..", Store: store, StateDir: "/tmp"},
		{App: "app", Name: "main", StateDir: "/tmp"}, {App: "app", Name: "main", Store: store, StateDir: "state"},
	} {
		_, err := Open(c)
		kind(t, err, errs.Invalid)
	}
}

// TestEndsOutliveSnapshots: a switch keeps what it needs, until it is released or swept.
func TestEndsOutliveSnapshots(t *testing.T) {
	r, store := open(t, nil)
	put(t, r, store, "a")
	put(t, r, store, "b")
	req := snap.RestoreRequest{ID: "op", Target: "a", Base: "b"}
	target, err := r.Snapshot("", "a")
	must(t, err)
	base, err := r.Snapshot("", "b")
	must(t, err)
	p := NewPlan(req, Prepared, nil)
	must(t, r.Hold(&p, target, base))
	must(t, r.Delete("a"))
	_, err = r.Snapshot("", "a")
	kind(t, err, errs.NotFound)
	held, _, err := r.Held(&p)
	must(t, err)
	if held.Hash != target.Hash {
		t.Error("another content is held than that of the target")
	}
	must(t, r.Release("op", "a"))
	if _, _, err := r.Held(&p); errs.KindOf(err) != errs.Corrupt {
		t.Errorf("the base is gone, and is asked for without damage: %v", err)
	}
	must(t, r.Sweep(snap.Gone{Snapshots: []snap.SnapshotID{"a"}, Restores: []snap.RestoreID{"other"}}))
	if n := len(r.All()); n != 2 {
		t.Errorf("%d roots where b and the switch's target are to stay", n)
	}
	must(t, r.Sweep(snap.Gone{}))
	if n := len(r.All()); n != 2 {
		t.Errorf("%d roots after a sweep of nothing", n)
	}
	must(t, r.Sweep(snap.Gone{Snapshots: []snap.SnapshotID{"b"}, Restores: []snap.RestoreID{"op"}}))
	if n := len(r.All()); n != 0 {
		t.Errorf("%d roots that nobody wants", n)
	}
}

func TestEndsRefuses(t *testing.T) {
	d, _ := driver(t, "a")
	for id, want := range map[snap.RestoreID]errs.Kind{"": errs.Invalid, "../x": errs.Invalid, ".x": errs.Invalid, "op": ""} {
		_, _, err := d.ends("", snap.RestoreRequest{ID: id, Target: "a", Base: "a"}, nil)
		kind(t, err, want)
	}
	for phase, want := range map[Phase]errs.Kind{Preparing: "", Prepared: "", Committing: errs.Conflict, Committed: errs.Conflict, Undone: errs.Conflict} {
		_, _, err := d.ends("", snap.RestoreRequest{ID: "op", Target: "a", Base: "a"}, &Plan{Phase: phase})
		kind(t, err, want)
	}
}

// TestAdvance: a phase that could not be written was not reached.
func TestAdvance(t *testing.T) {
	var steps []string
	broken := errors.New("broken")
	r, _ := open(t, func(step string) error {
		if steps = append(steps, step); len(steps) == 2 {
			return broken
		}
		return nil
	})
	p := &own{Plan: NewPlan(snap.RestoreRequest{ID: "op", Target: "a", Base: "b"}, Preparing, nil), Extra: "more"}
	must(t, r.Advance(p, Prepared))
	if err := r.Advance(p, Committing); !errors.Is(err, broken) {
		t.Fatal("the failpoint's error is lost:", err)
	}
	var back own
	must(t, r.Load("", "op", &back))
	if back.Phase != Committing || back.Extra != "more" || back.Base != "b" {
		t.Errorf("on disk is %+v", back)
	}
	must(t, os.RemoveAll(r.dir))
	must(t, os.WriteFile(r.dir, nil, 0o600))
	if err := r.Advance(p, Committed); err == nil || p.Phase != Committing {
		t.Errorf("%v, and the phase is %s, where nothing can be written", err, p.Phase)
	}
	if !slices.Equal(steps, []string{"phase: prepared", "phase: committing"}) {
		t.Error("steps", steps)
	}
}
