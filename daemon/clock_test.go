package daemon_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"mulligan/daemon"
	"mulligan/ipc"
	"mulligan/testkit"
)

// testClockJumps has the host's clock jump by years, back and forth, each time that
// it is asked: no operation goes by it but that which is told a time.
func testClockJumps(t *testing.T) {
	t.Parallel()
	rounds := 3
	if long() {
		rounds = 100
	}
	w := newWorld(t, nil)
	rnd, mu := testkit.Rand(t), sync.Mutex{}
	opt := w.options()
	opt.Now = func() time.Time {
		mu.Lock()
		defer mu.Unlock()
		return time.Now().Add(time.Duration(rnd.Int64N(int64(20*365*24*time.Hour))) - 10*365*24*time.Hour)
	}
	open := func() *daemon.Daemon {
		d, err := daemon.Open(t.Context(), opt)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	d := open()
	if err := keepLast(t.Context(), d, 3); err != nil {
		t.Fatal(err)
	}
	first, err := d.Create(t.Context(), root, "shop", ipc.CreateRequest{Pinned: true})
	if err != nil {
		t.Fatal(err)
	}
	for n := range rounds {
		word := fmt.Sprintf("w%d", n)
		w.set(t, word)
		cp, err := d.Create(t.Context(), root, "shop", ipc.CreateRequest{})
		if err != nil {
			t.Fatal(err)
		}
		var safety ipc.CheckpointID
		for _, to := range []struct {
			id   ipc.CheckpointID
			word string
		}{{first.ID, "zero"}, {cp.ID, word}} {
			res, err := d.Rollback(t.Context(), root, "shop", to.id, ipc.RollbackRequest{}, nil)
			if err != nil || !res.RolledBack || res.Confidence != 1 {
				t.Fatalf("%v, %+v", err, res)
			}
			for _, s := range res.Stages {
				if s.DurationMS < 0 || s.DurationMS > time.Hour.Milliseconds() {
					t.Errorf("%s is said to have taken %d ms", s.Stage, s.DurationMS)
				}
			}
			w.runs(t, d, to.word)
			safety = res.SafetyCheckpoint.ID
		}
		w.keeps(t, d, safety, cp.ID, first.ID)
		if err := d.Delete(t.Context(), root, "shop", cp.ID); err != nil {
			t.Fatal(err)
		}
		if n%2 == 0 {
			w.close(t, d)
			d = open()
			w.runs(t, d, word)
		}
	}
	list, err := d.Audit(t.Context(), root, "shop", 0, true)
	if err != nil || !list.Check.OK {
		t.Errorf("the audit: %+v, %v", list.Check, err)
	}
	w.close(t, d)
}

// keeps checks what pruning leaves: the newest by their order, and the pinned one.
func (w world) keeps(t *testing.T, d *daemon.Daemon, safety, cp, pinned ipc.CheckpointID) {
	t.Helper()
	if _, err := d.Prune(t.Context(), root, "shop", false); err != nil {
		t.Fatal(err)
	}
	list := listed(t, d)
	at := func(id ipc.CheckpointID) int {
		return slices.IndexFunc(list, func(c ipc.Checkpoint) bool { return c.ID == id })
	}
	if len(list) > 4 || at(safety) != 0 || at(cp) != 2 || at(pinned) != len(list)-1 {
		t.Fatalf("kept are %d, the newest is at %d, the one before the last two at %d, the pinned one at %d", len(list), at(safety), at(cp), at(pinned))
	}
	if s := d.Status(root); len(s.Problems) > 0 {
		t.Fatalf("problems: %v", s.Problems)
	}
}
