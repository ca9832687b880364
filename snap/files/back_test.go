package files

import (
	"context"
	"fmt"
	"testing"

	"mulligan/snap"
	"mulligan/snap/files/diff"
	"mulligan/snap/files/rights"
	"mulligan/testkit"
)

// TestBack: the manifest that the journal leads back to is the one that a
// marker has by itself, wherever the present is: a marker or an ordinary
// snapshot, at the journal's head or behind it, over the borders of epochs and
// not over a gap.
func TestBack(t *testing.T) {
	f := newFollowed(t)
	r := testkit.Rand(t)
	j := f.follower.Session()
	scramble(t, r, f.dir, 60)
	var markers, bases []snap.SnapshotID
	for i := range 24 {
		scramble(t, r, f.dir, 6)
		markers = append(markers, f.at(t, f.flush(t)))
		switch i {
		case 3, 15:
			must(t, newEpoch(t.Context(), j))
		case 6:
			f.cfg.Exclude = []string{"*9"}
			f.restart(t) // other rules: a gap
			f.cfg.Exclude = nil
			f.restart(t)
			j = f.follower.Session()
		case 12, 20:
			bases = append(bases, f.capture(t).ID)
		}
	}
	bases = append(bases, f.capture(t).ID, markers[len(markers)-1], markers[len(markers)-3])
	led, not := 0, 0
	for _, base := range bases {
		for i, target := range markers {
			from, at, err := f.standing(t.Context(), "test", base)
			must(t, err)
			want, err := f.stored(t.Context(), "test", base)
			must(t, err)
			if from.Hash != want.Hash || at == "" {
				t.Fatalf("%s at %q is %v, want %v", base, at, from.Hash, want.Hash)
			}
			to, err := f.behind(t.Context(), "test", target, from, at)
			must(t, err)
			want, err = f.stored(t.Context(), "test", target)
			must(t, err)
			switch {
			case to == nil:
				not++
			case i <= 6:
				t.Fatalf("%s was led to over a gap", target)
			case to.Hash != want.Hash:
				deltas, err := diff.Compare(t.Context(), rights.Reader{}, want, to, nil)
				t.Fatalf("%s from %s: differs from itself: %+v, %v", target, base, deltas, err)
			default:
				led++
			}
		}
	}
	if led < 10 || not < 10 {
		t.Errorf("%d states were led to, %d not: want both", led, not)
	}
}

// testSwitchOfMarkers: a restore between markers stores next to nothing when it is
// prepared, and is there after a restart when both are deleted and the journal has
// forgotten them.
func testSwitchOfMarkers(t *testing.T) {
	f := newFollowed(t)
	for i := range 3000 {
		write(t, fmt.Sprintf("%s/folder/%d", f.dir, i), fmt.Sprint(i))
	}
	f.flush(t)
	must(t, newEpoch(t.Context(), f.follower.Session()))
	target := f.at(t, f.flush(t))
	write(t, f.dir+"/folder/1000", "changed")
	base := f.at(t, f.flush(t))
	before := f.cas.DiskUsage()
	_, err := f.Prepare(t.Context(), snap.RestoreRequest{ID: "op", Target: target, Base: base})
	must(t, err)
	if n := f.cas.DiskUsage() - before; n > 8<<10 { // the folder's node alone takes 100 KB
		t.Errorf("preparing a restore of one file stored %d bytes", n)
	}

	f.forget(t)
	must(t, f.Delete(t.Context(), target))
	must(t, f.Delete(t.Context(), base))
	f.restart(t)
	_, err = f.cas.Collect(t.Context())
	must(t, err)
	sw, err := f.Resume(t.Context(), "op")
	must(t, err)
	for _, step := range []struct {
		do   func(context.Context) error
		text string
	}{{sw.Commit, "1000"}, {sw.Undo, "changed"}} {
		must(t, step.do(t.Context()))
		if proof, err := sw.Check(t.Context()); err != nil || !proof.Match {
			t.Fatalf("%+v, %v", proof, err)
		}
		if text := f.read(t, "folder/1000"); text != step.text {
			t.Fatalf("the file has %q, want %q", text, step.text)
		}
	}
	must(t, sw.Finish(t.Context()))
	f.exact(t)
}
