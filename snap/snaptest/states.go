package snaptest

import (
	"context"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/testkit"
)

// roundTrip captures several states, and restores them in random order.
func roundTrip(h *harness) {
	var all []held
	for range 5 {
		all = append(all, h.capture())
		h.mutate()
	}
	random := testkit.Rand(h.t)
	for i := range h.fewer(8) {
		h.restore(all[random.IntN(len(all))])
		if i%2 == 0 {
			h.mutate()
		}
	}
}

// hash checks that equal states have equal hashes, and different states different ones.
func hash(h *harness) {
	first := h.capture()
	if again := h.capture(); again.Hash != first.Hash {
		h.Errorf("nothing changed, but the hash: %s, then %s", first.Hash, again.Hash)
	}
	h.mutate()
	if other := h.capture(); !other.Hash.IsZero() && other.Hash == first.Hash {
		h.Errorf("the state changed, but not its hash %s", first.Hash)
	}
	h.restore(first)
	if back := h.capture(); back.Hash != first.Hash {
		h.Errorf("restored to hash %s, but captured as %s", first.Hash, back.Hash)
	}
}

// deleteInAnyOrder deletes snapshots in random order, and checks that the remaining ones stay
// complete.
func deleteInAnyOrder(h *harness) {
	var all []held
	for i := range h.fewer(6) {
		all = append(all, h.capture())
		if i%3 != 0 {
			h.mutate()
		}
	}
	random := testkit.Rand(h.t)
	random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	for len(all) > 1 {
		gone := all[0]
		all = all[1:]
		h.delete(gone)
		h.missing(gone.ID, all[0])
		for _, s := range all {
			h.verify(s, snap.Full)
		}
		h.restore(all[random.IntN(len(all))])
	}
}

const unique = 32 << 10 // what each Mutate adds at least, in bytes

// size checks that Size counts shared content for no single snapshot, but for all that share it
// together, and for the last one that is left.
func size(h *harness) {
	_, layered := h.subject.(Layered)
	h.mutate()
	first := h.capture()
	alone := h.size(first)
	if alone < unique && !layered {
		h.Errorf("the only snapshot, of at least %d bytes, has size %d", unique, alone)
	}
	second := h.capture()
	shared := h.size(first)
	if shared > alone {
		h.Errorf("size rises from %d to %d as another snapshot comes to hold the same", alone, shared)
	}
	if both := h.size(first, second); both < alone || both < shared+h.size(second) {
		h.Errorf("two holders of the same have size %d together; one alone had %d, and has %d", both, alone, shared)
	}
	if twice := h.size(first, first); twice != shared {
		h.Errorf("a snapshot named twice has size %d, named once %d", twice, shared)
	}
	if none := h.size(); none != 0 {
		h.Errorf("no snapshots have size %d", none)
	}
	h.mutate()
	third := h.capture()
	h.delete(second)
	h.delete(third)
	if again := h.size(first); again < shared || again < unique && !layered {
		h.Errorf("the last holder has size %d, after %d while shared and %d alone", again, shared, alone)
	}
}

// freed checks that Delete frees about as many bytes as Size said.
func freed(h *harness) {
	s, ok := h.subject.(Stored)
	if !ok {
		h.t.Skip("the subject cannot tell how much is stored")
	}
	for range 4 {
		h.mutate()
	}
	var all []held
	for range 4 {
		all = append(all, h.capture())
		h.mutate()
	}
	for _, set := range [][]held{all[1:2], {all[0], all[2]}, all[3:]} {
		before := s.Stored(h.t) // which may make a snapshot the last holder of something
		said := h.size(set...)
		for _, snapshot := range set {
			h.delete(snapshot)
		}
		got := before - s.Stored(h.t)
		if slack := said/4 + unique/2; got < said-slack || got > said+slack {
			h.Errorf("Size of %d said %d, but Delete freed %d", len(set), said, got)
		}
	}
}

// verify checks that stored snapshots verify, also in a new process.
func verify(h *harness) {
	first := h.capture()
	h.mutate()
	second := h.capture()
	for range 2 {
		for _, s := range []held{first, second} {
			h.verify(s, snap.Quick)
			h.verify(s, snap.Full)
		}
		h.reopen()
	}
}

// damage checks that Verify and Prepare find damage in what is stored, and that nothing is
// restored from it.
func damage(h *harness) {
	h.mutate()
	target := h.capture()
	h.mutate()
	base := h.capture()
	h.subject.Damage(h.t, target.ID)
	for range 2 {
		h.fails("Verify(Full) of a damaged snapshot", h.driver().Verify(h.ctx, target.ID, snap.Full), errs.Corrupt)
		id := h.restoreID()
		_, err := h.driver().Prepare(h.ctx, snap.RestoreRequest{ID: id, Target: target.ID, Base: base.ID})
		h.fails("Prepare of a damaged snapshot", err, errs.Corrupt)
		h.gone(id)
		h.lives(base)
		h.reopen()
	}
}

// unknown checks that every method reports an unknown id as not found.
func unknown(h *harness) {
	present := h.capture()
	h.missing("tt-never", present)
	h.gone("op-never")
	h.reopen()
	h.missing("tt-never", present)
	h.gone("op-never")
	h.lives(present)
}

// sweep checks that Sweep drops the snapshots it is given, and no others.
func sweep(h *harness) {
	var all []held
	for range 3 {
		all = append(all, h.capture())
		h.mutate()
	}
	h.reopen()
	h.must("Sweep", h.driver().Sweep(h.ctx, snap.Gone{}))
	for _, s := range all {
		h.verify(s, snap.Full)
	}
	gone := snap.Gone{Snapshots: []snap.SnapshotID{all[0].ID, all[2].ID, "tt-never"}}
	for range 2 {
		h.must("Sweep", h.driver().Sweep(h.ctx, gone))
		h.missing(all[0].ID, all[1])
		h.missing(all[2].ID, all[1])
		h.verify(all[1], snap.Full)
	}
	h.restore(all[1])
}

// cancelledCapture checks that a cancelled Capture returns an error and leaves no snapshot.
func cancelledCapture(h *harness) {
	present := h.capture()
	h.mutate()
	before := h.present()
	ctx, cancel := context.WithCancel(h.ctx)
	cancel()
	id := h.snapshotID()
	if _, err := h.driver().Capture(ctx, snap.CaptureRequest{ID: id}); err == nil {
		h.Errorf("Capture ignores that its context is cancelled")
	}
	h.missing(id, present)
	if h.print() != before {
		h.Errorf("a cancelled Capture changed the live state")
	}
	h.restore(present)
}
