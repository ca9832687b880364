package database

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/cas"
)

// values is an engine whose live state is a string. away stands for a server that is gone, as no
// real one goes on demand between two steps.
type values struct {
	live  string
	aside map[snap.RestoreID]string // what Build made
	away  bool
	store *cas.Store
	r     *Records
}

type content struct {
	Hash string `json:"hash"`
}

var errAway = errs.New(errs.Unavailable, "", "the server is away")

func hashOf(s string) snap.Hash { return snap.Hash(cas.NodeHash([]byte(s), nil)) }

func (v *values) of(root cas.Root) (string, error) {
	data, _, err := v.store.Node(root.Hash)
	return string(data), err
}

func (v *values) Read(_ context.Context, b *cas.Batch) (State, error) {
	node, err := b.Node([]byte(v.live), nil)
	return State{Node: node, Hash: hashOf(v.live), Meta: content{hashOf(v.live).String()}}, err
}

func (v *values) CheckStored(_ context.Context, root cas.Root, _ snap.Depth) error {
	s, err := v.of(root)
	if h, e := HashOf(root); e != nil || h != hashOf(s) {
		return errors.Join(err, errs.New(errs.Corrupt, "", "another hash"))
	}
	return err
}

func (v *values) Plan(_ context.Context, _, _ *own, target, _ cas.Root) error {
	if s, err := v.of(target); err != nil || s == "refused" {
		return errors.Join(err, errs.New(errs.Unsupported, "", "it cannot be restored"))
	}
	return nil
}

func (v *values) Build(_ context.Context, p, _ *own, target, _ cas.Root) error {
	s, err := v.of(target)
	v.aside[p.ID] = s
	if s == "breaks" {
		err = errors.New("it broke")
	}
	return err
}

func (v *values) Stale(_ context.Context, _ *own, base cas.Root) (bool, error) {
	s, err := v.of(base)
	return s != v.live, err
}

func (v *values) Commit(_ context.Context, p *own, _, _ cas.Root) error {
	if err := v.r.Advance(p, Committing); err != nil {
		return err
	}
	v.live = v.aside[p.ID]
	return nil
}

func (v *values) Undo(_ context.Context, _ *own, _, base cas.Root) (err error) {
	v.live, err = v.of(base)
	return err
}

func (v *values) ReadBack(context.Context, *own, cas.Root) (snap.Hash, []string, error) {
	return hashOf(v.live), nil, nil
}

func (v *values) Drop(_ context.Context, p *own) ([]string, error) {
	if v.away {
		return nil, errAway
	}
	delete(v.aside, p.ID)
	return nil, nil
}

func (v *values) Classify(op string, err error) error { return errs.Wrap(errs.Failed, op, err) }

// driver has snapshots of the strings, each under its own name.
func driver(t *testing.T, live ...string) (*Driver[own, *own], *values) {
	t.Helper()
	r, store := open(t, nil)
	v := &values{aside: map[snap.RestoreID]string{}, store: store, r: r}
	d := NewDriver(r, v)
	for _, s := range live {
		v.live = s
		got, err := d.Capture(t.Context(), snap.CaptureRequest{ID: snap.SnapshotID(s)})
		must(t, err)
		must(t, d.Verify(t.Context(), got.ID, snap.Full))
	}
	return d, v
}

func request(target, base string) snap.RestoreRequest {
	return snap.RestoreRequest{ID: "op", Target: snap.SnapshotID(target), Base: snap.SnapshotID(base)}
}

// What a switch has on a server that is away when it ends is dropped later; nobody
// finds the switch any more.
func TestDroppedWhenTheServerIsBack(t *testing.T) {
	for _, end := range []string{"finish", "sweep", "build"} {
		t.Run(end, func(t *testing.T) {
			d, v := driver(t, "breaks", "one", "two")
			target := "one"
			if end == "build" {
				target, v.away = "breaks", true
			}
			sw, err := d.Prepare(t.Context(), request(target, "two"))
			switch v.away = true; end {
			case "build":
				if err == nil || sw != nil {
					t.Fatalf("a switch that could not be built: %v, %v", sw, err)
				}
			case "finish":
				must(t, errors.Join(err, sw.Commit(t.Context()), sw.Finish(t.Context())))
			case "sweep":
				must(t, errors.Join(err, d.Sweep(t.Context(), snap.Gone{Restores: []snap.RestoreID{"op"}})))
			}
			_, err = d.Resume(t.Context(), "op")
			kind(t, err, errs.NotFound)
			if len(v.aside) == 0 {
				t.Fatal("nothing was left: the test shows nothing")
			}
			_, err = d.DropLeftovers(t.Context())
			kind(t, err, errs.Unavailable)
			must(t, d.Sweep(t.Context(), snap.Gone{}))
			v.away = false
			left, err := d.DropLeftovers(t.Context())
			names, e := d.records.Switches()
			must(t, errors.Join(err, e))
			if len(left) > 0 || len(v.aside) > 0 || len(names) > 0 {
				t.Errorf("left: %q, on the server %v, on the disk %q", left, v.aside, names)
			}
		})
	}
}

// A preparation that is refused changes nothing: an older one under the same id stays.
func TestRefusalLeavesThePrepared(t *testing.T) {
	d, v := driver(t, "refused", "one", "two")
	_, err := d.Prepare(t.Context(), request("one", "two"))
	must(t, err)
	_, err = d.Prepare(t.Context(), request("refused", "two"))
	kind(t, err, errs.Unsupported)
	sw, err := d.Resume(t.Context(), "op")
	must(t, err)
	must(t, sw.Commit(t.Context()))
	proof, err := sw.Check(t.Context())
	must(t, err)
	if v.live != "one" || !proof.Match || proof.Want != hashOf("one") || proof.Pre != hashOf("two") {
		t.Errorf("the live state is %q, the proof %+v", v.live, proof)
	}
	must(t, sw.Undo(t.Context()))
	if proof, err = sw.Check(t.Context()); err != nil || !proof.Match || v.live != "two" {
		t.Errorf("after Undo: %q, %+v, %v", v.live, proof, err)
	}
	kind(t, sw.Commit(t.Context()), errs.Conflict)
}

// A plan that cannot be read may be that of a switch that is half done: no sweep passes it over.
func TestUnreadablePlan(t *testing.T) {
	d, _ := driver(t, "one")
	folder := d.records.Folder("op")
	must(t, os.MkdirAll(folder, 0o700))
	must(t, os.WriteFile(filepath.Join(folder, planFile), []byte("no plan"), 0o600))
	kind(t, d.Sweep(t.Context(), snap.Gone{}), errs.Corrupt)
	names, err := d.records.Switches()
	must(t, err)
	if !slices.Equal(names, []string{"op"}) {
		t.Errorf("the plans are %q", names)
	}
}

// TestUnreadablePlanBesideOthers: the objects of other switches are dropped.
func TestUnreadablePlanBesideOthers(t *testing.T) {
	for _, way := range []string{"sweep", "drop leftovers"} {
		t.Run(way, func(t *testing.T) {
			d, v := driver(t, "one", "two")
			sw, err := d.Prepare(t.Context(), request("one", "two"))
			must(t, err)
			folder := d.records.Folder("first")
			must(t, os.MkdirAll(folder, 0o700))
			must(t, os.WriteFile(filepath.Join(folder, planFile), []byte("no plan"), 0o600))
			if way == "sweep" {
				err = d.Sweep(t.Context(), snap.Gone{Restores: []snap.RestoreID{"op"}})
			} else {
				v.away = true
				must(t, sw.Finish(t.Context()))
				v.away = false
				_, err = d.DropLeftovers(t.Context())
			}
			kind(t, err, errs.Corrupt)
			names, err := d.records.Switches()
			must(t, err)
			if len(v.aside) > 0 || !slices.Equal(names, []string{"first"}) {
				t.Errorf("on the server are %v, on the disk %q", v.aside, names)
			}
		})
	}
}
