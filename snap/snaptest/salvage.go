package snaptest

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/testkit"
)

// Breakable is a Subject whose driver is a [snap.Salvager]. RunSalvage needs it.
type Breakable interface {
	Subject

	// Wrecks returns the ways in which Wreck can break the live state. The driver cannot capture a state that is broken in any of
	// them. For a slow subject, each case uses one way, and the next run uses others.
	Wrecks() []string

	// Wreck breaks an undamaged live state in one of these ways. Different seeds leave different bytes. The app and the engine are
	// stopped when Wreck returns.
	Wreck(t *testing.T, way string, seed int64)

	// Bytes returns the live state, undamaged or broken, as read without the engine: names, kinds, modes, owners and contents of
	// everything that Salvage keeps.
	Bytes(t *testing.T) string
}

// Killable is a Breakable whose driver can be interrupted at each of its steps.
type Killable interface {
	// KillAt makes the driver fail at its nth step from now on, counted from 1, and at each later step, with an error that stands
	// for the end of the process. KillAt(0) ends this.
	KillAt(n int)

	// Killed reports whether the step that KillAt named was reached.
	Killed() bool
}

// RunSalvage tests a driver that is a [snap.Salvager] with live states that the driver cannot read. Of a slow driver it takes the way back
// to an undamaged state and a quarter of the other cases, and the next run another quarter.
func RunSalvage(t *testing.T, newSubject func(t *testing.T) Breakable) {
	first := newSubject(t)
	_, killable := first.(Killable)
	slow, isSlow := first.(Slow)
	ways := first.Wrecks()
	isSlow = isSlow && slow.Slow()
	turn := 0
	if isSlow { // each quarter of the cases goes through all ways
		turn, _ = testkit.Part(t, quarters*len(ways))
		t.Logf("takes %s and part %d of %d of the other cases, from way %d of %d on", always, 1+turn%quarters, quarters, 1+turn/quarters, len(ways))
	}
	taken := 0
	for i, c := range salvageCases {
		if isSlow && c.name != always && i%quarters != turn%quarters {
			continue
		}
		for j, way := range ways {
			if c.kills && !killable || isSlow && (i+j+turn/quarters)%len(ways) != 0 { // one way for each case
				continue
			}
			taken++
			t.Run(way+"/"+c.name, func(t *testing.T) {
				s := newSubject(t)
				c.run(&salvage{harness: newHarness(t, s), subject: s, way: way})
			})
		}
	}
	if taken < 2 {
		t.Errorf("%d salvage cases were taken", taken)
	}
}

// The case that each run takes of a slow subject, and how many runs take the other ones.
const (
	always   = "GoodOver"
	quarters = 4
)

var salvageCases = []struct {
	name  string
	run   func(*salvage)
	kills bool // it needs a Killable
}{
	{"Kept", salvageKept, false},
	{"GoodOver", salvageGoodOver, false},
	{"Redo", salvageRedo, false},
	{"RawOverRaw", salvageRawOverRaw, false},
	{"Changed", salvageChanged, false},
	{"Damage", salvageDamage, false},
	{"Cancelled", salvageCancelled, false},
	{"KillSalvage", salvageKilled, true},
	{"KillSwitch", salvageKilledSwitch, true},
	{"KillRedo", salvageKilledRedo, true},
}

// salvage is a harness that compares live states by their bytes.
type salvage struct {
	*harness
	subject Breakable
	way     string
}

func (s *salvage) bytes() string { return s.subject.Bytes(s.t) }

// good captures an undamaged state.
func (s *salvage) good() held {
	s.Helper()
	s.mutate()
	return s.capture()
}

// wreck damages the live state, checks that it cannot be captured, and returns its bytes.
func (s *salvage) wreck() string {
	s.Helper()
	s.seed++
	s.subject.Wreck(s.t, s.way, s.seed)
	before, id := s.bytes(), s.snapshotID()
	if got, err := s.driver().Capture(s.ctx, snap.CaptureRequest{ID: id, Quiesced: true, Revive: true}); err == nil {
		s.Fatalf("Capture of a state that cannot be read gives %+v", got)
	} else if errors.Is(err, snap.ErrChanged) {
		s.Errorf("Capture says that the state changes, where it cannot be read: %v", err)
	}
	s.fails("Verify of a capture that failed", s.driver().Verify(s.ctx, id, snap.Quick), errs.NotFound)
	s.lies(before, "a Capture that failed")
	return before
}

// lies checks that the bytes of the live state are want.
func (s *salvage) lies(want, after string) {
	s.Helper()
	if got := s.bytes(); got != want {
		s.Fatalf("%s left other bytes:\n%.2000s\nwant:\n%.2000s", after, got, want)
	}
}

// keep salvages the live state, and checks that the salvage does not change it.
func (s *salvage) keep() held {
	s.Helper()
	before, id := s.bytes(), s.snapshotID()
	got, err := s.driver().(snap.Salvager).Salvage(s.ctx, snap.CaptureRequest{ID: id, Quiesced: true})
	s.must("Salvage", err)
	if got.ID != id || got.Driver == "" || got.Created.IsZero() || !got.Quiesced || !got.Raw {
		s.Errorf("Salvage(%s) returned an incomplete snapshot: %+v", id, got)
	}
	s.lies(before, "Salvage")
	return held{got, before}
}

// ready prepares a switch from base, the live state, to target.
func (s *salvage) ready(target, base held) (snap.RestoreID, snap.Switch) {
	s.Helper()
	before, id := s.bytes(), s.restoreID()
	sw, err := s.driver().Prepare(s.ctx, snap.RestoreRequest{ID: id, Target: target.ID, Base: base.ID})
	s.must("Prepare", err)
	s.lies(before, "Prepare")
	stale, err := sw.Stale(s.ctx)
	s.must("Stale", err)
	if stale {
		s.Fatalf("a base that was just taken is stale")
	}
	return id, sw
}

// proved checks that the proof of Check matches.
func (s *salvage) proved(sw snap.Switch) {
	s.Helper()
	if p := s.check(sw); !p.Match || p.Post != p.Want {
		s.Errorf("Check does not find the state restored: %+v", p)
	}
}

// alike checks that two snapshots of the same bytes have the same hash.
func (s *salvage) alike(a, b held) {
	s.Helper()
	if a.Hash != b.Hash && !a.Hash.IsZero() && !b.Hash.IsZero() {
		s.Errorf("the same bytes have hash %s, then %s", a.Hash, b.Hash)
	}
}

// salvageKept checks that salvaged bytes are stored durably, and dropped when they are deleted.
func salvageKept(s *salvage) {
	good := s.good()
	s.wreck()
	raw := s.keep()
	s.alike(raw, s.keep())
	for range 2 {
		s.verify(raw, snap.Quick)
		s.verify(raw, snap.Full)
		s.size(raw)
		s.reopen()
	}
	s.must("Sweep", s.driver().Sweep(s.ctx, snap.Gone{}))
	s.verify(raw, snap.Full)
	s.delete(raw)
	s.fails("Verify of what was deleted", s.driver().Verify(s.ctx, raw.ID, snap.Quick), errs.NotFound)
	s.verify(good, snap.Full)
}

// salvageGoodOver replaces a damaged state by a good one, and checks that Undo brings back exactly
// the damaged bytes, in this process and in the next.
func salvageGoodOver(s *salvage) {
	good := s.good()
	broken := s.wreck()
	raw := s.keep()
	for _, crash := range []bool{false, true} {
		id, sw := s.ready(good, raw)
		next := func() {
			if crash {
				s.reopen()
				sw = s.resume(id)
			}
		}
		if _, total := sw.Changes(1); total < 1 {
			s.Errorf("Changes are none between what is broken and what is whole")
		}
		next()
		for range 2 {
			s.must("Commit", sw.Commit(s.ctx))
			s.proved(sw)
			next()
		}
		s.lives(good)
		next()
		for range 2 {
			s.must("Undo", sw.Undo(s.ctx))
			s.lies(broken, "Undo")
			s.proved(sw)
			next()
		}
		s.must("Finish", sw.Finish(s.ctx))
		s.gone(id)
		s.lies(broken, "Finish")
		again := s.keep()
		s.alike(raw, again)
		raw = again
	}
	_, sw := s.ready(good, raw)
	s.must("Undo of a switch that is only prepared", sw.Undo(s.ctx))
	s.lies(broken, "Undo of a switch that is only prepared")
	s.must("Finish", sw.Finish(s.ctx))
	s.over(good, raw)
	s.restore(s.good())
}

// over replaces the live state, held by raw, by good, and finishes.
func (s *salvage) over(good, raw held) {
	s.Helper()
	_, sw := s.ready(good, raw)
	s.must("Commit", sw.Commit(s.ctx))
	s.must("Finish", sw.Finish(s.ctx))
	s.lives(good)
}

// salvageRedo checks that a salvaged state can be the target of a restore.
func salvageRedo(s *salvage) {
	good := s.good()
	broken := s.wreck()
	raw := s.keep()
	s.over(good, raw)
	base := s.capture()
	s.alike(good, base)
	_, sw := s.ready(raw, base)
	s.must("Commit", sw.Commit(s.ctx))
	s.lies(broken, "Commit to it")
	s.proved(sw)
	s.must("Undo", sw.Undo(s.ctx))
	s.lives(base)
	s.proved(sw)
	s.must("Finish", sw.Finish(s.ctx))

	base = s.capture()
	id, _ := s.ready(raw, base)
	s.reopen()
	sw = s.resume(id)
	s.must("Commit", sw.Commit(s.ctx))
	s.must("Finish", sw.Finish(s.ctx))
	s.lies(broken, "Commit to it")
	again := s.keep()
	s.alike(raw, again)
	s.over(good, again)
}

// salvageRawOverRaw restores one damaged state over another, and undoes that.
func salvageRawOverRaw(s *salvage) {
	good := s.good()
	first := s.wreck()
	one := s.keep()
	s.over(good, one)
	second := s.wreck()
	if first == second {
		s.Fatalf("two seeds break the live state alike")
	}
	two := s.keep()
	if one.Hash == two.Hash && !one.Hash.IsZero() {
		s.Errorf("different bytes have the same hash %s", one.Hash)
	}
	_, sw := s.ready(one, two)
	s.must("Commit", sw.Commit(s.ctx))
	s.lies(first, "Commit")
	s.must("Undo", sw.Undo(s.ctx))
	s.lies(second, "Undo")
	s.must("Finish", sw.Finish(s.ctx))
	s.over(good, s.keep())
}

// salvageChanged checks that a change after the base makes the switch stale, and that Commit
// refuses to replace it.
func salvageChanged(s *salvage) {
	good := s.good()
	s.wreck()
	raw := s.keep()
	s.over(good, raw)
	s.wreck()
	raw = s.keep()
	_, other := s.ready(good, raw)
	s.must("Commit", other.Commit(s.ctx))
	s.must("Finish", other.Finish(s.ctx))
	now := s.wreck()
	id := s.restoreID()
	sw, err := s.driver().Prepare(s.ctx, snap.RestoreRequest{ID: id, Target: good.ID, Base: raw.ID})
	s.must("Prepare", err)
	for range 2 {
		stale, err := sw.Stale(s.ctx)
		s.must("Stale", err)
		if !stale {
			s.Fatalf("other bytes lie there than the base has, and it is not stale")
		}
		err = sw.Commit(s.ctx)
		s.fails("Commit over a later change", err, errs.Conflict)
		if !errors.Is(err, snap.ErrChanged) {
			s.Errorf("Commit over a later change: %v is not ErrChanged", err)
		}
		s.lies(now, "a Commit that refused")
		s.must("Undo", sw.Undo(s.ctx))
		s.lies(now, "Undo of a Commit that refused")
		s.reopen()
		if sw, err = s.driver().Prepare(s.ctx, snap.RestoreRequest{ID: s.restoreID(), Target: good.ID, Base: raw.ID}); err != nil {
			s.Fatalf("Prepare: %v", err)
		}
	}
	s.over(good, s.keep())
}

// salvageDamage checks that Verify and Prepare find damage in the stored bytes.
func salvageDamage(s *salvage) {
	good := s.good()
	s.wreck()
	raw := s.keep()
	s.over(good, raw)
	base := s.capture()
	s.subject.Damage(s.t, raw.ID)
	s.fails("Verify(Full) of damaged bytes", s.driver().Verify(s.ctx, raw.ID, snap.Full), errs.Corrupt)
	id := s.restoreID()
	_, err := s.driver().Prepare(s.ctx, snap.RestoreRequest{ID: id, Target: raw.ID, Base: base.ID})
	s.fails("Prepare of damaged bytes", err, errs.Corrupt)
	s.gone(id)
	s.lives(base)
}

// salvageCancelled checks that a cancelled Salvage returns an error and leaves no snapshot.
func salvageCancelled(s *salvage) {
	s.good()
	broken := s.wreck()
	ctx, cancel := context.WithCancel(s.ctx)
	cancel()
	id := s.snapshotID()
	if _, err := s.driver().(snap.Salvager).Salvage(ctx, snap.CaptureRequest{ID: id, Quiesced: true}); err == nil {
		s.Errorf("Salvage ignores that its context is cancelled")
	}
	s.fails("Verify of a salvage that failed", s.driver().Verify(s.ctx, id, snap.Quick), errs.NotFound)
	s.lies(broken, "a Salvage that failed")
}

// mostSteps exceeds the number of steps of any driver's method.
const mostSteps = 200

// kills calls do once for each step number, until do has run all of its steps. do must begin anew
// each time, and pass the method under test to cut, which stops it at that step.
func (s *salvage) kills(what string, do func(cut func(func() error))) {
	k := s.subject.(Killable) // else no case calls this
	first, stride := 1, 1
	if slow, is := s.subject.(Slow); is && slow.Slow() { // one of twelve steps, other ones in the next run
		var start int
		start, stride = testkit.Part(s.t, 12)
		first = 1 + start
	}
	for n := first; n <= mostSteps; n += stride {
		done := false
		do(func(f func() error) {
			k.KillAt(n)
			err := f()
			done = !k.Killed()
			k.KillAt(0)
			if done {
				s.must(what, err)
			} else if err == nil {
				s.Errorf("%s was killed at step %d, and gives no error", what, n)
			}
			s.reopen()
		})
		switch {
		case done && n == 1:
			s.Fatalf("%s has no step to be killed at", what)
		case done && n == first: // it has fewer steps than are left out: one of the first half
			first = (first + 1) / 2
			n = first - stride
		case done:
			return
		}
	}
	s.Fatalf("%s has more than %d steps", what, mostSteps)
}

// salvageKilled checks that Sweep drops what an interrupted Salvage left.
func salvageKilled(s *salvage) {
	good := s.good()
	broken := s.wreck()
	s.kills("Salvage", func(cut func(func() error)) {
		id := s.snapshotID()
		cut(func() error {
			_, err := s.driver().(snap.Salvager).Salvage(s.ctx, snap.CaptureRequest{ID: id, Quiesced: true})
			return err
		})
		s.lies(broken, "a Salvage that was killed")
		s.must("Sweep", s.driver().Sweep(s.ctx, snap.Gone{Snapshots: []snap.SnapshotID{id}}))
		s.fails("Verify of what was swept", s.driver().Verify(s.ctx, id, snap.Quick), errs.NotFound)
		s.lies(broken, "Sweep")
	})
	s.over(good, s.keep())
}

// salvageKilledSwitch checks that, wherever a switch away from a damaged state is interrupted, the
// next process can commit or undo it.
func salvageKilledSwitch(s *salvage) {
	good := s.good()
	broken := s.wreck()
	back := func(id snap.RestoreID) {
		s.Helper()
		sw := s.resume(id)
		s.must("Undo", sw.Undo(s.ctx))
		s.proved(sw)
		s.lies(broken, "Undo")
		s.must("Finish", sw.Finish(s.ctx))
		s.gone(id)
		s.lies(broken, "Finish")
	}
	s.kills("Prepare", func(cut func(func() error)) {
		raw, id := s.keep(), s.restoreID()
		cut(func() error {
			_, err := s.driver().Prepare(s.ctx, snap.RestoreRequest{ID: id, Target: good.ID, Base: raw.ID})
			return err
		})
		s.lies(broken, "a Prepare that was killed")
		s.must("Sweep", s.driver().Sweep(s.ctx, snap.Gone{Restores: []snap.RestoreID{id}}))
		s.gone(id)
		s.delete(raw)
	})
	for _, on := range []bool{false, true} {
		s.kills("Commit", func(cut func(func() error)) {
			raw := s.keep()
			id, sw := s.ready(good, raw)
			cut(func() error { return sw.Commit(s.ctx) })
			if on {
				sw = s.resume(id)
				s.must("Commit again", sw.Commit(s.ctx))
				s.proved(sw)
				s.lives(good)
			}
			back(id)
			s.delete(raw)
		})
	}
	s.kills("Undo", func(cut func(func() error)) {
		raw := s.keep()
		id, sw := s.ready(good, raw)
		s.must("Commit", sw.Commit(s.ctx))
		cut(func() error { return sw.Undo(s.ctx) })
		back(id)
		s.delete(raw)
	})
	s.over(good, s.keep())
}

// salvageKilledRedo is salvageKilledSwitch for a switch back to the damaged state.
func salvageKilledRedo(s *salvage) {
	good := s.good()
	broken := s.wreck()
	raw := s.keep()
	s.over(good, raw)
	for _, on := range []bool{false, true} {
		s.kills(fmt.Sprintf("Commit to it, going on %t", on), func(cut func(func() error)) {
			base := s.capture()
			id, sw := s.ready(raw, base)
			cut(func() error { return sw.Commit(s.ctx) })
			sw = s.resume(id)
			if on {
				s.must("Commit again", sw.Commit(s.ctx))
				s.proved(sw)
				s.lies(broken, "Commit")
			}
			s.must("Undo", sw.Undo(s.ctx))
			s.proved(sw)
			s.must("Finish", sw.Finish(s.ctx))
			s.lives(base)
			s.delete(base)
		})
	}
}
