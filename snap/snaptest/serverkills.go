package snaptest

import (
	"testing"
	"time"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/testkit"
)

// Served is a Subject of a server that the suite kills.
type Served interface {
	Subject

	// Kill kills the server and waits for its end. The driver may be at work.
	Kill(t *testing.T)

	// Start starts the server again.
	Start(t *testing.T)

	// Alone checks that nothing of a restore is left, on the server or on the disk.
	Alone(t *testing.T)
}

// RunServerKills kills the server at random moments of each operation of the driver. After each kill the
// server is started again, and the same driver goes on: it checks what RunCrashes checks after the kill of
// a daemon. In the default run it takes as many of the operations as the caller says.
func RunServerKills(t *testing.T, operations int, newSubject func(t *testing.T) Served) {
	kills := 2
	if testkit.Long() {
		kills = 20
	}
	for _, i := range testkit.Sample(t, "operations", len(deeds), operations) {
		deed := deeds[i]
		t.Run(deed.do, func(t *testing.T) {
			t.Parallel()
			k := &serverKill{harness: newHarness(t, newSubject(t)), turnsBack: testkit.Rand(t, "direction").IntN(2) == 0}
			k.served = k.subject.(Served)
			m := testkit.NewMoments(t, k.takesAbout(deed), kills)
			for m.Next() {
				k.run(deed, m)
				k.turnsBack = !k.turnsBack
			}
		})
	}
}

// serverKill kills the server of one subject again and again.
type serverKill struct {
	*harness
	served    Served
	turnsBack bool // whether a commit that was cut short is undone, and not done again
}

// takesAbout performs an operation without a kill and returns how long it took.
func (k *serverKill) takesAbout(d deed) time.Duration {
	k.Helper()
	target, base := k.begin(d)
	began := time.Now()
	k.must(d.do, Do(k.ctx, k.driver(), d.do))
	took := time.Since(began)
	k.end(d.do, target, base)
	return took
}

// run kills the server at a moment of an operation.
func (k *serverKill) run(d deed, m *testkit.Moments) {
	k.Helper()
	target, base := k.begin(d)
	live := k.print()
	done := make(chan error, 1)
	go func() { done <- Do(k.ctx, k.driver(), d.do) }()
	var err error
	ended := false
	select {
	case err = <-done:
		ended = true
	case <-time.After(m.After()):
	}
	k.served.Kill(k.t)
	m.Hit(!ended)
	if !ended {
		err = <-done
	}
	if kind := errs.KindOf(err); err != nil && kind != errs.Unavailable && kind != errs.Failed && kind != errs.Busy {
		k.Errorf("the server died, and %s says %s: %v", d.do, kind, err)
	}
	k.served.Start(k.t)
	now := k.print()
	if _, torn := k.subject.(Halfway); torn && len(d.before) > 0 {
		now = live
	}
	if now != live && now != target.print && now != base.print {
		k.Fatalf("%s: the server came back with neither the old nor the new state", d.do)
	}
	k.end(d.do, target, base)
}

// begin captures a target and a base and performs what precedes the operation.
func (k *serverKill) begin(d deed) (target, base held) {
	k.Helper()
	k.mutate()
	target = k.takes(crashTarget)
	k.mutate()
	base = k.takes(crashBase)
	for _, do := range d.before {
		k.must(do, Do(k.ctx, k.driver(), do))
	}
	k.print()
	if d.do == "undo" {
		k.mutate()
	}
	return target, base
}

// takes captures the live state under an id.
func (k *serverKill) takes(id snap.SnapshotID) held {
	k.Helper()
	s, err := k.driver().Capture(k.ctx, snap.CaptureRequest{ID: id})
	k.must("Capture", err)
	return held{s, k.print()}
}

// end does what a daemon does after an operation that failed, and checks the state and that nothing is left.
func (k *serverKill) end(do string, target, base held) {
	k.Helper()
	want := base
	sw, err := k.driver().Resume(k.ctx, crashRestore)
	switch do {
	case "capture", "prepare":
	case "finish":
		want = target
		if err == nil {
			k.must("Finish", sw.Finish(k.ctx))
		}
	default:
		k.must("Resume", err)
		if do == "commit" && !k.turnsBack {
			want = target
			k.must("Commit", sw.Commit(k.ctx))
		} else {
			k.must("Undo", sw.Undo(k.ctx))
		}
		if p := k.check(sw); !p.Match {
			k.Errorf("the proof does not match: %+v", p)
		}
		k.must("Finish", sw.Finish(k.ctx))
	}
	k.must("Sweep", k.driver().Sweep(k.ctx, snap.Gone{Snapshots: []snap.SnapshotID{crashCut}, Restores: []snap.RestoreID{crashRestore}}))
	k.fails("Verify of what was swept", k.driver().Verify(k.ctx, crashCut, snap.Quick), errs.NotFound)
	k.gone(crashRestore)
	if k.print() != want.print {
		k.Fatalf("after %s, the live state is not what it was taken to", do)
	}
	for _, s := range []held{target, base} {
		k.must("Verify", k.driver().Verify(k.ctx, s.ID, snap.Full))
		k.delete(s)
	}
	k.served.Alone(k.t)
}
