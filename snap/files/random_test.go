package files

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"

	"mulligan/snap"
	"mulligan/snap/files/manifest"
	"mulligan/testkit"
)

// testRandom goes back and forth between random states of random trees, with
// some of the switches undone and some left to a new process.
func testRandom(t *testing.T) {
	testkit.Rapid(t)
	testkit.Checks(t, 16)
	rapid.Check(t, func(rt *rapid.T) {
		s := newSite(t)
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 1))
		type held struct {
			snap.Snapshot
			lines []string
		}
		var all []held
		hold := func() held {
			h := held{s.capture(t), listing(t, s.dir)}
			all = append(all, h)
			return h
		}
		for range rapid.IntRange(2, 6).Draw(rt, "rounds") {
			scramble(t, r, s.dir, rapid.IntRange(1, 25).Draw(rt, "changes"))
			base := hold()
			target := rapid.SampledFrom(all).Draw(rt, "target")
			s.n++
			id := snap.RestoreID(fmt.Sprint("op-", s.n))
			sw, err := s.Prepare(t.Context(), snap.RestoreRequest{ID: id, Target: target.ID, Base: base.ID})
			must(t, err)
			must(t, sw.Commit(t.Context()))
			same(t, "restored", listing(t, s.dir), target.lines)
			if rapid.Bool().Draw(rt, "undo") {
				s.open(t)
				sw, err = s.Resume(t.Context(), id)
				must(t, err)
				must(t, sw.Undo(t.Context()))
				same(t, "undone", listing(t, s.dir), base.lines)
			}
			p, err := sw.Check(t.Context())
			must(t, err)
			if !p.Match || len(p.Notes) > 0 {
				t.Fatalf("%+v", p)
			}
			must(t, sw.Finish(t.Context()))
		}
	})
}

// FuzzPlan: what is taken for a plan can be written again and is the same.
func FuzzPlan(f *testing.F) {
	b, err := json.Marshal(plan{Version: 1, State: prepared, Base: manifest.HexHash{1}, Target: manifest.HexHash{2}, Scope: [][]byte{[]byte("a/\xff")}, Notes: []string{"n"}})
	if err != nil {
		f.Fatal(err)
	}
	if p, err := decodePlan(b); err != nil || p.scope()[0] != "a/\xff" {
		f.Fatal(p, err)
	}
	f.Add(b)
	f.Add([]byte(`{"Version":2}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := decodePlan(b)
		if err != nil {
			return
		}
		again, err := json.Marshal(p)
		must(t, err)
		q, err := decodePlan(again)
		if err != nil || q.State != p.State || q.Base != p.Base || q.Target != p.Target || len(q.scope()) != len(p.scope()) {
			t.Fatalf("%+v became %+v (%v)", p, q, err)
		}
	})
}
