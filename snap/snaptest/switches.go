package snaptest

import (
	"context"
	"errors"

	"mulligan/errs"
	"mulligan/snap"
)

// two returns a target and, after a change, the base, which is the present state.
func two(h *harness) (target, base held) {
	h.Helper()
	h.mutate()
	target = h.capture()
	h.mutate()
	return target, h.capture()
}

// prepare checks that Prepare does not change the live state, that Changes lists what will
// change, and that Stale notices writes.
func prepare(h *harness) {
	target, base := two(h)
	id, sw := h.prepare(target, base)
	list, total := sw.Changes(1)
	if total < 1 || len(list) != 1 || list[0].Path == "" || list[0].Operation == "" {
		h.Errorf("Changes(1) between two states is %+v, %d", list, total)
	}
	for range 2 {
		h.stale(sw, false)
		h.lives(base)
	}
	h.reopen()
	sw = h.resume(id)
	if _, again := sw.Changes(1); again != total {
		h.Errorf("Changes has a total of %d, and of %d after a crash", total, again)
	}
	h.stale(sw, false)
	h.mutate()
	h.stale(sw, true)
}

// prepareAgain checks that a second preparation under an id replaces the first.
func prepareAgain(h *harness) {
	target, old := two(h)
	id, sw := h.prepare(target, old)
	h.mutate()
	h.stale(sw, true)
	base := h.capture()
	sw = h.prepareAs(id, target, base)
	h.stale(sw, false)
	h.reopen()
	sw = h.resume(id)
	h.commit(sw, base, target)
	h.undo(sw, base)
	h.must("Finish", sw.Finish(h.ctx))
}

// sameState checks that a restore of the present state changes nothing and is proved all the same.
func sameState(h *harness) {
	target := h.capture()
	base := h.capture()
	_, sw := h.prepare(target, base)
	if list, total := sw.Changes(10); !base.Hash.IsZero() && total != 0 {
		h.Errorf("Changes between equal states: %+v", list)
	}
	h.stale(sw, false)
	h.commit(sw, base, target)
	h.undo(sw, base)
	h.must("Finish", sw.Finish(h.ctx))
}

// changed checks that Commit never replaces a state that the base does not hold.
func changed(h *harness) {
	target, base := two(h)
	id, sw := h.prepare(target, base)
	now := h.mutate()
	for range 2 {
		err := sw.Commit(h.ctx)
		h.fails("Commit over a later change", err, errs.Conflict)
		if !errors.Is(err, snap.ErrChanged) {
			h.Errorf("Commit over a later change: %v is not ErrChanged", err)
		}
		if h.print() != now {
			h.Fatalf("Commit refused, and changed the live state")
		}
		h.reopen()
		sw = h.resume(id)
	}
	base = h.capture()
	sw = h.prepareAs(id, target, base)
	h.commit(sw, base, target)
	h.must("Finish", sw.Finish(h.ctx))
	h.restore(base)
}

// commitTwice checks that Commit and Finish may be repeated.
func commitTwice(h *harness) {
	target, base := two(h)
	id, sw := h.prepare(target, base)
	for range 2 {
		h.commit(sw, base, target)
	}
	for range 2 {
		h.must("Finish", sw.Finish(h.ctx))
		h.gone(id)
		h.lives(target)
	}
}

// undoPrepared checks that Undo before Commit changes nothing.
func undoPrepared(h *harness) {
	target, base := two(h)
	id, sw := h.prepare(target, base)
	for range 2 {
		h.undo(sw, base)
	}
	for range 2 {
		h.must("Finish", sw.Finish(h.ctx))
		h.gone(id)
		h.lives(base)
	}
	h.restore(target)
}

// undoRefused checks that Undo changes nothing after a refused Commit, so that writes after the base, which no snapshot holds,
// are kept.
func undoRefused(h *harness) {
	target, base := two(h)
	id, sw := h.prepare(target, base)
	now := h.mutate()
	h.fails("Commit over a later change", sw.Commit(h.ctx), errs.Conflict)
	for range 2 {
		h.must("Undo", sw.Undo(h.ctx))
		if h.print() != now {
			h.Fatalf("Undo of a refused Commit took back what was written since")
		}
		h.reopen()
		sw = h.resume(id)
	}
	h.must("Finish", sw.Finish(h.ctx))
	h.gone(id)
}

// undoCommitted checks that Undo after Commit restores the base, and that the target can be restored again.
func undoCommitted(h *harness) {
	target, base := two(h)
	id, sw := h.prepare(target, base)
	h.commit(sw, base, target)
	for range 2 {
		h.undo(sw, base)
	}
	h.must("Finish", sw.Finish(h.ctx))
	h.gone(id)
	h.lives(base)
	h.restore(target)
	h.restore(base)
}

// undoAfterWrites checks that Check notices writes after Commit (of an app that was started and failed its health check), and
// that Undo reverts them.
func undoAfterWrites(h *harness) {
	target, base := two(h)
	id, sw := h.prepare(target, base)
	h.commit(sw, base, target)
	h.mutate()
	if p := h.check(sw); p.Match || p.Post == p.Want || p.Post.IsZero() {
		h.Errorf("Check does not notice a change after Commit: %+v", p)
	}
	h.reopen()
	sw = h.resume(id)
	h.undo(sw, base)
	h.mutate()
	if p := h.check(sw); p.Match || p.Post == p.Want {
		h.Errorf("Check does not notice a change after Undo: %+v", p)
	}
	h.must("Finish", sw.Finish(h.ctx))
}

// resume checks that a new process can continue a switch after each of its steps.
func resume(h *harness) {
	target, base := two(h)
	id, _ := h.prepare(target, base)
	h.reopen()
	h.commit(h.resume(id), base, target)
	h.reopen()
	sw := h.resume(id)
	h.proves(sw, base, target)
	h.commit(sw, base, target)
	h.reopen()
	h.must("Finish", h.resume(id).Finish(h.ctx))
	h.reopen()
	h.gone(id)
	h.lives(target)
	h.verify(target, snap.Full)
	h.restore(base)
}

// resumeUndo checks that a new process can undo a switch, both after Commit and before it.
func resumeUndo(h *harness) {
	target, base := two(h)
	id, sw := h.prepare(target, base)
	h.commit(sw, base, target)
	for range 2 {
		h.reopen()
		h.undo(h.resume(id), base)
	}
	h.reopen()
	sw = h.resume(id)
	h.proves(sw, base, base)
	h.must("Finish", sw.Finish(h.ctx))
	h.reopen()
	h.gone(id)
	h.lives(base)
	h.restore(target)

	base = h.capture()
	id, _ = h.prepare(target, base)
	h.reopen()
	h.undo(h.resume(id), base)
}

// sweepSwitches checks that Sweep drops the switches it is given, and does not change the live state.
func sweepSwitches(h *harness) {
	target, base := two(h)
	id, _ := h.prepare(target, base)
	var gone snap.Gone
	sweep := func() {
		h.Helper()
		h.reopen()
		h.must("Sweep", h.driver().Sweep(h.ctx, gone))
	}
	sweep()
	sw := h.resume(id)
	h.stale(sw, false)
	h.commit(sw, base, target)
	sweep()
	sw = h.resume(id)
	h.undo(sw, base)
	h.must("Finish", sw.Finish(h.ctx))
	id, sw = h.prepare(target, base)
	h.commit(sw, base, target)
	gone.Restores = []snap.RestoreID{id}
	sweep()
	h.gone(id)
	h.lives(target)
	h.restore(base)
}

// cancelledSwitch checks that Prepare, Commit and Undo return an error if their context is cancelled, and succeed when called
// again.
func cancelledSwitch(h *harness) {
	target, base := two(h)
	ctx, cancel := context.WithCancel(h.ctx)
	cancel()
	id := h.restoreID()
	if _, err := h.driver().Prepare(ctx, snap.RestoreRequest{ID: id, Target: target.ID, Base: base.ID}); err == nil {
		h.Errorf("Prepare ignores that its context is cancelled")
	}
	h.gone(id)
	h.lives(base)

	sw := h.prepareAs(id, target, base)
	if sw.Commit(ctx) == nil {
		h.Errorf("Commit ignores that its context is cancelled")
	}
	h.lives(base)
	h.commit(sw, base, target)
	if sw.Undo(ctx) == nil {
		h.Errorf("Undo ignores that its context is cancelled")
	}
	h.undo(sw, base)
	h.must("Finish", sw.Finish(h.ctx))
}
