package snaptest

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"mulligan/errs"
	"mulligan/snap"
)

// tester holds the methods of *testing.T and *rapid.T that the suite needs.
type tester interface {
	Helper()
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// harness is a subject together with what the suite knows about it.
type harness struct {
	tester
	t       *testing.T
	subject Subject
	ctx     context.Context
	seed    int64  // the last seed given to Mutate
	next    int    // number of ids handed out
	last    string // the last fingerprint
}

func newHarness(t *testing.T, s Subject) *harness {
	return &harness{tester: t, t: t, subject: s, ctx: t.Context()}
}

// again prepares the harness for another case, whose test is t.
func (h *harness) again(t *testing.T) {
	t.Helper()
	h.tester, h.t, h.ctx, h.last = t, t, t.Context(), ""
	h.reopen()
	h.must("Sweep", h.driver().Sweep(h.ctx, h.everything()))
	h.subject.(Reusable).Again(t)
}

// held is a snapshot and the fingerprint of the captured state.
type held struct {
	snap.Snapshot
	print string
}

// fewer returns n, or n/2 for a slow subject.
func (h *harness) fewer(n int) int {
	if h.slow() {
		return n / 2
	}
	return n
}

func (h *harness) slow() bool {
	s, ok := h.subject.(Slow)
	return ok && s.Slow()
}

func (h *harness) driver() snap.Driver { return h.subject.Driver() }
func (h *harness) reopen()             { h.subject.Reopen(h.t) }

// print returns the fingerprint of the live state.
func (h *harness) print() string {
	h.last = h.subject.Fingerprint(h.t)
	return h.last
}

// present returns the last fingerprint. Each step that may change the state takes a fingerprint
// after it. If another step changed the state by mistake, the next fingerprint differs, and the
// test fails.
func (h *harness) present() string {
	if h.last == "" {
		return h.print()
	}
	return h.last
}

// mutate changes the live state and returns its new fingerprint.
func (h *harness) mutate() string {
	h.Helper()
	before := h.present()
	h.seed++
	h.subject.Mutate(h.t, h.seed)
	after := h.print()
	if after == before {
		h.Fatalf("Mutate(%d) left the fingerprint as it was", h.seed)
	}
	return after
}

func (h *harness) snapshotID() snap.SnapshotID {
	h.next++
	return snap.SnapshotID(fmt.Sprintf("tt-%012x", h.next))
}

func (h *harness) restoreID() snap.RestoreID {
	h.next++
	return snap.RestoreID(fmt.Sprintf("op-%012x", h.next))
}

// everything returns the ids of all snapshots and switches ever made.
func (h *harness) everything() (all snap.Gone) {
	for i := 1; i <= h.next; i++ {
		all.Snapshots = append(all.Snapshots, snap.SnapshotID(fmt.Sprintf("tt-%012x", i)))
		all.Restores = append(all.Restores, snap.RestoreID(fmt.Sprintf("op-%012x", i)))
	}
	return all
}

// capture captures the live state, and checks that the capture does not change it.
func (h *harness) capture() held {
	h.Helper()
	before := h.present()
	id := h.snapshotID()
	s, err := h.driver().Capture(h.ctx, snap.CaptureRequest{ID: id, Quiesced: true})
	h.must("Capture", err)
	if s.ID != id || s.Driver == "" || s.Created.IsZero() || !s.Quiesced {
		h.Errorf("Capture(%s) returned an incomplete snapshot: %+v", id, s)
	}
	if h.print() != before {
		h.Fatalf("Capture(%s) changed the live state", id)
	}
	return held{s, before}
}

// restore captures a base, restores target, and checks the result.
func (h *harness) restore(target held) {
	h.Helper()
	base := h.capture()
	_, sw := h.prepare(target, base)
	h.commit(sw, base, target)
	h.must("Finish", sw.Finish(h.ctx))
	h.lives(target)
	h.delete(base)
}

func (h *harness) prepare(target, base held) (snap.RestoreID, snap.Switch) {
	h.Helper()
	id := h.restoreID()
	return id, h.prepareAs(id, target, base)
}

// prepareAs prepares a switch under id, and checks that this does not change the live state.
func (h *harness) prepareAs(id snap.RestoreID, target, base held) snap.Switch {
	h.Helper()
	before := h.present()
	sw, err := h.driver().Prepare(h.ctx, snap.RestoreRequest{ID: id, Target: target.ID, Base: base.ID})
	h.must("Prepare", err)
	if h.print() != before {
		h.Fatalf("Prepare(%s) changed the live state", id)
	}
	return sw
}

// commit commits, and checks that the live state is the target.
func (h *harness) commit(sw snap.Switch, base, target held) {
	h.Helper()
	h.must("Commit", sw.Commit(h.ctx))
	h.lives(target)
	h.proves(sw, base, target)
}

// undo undoes, and checks that the live state is the base.
func (h *harness) undo(sw snap.Switch, base held) {
	h.Helper()
	h.must("Undo", sw.Undo(h.ctx))
	h.lives(base)
	h.proves(sw, base, base)
}

// proves checks that the proof of Check says: the base was base, and the live state is want.
func (h *harness) proves(sw snap.Switch, base, want held) {
	h.Helper()
	p := h.check(sw)
	if !p.Match || p.Post != p.Want || p.Want.IsZero() {
		h.Errorf("Check does not find %s restored: %+v", want.ID, p)
	}
	if !want.Hash.IsZero() && p.Want != want.Hash {
		h.Errorf("Check wants %s, but %s has hash %s", p.Want, want.ID, want.Hash)
	}
	if !base.Hash.IsZero() && p.Pre != base.Hash {
		h.Errorf("Check has %s for the base, but %s has hash %s", p.Pre, base.ID, base.Hash)
	}
	if h.print() != want.print {
		h.Fatalf("Check changed the live state")
	}
}

func (h *harness) check(sw snap.Switch) snap.Proof {
	h.Helper()
	p, err := sw.Check(h.ctx)
	h.must("Check", err)
	return p
}

// stale checks the result of Stale, also after Warm.
func (h *harness) stale(sw snap.Switch, want bool) {
	h.Helper()
	ask := func(op string) {
		h.Helper()
		got, err := sw.Stale(h.ctx)
		h.must(op, err)
		if got != want {
			h.Fatalf("%s is %t, want %t", op, got, want)
		}
	}
	ask("Stale")
	if w, ok := sw.(snap.Warmer); ok {
		h.must("Warm", w.Warm(h.ctx))
		ask("Stale after Warm")
	}
}

func (h *harness) resume(id snap.RestoreID) snap.Switch {
	h.Helper()
	sw, err := h.driver().Resume(h.ctx, id)
	h.must("Resume", err)
	return sw
}

// gone checks that Resume does not find the id.
func (h *harness) gone(id snap.RestoreID) {
	h.Helper()
	_, err := h.driver().Resume(h.ctx, id)
	h.fails("Resume of a switch that is gone", err, errs.NotFound)
}

func (h *harness) delete(s held) {
	h.Helper()
	h.must("Delete", h.driver().Delete(h.ctx, s.ID))
}

func (h *harness) verify(s held, depth snap.Depth) {
	h.Helper()
	h.must(fmt.Sprintf("Verify(%s, %d)", s.ID, depth), h.driver().Verify(h.ctx, s.ID, depth))
}

// missing checks that no method finds a snapshot under the id.
func (h *harness) missing(id snap.SnapshotID, present held) {
	h.Helper()
	d := h.driver()
	h.fails("Verify(Quick)", d.Verify(h.ctx, id, snap.Quick), errs.NotFound)
	h.fails("Verify(Full)", d.Verify(h.ctx, id, snap.Full), errs.NotFound)
	_, err := d.Size(h.ctx, id)
	h.fails("Size", err, errs.NotFound)
	_, err = d.Size(h.ctx, present.ID, id)
	h.fails("Size of two", err, errs.NotFound)
	for _, req := range []snap.RestoreRequest{{Target: id, Base: present.ID}, {Target: present.ID, Base: id}} {
		req.ID = h.restoreID()
		_, err = d.Prepare(h.ctx, req)
		h.fails(fmt.Sprintf("Prepare(%+v)", req), err, errs.NotFound)
		h.gone(req.ID)
	}
	h.must("Delete of an unknown snapshot", d.Delete(h.ctx, id))
}

// size returns how many bytes deleting these snapshots together would free.
func (h *harness) size(list ...held) int64 {
	h.Helper()
	var ids []snap.SnapshotID
	for _, s := range list {
		ids = append(ids, s.ID)
	}
	n, err := h.driver().Size(h.ctx, ids...)
	h.must("Size", err)
	if n < 0 {
		h.Errorf("Size(%v) is %d", ids, n)
	}
	return n
}

// lives checks that the live state is the state of want.
func (h *harness) lives(want held) {
	h.Helper()
	if now := h.print(); now != want.print {
		h.Fatalf("the live state is not that of %s: %s", want.ID, difference(now, want.print))
	}
}

func (h *harness) must(what string, err error) {
	h.Helper()
	if err != nil {
		h.Fatalf("%s: %v", what, err)
	}
}

func (h *harness) fails(what string, err error, kind errs.Kind) {
	h.Helper()
	if err == nil {
		h.Fatalf("%s did not fail, want %s", what, kind)
	}
	if got := errs.KindOf(err); got != kind {
		h.Fatalf("%s: kind is %s, want %s: %v", what, got, kind, err)
	}
}

// difference returns the first line in which the print of the live state is another than the one that is wanted.
func difference(live, want string) string {
	a, b := strings.Split(live, "\n"), strings.Split(want, "\n")
	for i := range max(len(a), len(b)) {
		x, y := "nothing", "nothing"
		if i < len(a) {
			x = strconv.Quote(a[i])
		}
		if i < len(b) {
			y = strconv.Quote(b[i])
		}
		if x != y {
			return fmt.Sprintf("in line %d of %d it has %.400s, want %.400s", i+1, len(a), x, y)
		}
	}
	return "only in the ends of lines"
}
