package remote

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"mulligan/errs"
	"mulligan/remote/s3store"
	"mulligan/remote/s3test"
	"mulligan/testkit"
)

// but returns what goes if all of these stay.
func but(stay ...string) func([]Sent) map[string]bool {
	return func(list []Sent) map[string]bool {
		gone := map[string]bool{}
		for _, c := range list {
			gone[c.ID] = !slices.Contains(stay, c.ID)
		}
		return gone
	}
}

func (h *host) prune(stay ...string) Pruned {
	h.t.Helper()
	res, err := h.place.Prune(h.t.Context(), h.store, but(stay...), false)
	must(h.t, err)
	return res
}

// held returns the number of the bucket's packs, and the bytes of all that is there.
func (h *host) held() (packs int, size int64) {
	h.t.Helper()
	list, err := h.bucket.List(h.t.Context(), h.cfg.Name, "")
	must(h.t, err)
	for _, o := range list {
		size += o.Size
		if strings.Contains(o.Name, "/packs/") {
			packs++
		}
	}
	return packs, size
}

// testPrune: checkpoints that are to go are no more on the remote, what the others need is, and the bucket has the less of them. Packs that nothing
// ever named go, too. A dry run says the same and changes nothing.
func testPrune(t *testing.T, s servers) {
	h := newHost(t, s.start(t).Endpoint)
	h.write(12, 4000)
	h.push("cp-0")
	random := testkit.Rand(t)
	var ids []string
	h.replace(10, 4000) // so much that the first pack is not worth keeping
	for i := range 10 {
		h.change(6, 4000, random)
		ids = append(ids, fmt.Sprint("cp-", i+1))
		h.push(ids[i])
	}
	must(t, h.bucket.PutNew(t.Context(), packName(h.cfg.Name, NewName()), []byte("left by a crash")))
	for i := range 8 {
		h.lose(fmt.Sprint("cp-", i))
	}
	stay := []string{"cp-3", "cp-9", "cp-10"}
	packs, size := h.held()
	ledger, err := os.ReadFile(h.cfg.Ledger)
	must(t, err)
	dry, err := h.place.Prune(t.Context(), h.store, but(stay...), true)
	must(t, err)
	if n, s := h.held(); n != packs || s != size {
		t.Errorf("a dry run leaves %d packs and %d bytes of %d and %d", n, s, packs, size)
	}
	now, err := os.ReadFile(h.cfg.Ledger)
	must(t, err)
	if !bytes.Equal(now, ledger) {
		t.Error("a dry run changes the ledger")
	}
	res := h.prune(stay...)
	if len(res.Gone) != 8 || res.Gone[0].ID != "cp-0" || res.Stay != 3 || res.Packs < 2 || len(res.Left) > 0 ||
		len(dry.Gone) != 8 || dry.Packs != res.Packs || dry.Stay != 3 || dry.Moved == 0 || res.Moved == 0 || res.Freed < 20_000 {
		t.Errorf("done: %d %d %d %d %d %q\nforetold: %d %d %d %d %d %q", len(res.Gone), res.Stay, res.Packs, res.Moved, res.Freed, res.Left, len(dry.Gone), dry.Stay, dry.Packs, dry.Moved, dry.Freed, dry.Left)
	}
	h.whole(stay...)
	left, after := h.held()
	entry := int64(4000) // at most, that of the prune
	if freed := size - after; freed > res.Freed || freed < res.Freed-entry {
		t.Errorf("%d bytes were freed, it says %d", freed, res.Freed)
	}
	t.Logf("%d packs of %d bytes became %d of %d; foretold were %d freed, it were %d", packs, size, left, after, dry.Freed, res.Freed)
	if info, err := os.Stat(h.cfg.Ledger); err != nil || info.Size() >= int64(len(ledger)) {
		t.Errorf("the ledger has %d bytes, and had %d; %v", info.Size(), len(ledger), err)
	}

	before := h.bucket.Usage().Requests
	again := h.prune(stay...)
	if len(again.Gone)+again.Packs != 0 || again.Freed != 0 || h.bucket.Usage().Requests-before > 5 {
		t.Errorf("pruned again: %+v", again)
	}
	h.restart(nil)
	h.change(5, 4000, random)
	if res := h.push("cp-11"); res.Objects > 5+16+1 {
		t.Errorf("after a prune, %d objects are sent of what is there", res.Objects)
	}
	h.whole(append(stay, "cp-11")...)
	if res, err := h.place.Check(t.Context(), true); err != nil || len(res.Problems) > 0 {
		t.Errorf("%+v %v", res, err)
	}
}

// testPrunedComesBack: a folder that is again as in a checkpoint that is gone is sent again, though its node is in a pack that stayed.
func testPrunedComesBack(t *testing.T, s servers) {
	h := newHost(t, s.start(t).Endpoint)
	h.write(2, 400)
	first, second := h.content["file-0000"], h.content["file-0001"]
	h.push("cp-1")
	// The pack of cp-2 has a node of a folder with second, whose blob is in the pack of cp-1, and much that stays.
	other := bytes.Clone(first)
	other[0] = second[0]
	other[1] = ^second[1]
	h.content["file-0000"] = other
	h.write(40, 4000)
	h.push("cp-2")
	h.content["file-0001"] = []byte("short")
	h.content["file-0000"] = []byte("and short")
	h.push("cp-3")
	h.lose("cp-1")
	h.lose("cp-2")
	h.prune("cp-3")
	h.restart(nil)
	h.content["file-0000"], h.content["file-0001"] = other, second
	h.push("cp-4")
	h.whole("cp-3", "cp-4")
}

// testPruneCutShort: a prune that ends at any of its steps leaves all that stays whole; the next one finishes it.
func testPruneCutShort(t *testing.T, s servers) {
	cut := errors.New("cut short")
	server := s.start(t)
	random := testkit.Rand(t)
	steps := []string{"push: pack", "push: sent", "push: intent", "push: entry", "push: wrote", "prune: delete", "prune: deleted", "prune: ledger"}
	for _, i := range testkit.Sample(t, "steps of a prune", len(steps), 4) {
		step := steps[i]
		for _, pushed := range []bool{false, true} { // meanwhile
			h := newHost(t, server.Endpoint)
			h.write(15, 3000)
			h.push("cp-0")
			h.replace(10, 3000) // so much that the first pack is not worth keeping
			for i := range 4 {
				h.change(3, 3000, random)
				h.push(fmt.Sprint("cp-", i+1))
			}
			h.lose("cp-0")
			var once sync.Once
			h.restart(func(at string) (err error) {
				if at == step {
					once.Do(func() { err = cut })
				}
				return err
			})
			if _, err := h.place.Prune(t.Context(), h.store, but("cp-3", "cp-4"), false); !errors.Is(err, cut) {
				t.Fatalf("%s: %v", step, err)
			}
			h.restart(nil)
			hist, err := h.read()
			must(t, err)
			for _, id := range []string{"cp-3", "cp-4"} {
				must(t, h.fetch(hist, id))
			}
			if len(hist.Problems) > 0 {
				t.Errorf("%s: %v", step, hist.Problems)
			}
			stay := []string{"cp-3", "cp-4"}
			if pushed {
				h.change(3, 3000, random)
				h.push("cp-5")
				stay = append(stay, "cp-5")
			}
			h.prune(stay...)
			h.whole(stay...)
			hist, err = h.read()
			must(t, err)
			if packs, _ := h.held(); packs != len(hist.packs()) || len(hist.Warnings) > 0 {
				t.Errorf("%s: %d packs are there, %d are named: %v", step, packs, len(hist.packs()), hist.Warnings)
			}
		}
	}
}

// testPruneOfTwoHosts: who lost the place removes nothing, who took it leaves what it does not know; and what was read before a prune is read again.
func testPruneOfTwoHosts(t *testing.T, s servers) {
	a := newHost(t, s.start(t).Endpoint)
	random := testkit.Rand(t)
	a.write(20, 2000)
	a.push("cp-1")
	a.replace(15, 2000) // so much that the first pack is not worth keeping
	a.push("cp-2")

	hist, err := a.read() // a clone begins
	must(t, err)
	a.lose("cp-1")
	if res := a.prune("cp-2"); res.Packs == 0 || res.Moved == 0 {
		t.Fatalf("nothing was moved: %+v", res)
	}
	if err := a.fetch(hist, "cp-2"); errs.KindOf(err) != errs.Corrupt {
		t.Errorf("what was read before: %v", err)
	}
	if newer, err := hist.Newer(t.Context()); err != nil || newer == nil {
		t.Errorf("the log is longer, and it is not told: %v", err)
	} else {
		must(t, a.fetch(newer, "cp-2"))
		if again, err := newer.Newer(t.Context()); err != nil || again != nil {
			t.Errorf("the log is not longer, and it is told: %v", err)
		}
	}

	b := a.other()
	must(t, b.place.TakeOver(t.Context()))
	b.change(5, 2000, random)
	b.push("cp-3")
	before, _ := a.held()
	for _, dry := range []bool{false, true} {
		if _, err := a.place.Prune(t.Context(), a.store, but(), dry); errs.KindOf(err) != errs.Conflict || !strings.Contains(errs.Words(err), "another host") {
			t.Errorf("the host that lost the place prunes: %v", err)
		}
	}
	if after, _ := a.held(); after != before {
		t.Errorf("the host that lost the place left %d of %d packs", after, before)
	}
	a.whole("cp-2", "cp-3")
	b.change(5, 2000, random)
	b.push("cp-4")
	res := b.prune("cp-4")
	if len(res.Left) != 1 || !strings.Contains(res.Left[0], "does not know") || len(res.Gone) != 1 {
		t.Errorf("the second host prunes: %+v", res)
	}
	a.whole("cp-2", "cp-4")
}

// testPruneOfSentByTwo: a host that took the place over sends a checkpoint that the first host sent, under the same id, and a prune of its removes that again. What the
// first host sent is still there.
func testPruneOfSentByTwo(t *testing.T, s servers) {
	a := newHost(t, s.start(t).Endpoint)
	a.write(20, 500)
	a.push("cp-1")
	b := a.other()
	must(t, b.place.TakeOver(t.Context()))
	if res, err := b.place.Push(t.Context(), b.store, b.recorded("cp-1")); err != nil || res.Already {
		t.Fatalf("cp-1 is sent by the second host: already %v, %v", res.Already, err)
	}
	b.content = map[string][]byte{}
	b.write(5, 600)
	b.push("cp-2")
	a.whole("cp-1", "cp-2")
	if res := b.prune("cp-2"); len(res.Gone) != 1 || res.Gone[0].ID != "cp-1" {
		t.Fatalf("%+v", res)
	}
	a.whole("cp-1", "cp-2")
}

// testPruneAppendOnly: where nothing can be deleted, a prune says so and leaves the log as it is.
func testPruneAppendOnly(t *testing.T, s servers) {
	for says, bucket := range map[string]func(*testing.T) *s3store.Store{
		"cannot delete": s.appends,
		"locks objects": func(t *testing.T) *s3store.Store { return connect(t, s.locked(t).Endpoint) },
	} {
		t.Run(says, func(t *testing.T) {
			h := newHostAt(t, bucket(t))
			h.write(10, 1000)
			h.push("cp-1")
			h.push("cp-2")
			before := h.bucket.Usage().Sent
			if _, err := h.place.Prune(t.Context(), h.store, but("cp-2"), false); errs.KindOf(err) != errs.Denied || !strings.Contains(errs.Words(err), says) || errs.HintOf(err) == "" {
				t.Error(err)
			}
			if h.bucket.Usage().Sent != before {
				t.Error("something was written")
			}
			h.whole("cp-1", "cp-2")
		})
	}
}

// testPruneOlderLedger: a ledger that is older than the log removes nothing, and nothing relies on what it says is there.
func testPruneOlderLedger(t *testing.T, s servers) {
	server := s.start(t)
	for _, cut := range []string{"older", "cut", "gone", "older, and all stays"} {
		h := newHost(t, server.Endpoint)
		random := testkit.Rand(t)
		h.write(20, 2000)
		h.push("cp-1")
		h.change(5, 2000, random)
		h.push("cp-2")
		older, err := os.ReadFile(h.cfg.Ledger)
		must(t, err)
		h.change(5, 2000, random)
		h.push("cp-3")
		switch cut {
		case "cut":
			older = older[:len(older)*2/3]
		case "gone":
			older = nil
		}
		must(t, os.WriteFile(h.cfg.Ledger, older, 0o600))
		h.restart(nil)
		packs, _ := h.held()
		stay := []string{"cp-1", "cp-2", "cp-3"}
		goes := but()
		if strings.Contains(cut, "all stays") {
			goes = but(stay...)
		}
		if res, err := h.place.Prune(t.Context(), h.store, goes, false); err == nil && res.Packs > 0 || err != nil && errs.KindOf(err) != errs.Busy {
			t.Errorf("%s: %+v %v", cut, res, err)
		}
		if now, _ := h.held(); now < packs {
			t.Errorf("%s: %d packs of %d are there", cut, now, packs)
		}
		h.whole(stay...)
		h.change(5, 2000, random)
		h.push("cp-4")
		h.whole(append(stay, "cp-4")...)
	}
}

// testPushAfterPruneOfOlderLedger: a ledger from before a prune is not believed: what the prune removed is sent again, also if it is a checkpoint as it was.
func testPushAfterPruneOfOlderLedger(t *testing.T, s servers) {
	h := newHost(t, s.start(t).Endpoint)
	random := testkit.Rand(t)
	h.write(20, 2000)
	h.push("cp-1")
	was := maps.Clone(h.content)
	h.change(60, 2000, random)
	h.push("cp-2")
	older, err := os.ReadFile(h.cfg.Ledger)
	must(t, err)
	h.prune("cp-2")
	must(t, os.WriteFile(h.cfg.Ledger, older, 0o600))
	h.restart(nil)
	h.content = was
	h.push("cp-3")
	h.whole("cp-2", "cp-3")
	if res, err := h.place.Push(t.Context(), h.store, h.recorded("cp-1")); err != nil || res.Already {
		t.Errorf("what the prune removed is pushed: already %v, %v", res.Already, err)
	}
	h.whole("cp-1", "cp-2", "cp-3")
}

// testTakeOverAfterPrune: a place is taken over after a prune whose answer was lost. What the prune removed counts as removed, and nothing else is in doubt.
func testTakeOverAfterPrune(t *testing.T, s servers) {
	h := newHost(t, s.start(t).Endpoint)
	h.write(20, 500)
	h.push("cp-1")
	h.write(1, 500)
	h.push("cp-2")
	bucket := &lateLog{Bucket: h.bucket, hold: true}
	h.cfg.Bucket = bucket
	h.restart(nil)
	if _, err := h.place.Prune(t.Context(), h.store, but("cp-2"), false); errs.KindOf(err) != errs.Unavailable || bucket.land == nil {
		t.Fatalf("the prune's request fails: %v", err)
	}
	bucket.release(h, false)
	must(t, h.place.TakeOver(t.Context()))
	if st, err := h.place.Status(); err != nil || len(st.Sent) != 1 || st.Sent[0].ID != "cp-2" || len(st.Doubtful) > 0 {
		t.Errorf("%+v %v", st, err)
	}
	if res, err := h.place.Push(t.Context(), h.store, h.recorded("cp-1")); err != nil || res.Already {
		t.Errorf("what the prune removed is pushed: already %v, %v", res.Already, err)
	}
	h.whole("cp-2", "cp-1")
}

// testTakeOverOfOlderBucket: a bucket that was put back to an older state is taken over. Nothing that was sent is believed to be there, and what is written
// under the numbers of lost entries is not taken for these. A prune lets go what is in doubt.
func testTakeOverOfOlderBucket(t *testing.T, s servers) {
	server := s.start(t)
	h := newHost(t, server.Endpoint)
	h.write(20, 500)
	h.push("cp-1")
	saved := server.Objects(t)
	for _, id := range []string{"cp-2", "cp-3"} {
		h.write(1, 500)
		h.push(id)
	}
	remove := func(what string) {
		t.Helper()
		for _, path := range server.Objects(t) {
			if !slices.Contains(saved, path) && strings.Contains(path, what) {
				server.Remove(t, path)
			}
		}
	}
	remove("/packs/")
	if res, err := h.place.Check(t.Context(), false); err != nil || len(res.Problems) == 0 {
		t.Fatalf("%+v %v", res, err)
	}
	for _, id := range []string{"cp-2", "cp-3"} { // they are sent twice
		if res, err := h.place.Push(t.Context(), h.store, h.recorded(id)); err != nil || res.Already {
			t.Fatalf("%s is pushed: already %v, %v", id, res.Already, err)
		}
	}
	remove("")
	must(t, h.place.TakeOver(t.Context()))
	if st, err := h.place.Status(); err != nil || len(st.Sent) > 0 || len(st.Doubtful) != 3 {
		t.Errorf("%+v %v", st, err)
	}
	for _, id := range []string{"cp-4", "cp-5"} {
		h.write(1, 500)
		h.push(id)
	}
	if res := h.prune("cp-1", "cp-2", "cp-4", "cp-5"); len(res.Gone) != 1 || res.Gone[0].ID != "cp-3" || res.Stay != 4 {
		t.Errorf("pruned: %+v", res)
	}
	h.whole("cp-1", "cp-4", "cp-5")
	h.restart(nil)
	if st, err := h.place.Status(); err != nil || len(st.Sent) != 2 || len(st.Doubtful) != 2 {
		t.Errorf("in doubt is what the prune let go: %+v %v", st, err)
	}
	for _, id := range []string{"cp-1", "cp-2", "cp-3"} {
		if res, err := h.place.Push(t.Context(), h.store, h.recorded(id)); err != nil || res.Already {
			t.Errorf("%s is pushed: already %v, %v", id, res.Already, err)
		}
	}
	h.whole("cp-1", "cp-4", "cp-5", "cp-2", "cp-3")
}

// testPutBack: objects from before a prune that are put back are not believed, and an entry of it in the place of a later one is told.
func testPutBack(t *testing.T, s servers) {
	server := s.start(t)
	h := newHost(t, server.Endpoint)
	random := testkit.Rand(t)
	h.write(20, 2000)
	h.push("cp-1")
	h.change(5, 2000, random)
	h.push("cp-2")
	saved := map[string][]byte{}
	for _, path := range server.Objects(t) {
		saved[path] = server.Read(t, path)
	}
	h.lose("cp-1")
	h.prune("cp-2")
	h.change(5, 2000, random)
	h.push("cp-3")
	entries := map[string][]byte{}
	for _, path := range server.Objects(t) {
		if saved[path] == nil && strings.Contains(path, "/log/") {
			entries[path] = server.Read(t, path)
		}
	}
	if len(entries) != 2 {
		t.Fatalf("%d entries were written after that", len(entries))
	}
	for path, data := range saved { // all of the old bucket
		server.Write(t, path, data)
	}
	h.whole("cp-2", "cp-3")
	hist, err := h.read()
	must(t, err)
	if _, err := hist.Find("cp-1"); errs.KindOf(err) != errs.NotFound {
		t.Errorf("a checkpoint came back: %v", err)
	}
	var old [][]byte
	for path, data := range saved {
		if strings.Contains(path, "/log/") {
			old = append(old, data)
		}
	}
	for path, data := range entries {
		for _, o := range append(old, nil) {
			server.Write(t, path, o)
			hist, err := h.read()
			must(t, err)
			if len(hist.Problems) == 0 {
				t.Errorf("nobody tells of %s", filepath.Base(path))
			}
			for _, c := range hist.Checkpoints {
				if err := h.fetch(hist, c.ID); err != nil && errs.KindOf(err) != errs.Corrupt {
					t.Errorf("%s: %v", c.ID, err)
				}
			}
		}
		server.Write(t, path, data)
	}
	h.whole("cp-2", "cp-3")
}

// testPruneOfOlderBucket: in a bucket that was put back to the state of before a prune, another prune removes nothing that the log of then needs: it is refused,
// and once a check has found what is missing, packs stay that the ledger does not know any more.
func testPruneOfOlderBucket(t *testing.T, s servers) {
	server := s.start(t)
	h := newHost(t, server.Endpoint)
	h.write(20, 2000)
	h.push("cp-1")
	for i := range 14 { // so that little of the first pack is needed
		h.content[fmt.Sprintf("file-%04d", i)] = testkit.Bytes(t, 2000, "other", i)
	}
	h.push("cp-2")
	saved := map[string][]byte{}
	for _, path := range server.Objects(t) {
		saved[path] = server.Read(t, path)
	}
	h.lose("cp-1")
	if res := h.prune("cp-2"); res.Moved == 0 {
		t.Fatalf("nothing is moved: %+v", res)
	}
	h.write(1, 2000)
	h.push("cp-3")
	for _, path := range server.Objects(t) {
		if saved[path] == nil {
			server.Remove(t, path)
		}
	}
	for path, data := range saved {
		server.Write(t, path, data)
	}
	h.lose("cp-2")
	fetched := func(when string, ids ...string) {
		t.Helper()
		hist, err := h.read()
		must(t, err)
		for _, id := range ids {
			if err := h.fetch(hist, id); err != nil {
				t.Errorf("%s: %s: %v", when, id, err)
			}
		}
	}
	for _, dry := range []bool{true, false} {
		if _, err := h.place.Prune(t.Context(), h.store, but("cp-2", "cp-3"), dry); errs.KindOf(err) != errs.Conflict || !strings.Contains(errs.HintOf(err), "verify --remote") {
			t.Errorf("pruned, dry %t: %v", dry, err)
		}
	}
	fetched("after a prune that was refused", "cp-2")
	if res, err := h.place.Check(t.Context(), false); err != nil || len(res.Problems) == 0 {
		t.Fatalf("checked: %+v %v", res, err)
	}
	if res := h.prune("cp-2", "cp-3"); len(res.Left) != 1 || !strings.Contains(res.Left[0], "does not know") {
		t.Errorf("pruned after a check: %+v", res)
	}
	if res, err := h.place.Push(t.Context(), h.store, h.recorded("cp-3")); err != nil || res.Already {
		t.Errorf("cp-3 is pushed: already %v, %v", res.Already, err)
	}
	h.prune("cp-2", "cp-3")
	fetched("after a push and a prune", "cp-2", "cp-3")
}

// testPruneOfChangedLog: a pack that the ledger does not know stays if the last entry of the log is not the ledger's, which another one may have put there.
func testPruneOfChangedLog(t *testing.T, s servers) {
	server := s.start(t)
	h := newHost(t, server.Endpoint)
	h.write(5, 500)
	h.push("cp-1")
	must(t, h.bucket.PutNew(t.Context(), packName(h.cfg.Name, NewName()), []byte("of the other log")))
	files := server.Objects(t)
	path := files[slices.IndexFunc(files, func(path string) bool { return strings.Contains(path, "/log/") })]
	was := server.Read(t, path)
	other := bytes.Clone(was)
	other[len(other)/2] ^= 1
	server.Write(t, path, other)
	if res := h.prune("cp-1"); res.Packs != 0 || len(res.Left) != 1 {
		t.Errorf("%+v", res)
	}
	server.Write(t, path, was)
	if res := h.prune("cp-1"); res.Packs != 1 || len(res.Left) != 0 {
		t.Errorf("the log is the ledger's: %+v", res)
	}
	h.whole("cp-1")
}

// testPruneDamagedEntry: of a checkpoint that was sent twice, a prune keeps the earlier entry if the later one is damaged: whoever reads the log takes that one.
func testPruneDamagedEntry(t *testing.T, s servers) {
	server := s.start(t)
	h := newHost(t, server.Endpoint)
	damage := func(name string) (mend func()) {
		t.Helper()
		files := server.Objects(t)
		path := files[slices.IndexFunc(files, func(path string) bool { return strings.Contains(path, name) })]
		good := server.Read(t, path)
		bad := bytes.Clone(good)
		bad[len(bad)/2] ^= 1
		server.Write(t, path, bad)
		if res, err := h.place.Check(t.Context(), true); err != nil || len(res.Problems) == 0 {
			t.Fatalf("%s is damaged: %+v %v", name, res, err)
		}
		return func() { server.Write(t, path, good) }
	}
	ids := []string{"cp-1", "cp-2", "cp-3"}
	fetched := func(when string) {
		t.Helper()
		hist, err := h.read()
		must(t, err)
		for _, id := range ids {
			if err := h.fetch(hist, id); err != nil {
				t.Errorf("%s, %s: %v", when, id, err)
			}
		}
	}
	h.write(10, 500)
	h.push("cp-1")
	hist, err := h.read()
	must(t, err)
	for _, id := range ids[1:] {
		h.write(2, 500)
		h.push(id)
	}
	for name := range hist.packs() { // one, of cp-1
		damage(name)
	}
	again := func(id string) {
		t.Helper()
		if res, err := h.place.Push(t.Context(), h.store, h.recorded(id)); err != nil || res.Already {
			t.Fatalf("%s is sent again: %+v %v", id, res, err)
		}
	}
	again("cp-3")
	mend := damage(logName(h.cfg.Name, 4))
	h.lose("cp-3")
	again("cp-1") // which has what cp-3 needs
	status, err := h.place.Status()
	if err != nil || len(status.Doubtful) > 0 || len(status.Sent) != 3 {
		t.Fatalf("in doubt are %+v, %v", status.Doubtful, err)
	}
	fetched("damaged")
	for range 2 {
		if res := h.prune(ids...); len(res.Gone) > 0 || res.Stay != 3 {
			t.Errorf("pruned: %+v", res)
		}
		fetched("pruned")
	}
	mend() // the damage was of one of several copies of the bucket
	fetched("can be read again")
	if res := h.prune("cp-1", "cp-2"); len(res.Gone) != 1 || res.Stay != 2 {
		t.Errorf("pruned: %+v", res)
	}
	h.whole("cp-1", "cp-2")
}

// testPruneLandsLate: a prune whose request for its entry failed, and was carried out at another time. What is pushed then is whole, also if damage was
// found meanwhile.
func testPruneLandsLate(t *testing.T, s servers) {
	server := s.start(t)
	for name, c := range map[string]struct{ damaged, late bool }{
		"before a check": {}, "before damage is found": {damaged: true}, "during a push": {late: true}, "during a push after damage was found": {true, true},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t, server.Endpoint)
			h.write(40, 500)
			h.push("cp-1")
			hist, err := h.read()
			must(t, err)
			h.write(8, 2000)
			h.push("cp-2")
			h.write(1, 500)
			h.push("cp-3") // needs most of the pack of cp-2, but not its top
			h.content["file-0048"] = []byte("in a pack that the prune removes")
			h.push("cp-4")
			for _, id := range []string{"cp-1", "cp-2", "cp-4"} {
				h.lose(id)
			}
			bucket := &lateLog{Bucket: h.bucket, hold: true}
			h.cfg.Bucket = bucket
			h.restart(nil)
			if _, err := h.place.Prune(t.Context(), h.store, but("cp-3"), false); errs.KindOf(err) != errs.Unavailable || bucket.land == nil {
				t.Fatalf("the prune's request fails: %v", err)
			}
			bucket.release(h, c.late)
			if c.damaged {
				files := server.Objects(t)
				for name := range hist.packs() { // one, of cp-1: it has most of what cp-3 consists of
					server.Remove(t, files[slices.IndexFunc(files, func(path string) bool { return strings.Contains(path, name) })])
				}
			}
			if res, err := h.place.Check(t.Context(), true); err != nil || (len(res.Problems) > 0) != c.damaged {
				t.Fatalf("checked: %+v %v", res, err)
			}
			h.content["file-0000"] = []byte("new")
			cps := []Checkpoint{h.capture("cp-5"), h.recorded("cp-3")}
			for again := range 2 {
				for _, cp := range cps {
					if res, err := h.place.Push(t.Context(), h.store, cp); err != nil || again == 1 && !res.Already {
						t.Errorf("%s is pushed, after %d times: already %v, %v", cp.ID, again, res.Already, err)
					}
				}
			}
			h.whole("cp-3", "cp-5")
		})
	}
}

// testCheckAfterPruneCutShort: a power cut took from the ledger that a prune's entry was written, and the packs are deleted. A check takes that for no damage.
func testCheckAfterPruneCutShort(t *testing.T, s servers) {
	h := newHost(t, s.start(t).Endpoint)
	h.write(10, 500)
	h.push("cp-1")
	h.content = map[string][]byte{}
	h.write(5, 600)
	h.push("cp-2")
	var ledger []byte
	cut := errors.New("cut short")
	h.restart(func(at string) (err error) {
		switch at {
		case "push: wrote":
			ledger, err = os.ReadFile(h.cfg.Ledger)
		case "prune: deleted":
			err = cut
		}
		return err
	})
	if res, err := h.place.Prune(t.Context(), h.store, but("cp-2"), false); !errors.Is(err, cut) || res.Packs != 1 {
		t.Fatalf("%+v %v", res, err)
	}
	must(t, os.WriteFile(h.cfg.Ledger, ledger, 0o600))
	h.restart(nil)
	if res, err := h.place.Check(t.Context(), true); err != nil || len(res.Problems) > 0 {
		t.Errorf("%+v %v", res, err)
	}
	if res := h.push("cp-3"); res.Objects != 1 {
		t.Errorf("%d objects are sent of what is there", res.Objects)
	}
	h.whole("cp-2", "cp-3")
}

// A ledger that does not say what each checkpoint needs removes nothing.
func TestPruneEarlierLedger(t *testing.T) {
	t.Parallel()
	h := newHost(t, s3test.Start(t).Endpoint)
	h.write(5, 500)
	h.push("cp-1")
	h.push("cp-2")
	l, err := openLedger(h.cfg.Ledger, h.cfg.Name)
	must(t, err)
	for i := range l.Packs {
		l.Packs[i].Refs = nil
	}
	must(t, l.rewrite(h.cfg.Ledger, h.cfg.Name))
	must(t, l.close())
	if _, err := h.place.Prune(t.Context(), h.store, but("cp-2"), false); errs.KindOf(err) != errs.Unsupported || errs.HintOf(err) == "" {
		t.Errorf("%v", err)
	}
	h.whole("cp-1", "cp-2")
}

// testPruneModel does what hosts do to a place in random order, with crashes at random steps: what is promised is whole, always.
func testPruneModel(t *testing.T, s servers) {
	server := s.start(t)
	rounds := 3
	if testkit.Long() {
		rounds = 20
	}
	for range rounds {
		m := &model{host: newHost(t, server.Endpoint), promised: []string{}}
		m.run()
	}
}

type model struct {
	*host
	promised []string
	here     []string
	older    []byte // a ledger of before
	n        int
	done     []string
}

func (m *model) run() {
	random := testkit.Rand(m.t)
	m.write(25, 1500)
	crash := errors.New("crash")
	for range 25 {
		step, steps := random.IntN(12), 0
		if random.IntN(2) == 0 {
			step = -1
		}
		var mu sync.Mutex
		m.restart(func(at string) error {
			mu.Lock()
			defer mu.Unlock()
			if steps++; steps-1 == step {
				return fmt.Errorf("%w at %s", crash, at)
			}
			return nil
		})
		looked := false // at the end of the log
		var err error
		switch k := random.IntN(10); {
		case k < 4:
			m.change(1+random.IntN(8), 1500, random)
			id := fmt.Sprint("cp-", m.n)
			m.n++
			cp := m.capture(id)
			m.here = append(m.here, id)
			m.done = append(m.done, "push "+id)
			for range 3 {
				if _, err = m.place.Push(m.t.Context(), m.store, cp); err == nil {
					break
				}
				m.restart(nil)
				if errs.KindOf(err) == errs.Conflict { // its ledger does not know any more that it took the place over
					must(m.t, m.place.TakeOver(m.t.Context()))
				}
			}
			must(m.t, err)
			m.promised = append(m.promised, id)
			looked = true
		case k < 5 && len(m.here) > 1:
			i := random.IntN(len(m.here) - 1)
			m.done = append(m.done, "lose "+m.here[i])
			m.lose(m.here[i])
			m.here = slices.Delete(m.here, i, i+1)
		case k < 8:
			var stay []string
			for _, id := range m.promised {
				if random.IntN(3) > 0 {
					stay = append(stay, id)
				}
			}
			_, err = m.place.Prune(m.t.Context(), m.store, but(stay...), false)
			m.done = append(m.done, fmt.Sprintf("prune to %v: %v", stay, err))
			if err != nil && !errors.Is(err, crash) && errs.KindOf(err) != errs.Busy && errs.KindOf(err) != errs.Conflict {
				m.t.Fatalf("%v: %v", m.done, err)
			}
			hist, err := m.read()
			must(m.t, err)
			m.promised = slices.DeleteFunc(m.promised, func(id string) bool {
				_, err := hist.Find(id)
				return err != nil && !slices.Contains(stay, id)
			})
		case k < 9:
			data, err := os.ReadFile(m.cfg.Ledger)
			if err != nil {
				continue
			}
			if older := m.older; older != nil && random.IntN(2) == 0 {
				m.done = append(m.done, "an older ledger")
				must(m.t, os.WriteFile(m.cfg.Ledger, older, 0o600))
			} else {
				m.done = append(m.done, "cut the ledger")
				must(m.t, os.WriteFile(m.cfg.Ledger, data[:random.IntN(len(data)+1)], 0o600))
			}
			m.older = data
		default:
			m.done = append(m.done, "take over")
			o := m.other()
			o.cfg.Failpoint = nil
			o.place = NewPlace(o.cfg)
			must(m.t, o.place.TakeOver(m.t.Context()))
			m.host, m.older, looked = o, nil, true
		}
		m.restart(nil)
		hist, err := m.read()
		must(m.t, err)
		for _, id := range m.promised {
			if err := m.fetch(hist, id); err != nil {
				m.t.Fatalf("%s: %v\n%s", id, err, strings.Join(m.done, "\n"))
			}
		}
		if looked {
			status, err := m.place.Status()
			must(m.t, err)
			for _, c := range status.Sent {
				if err := m.fetch(hist, c.ID); err != nil {
					m.t.Fatalf("%s was sent, as the ledger says: %v\n%s", c.ID, err, strings.Join(m.done, "\n"))
				}
			}
		}
		if len(hist.Problems) > 0 {
			m.t.Fatalf("%v\n%s", hist.Problems, strings.Join(m.done, "\n"))
		}
	}
}

// A ledger that wrongly says that what is damaged is there makes a push fail: it does not send one more entry each time and take that for done.
func TestPushNotWhole(t *testing.T) {
	t.Parallel()
	server := s3test.Start(t)
	h := newHost(t, server.Endpoint)
	h.write(5, 500)
	h.push("cp-1")
	packs := slices.DeleteFunc(server.Objects(t), func(path string) bool { return !strings.Contains(path, "/packs/") })
	h.write(1, 500)
	h.push("cp-2")
	server.Remove(t, packs[0])
	if res, err := h.place.Check(t.Context(), false); err != nil || len(res.Problems) == 0 {
		t.Fatalf("%+v %v", res, err)
	}
	l, err := openLedger(h.cfg.Ledger, h.cfg.Name)
	must(t, err)
	for i := range l.Packs {
		l.Packs[i].Dead = nil
	}
	must(t, l.rewrite(h.cfg.Ledger, h.cfg.Name))
	must(t, l.close())
	if res, err := h.place.Push(t.Context(), h.store, h.recorded("cp-2")); errs.KindOf(err) != errs.Corrupt || errs.HintOf(err) == "" || len(res.Status.Doubtful) != 2 {
		t.Errorf("%+v %v", res, err)
	}
	must(t, h.place.TakeOver(t.Context()))
	_, err = h.place.Push(t.Context(), h.store, h.recorded("cp-2"))
	must(t, err)
	hist, err := h.read()
	must(t, err)
	must(t, h.fetch(hist, "cp-2"))
}
