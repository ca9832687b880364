package snaptest

import (
	"flag"
	"strconv"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"mulligan/snap"
	"mulligan/testkit"
)

// machineRuns is the number of random walks, unless -rapid.checks is given: a step of some drivers
// takes seconds.
const machineRuns = 4

// machineSteps is the approximate number of steps of a walk, unless -rapid.steps is given.
const machineSteps = 30

// machine calls the driver's methods in random order, with crashes in between, and compares the
// results with a model.
func machine(h *harness) {
	runs, steps := machineRuns, machineSteps
	if h.slow() {
		runs, steps = 1, machineSteps/2
	}
	defer limitRuns(h.t, runs, steps)()
	testkit.Rapid(h.t)
	rapid.Check(h.t, func(t *rapid.T) {
		h.tester = t
		defer func() { h.tester = h.t }()
		m := &model{h: h}
		h.must("Sweep", h.driver().Sweep(h.ctx, h.everything())) // of the walk before
		t.Repeat(map[string]func(*rapid.T){
			"":        m.invariant,
			"capture": m.capture,
			"mutate":  m.mutate,
			"reopen":  m.reopen,
			"sweep":   m.sweep,
			"delete":  m.delete,
			"verify":  m.verify,
			"prepare": m.prepare,
			"commit":  m.commit,
			"undo":    m.undo,
			"finish":  m.finish,
		})
	})
}

// given reports whether -rapid.checks or -rapid.steps was given. The result is kept, because a flag that limitRuns sets counts
// as given afterwards.
var given = sync.OnceValue(func() (given bool) {
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "rapid.checks" || f.Name == "rapid.steps" })
	return given
})

// walking is held while rapid's flags differ from their defaults: they are global to the process, and a driver's variants are
// tested in parallel.
var walking sync.Mutex

// limitRuns sets the number of walks and steps until the returned function is called.
func limitRuns(t *testing.T, runs, steps int) (end func()) {
	if given() {
		return func() {}
	}
	walking.Lock()
	var old []func()
	for name, n := range map[string]int{"rapid.checks": runs, "rapid.steps": steps} {
		was := flag.Lookup(name).Value.String()
		old = append(old, func() { _ = flag.Set(name, was) }) // old was a valid value
		if err := flag.Set(name, strconv.Itoa(n)); err != nil {
			walking.Unlock()
			t.Fatal(err)
		}
	}
	return func() {
		for _, f := range old {
			f()
		}
		walking.Unlock()
	}
}

// model is the expected state of the driver.
type model struct {
	h    *harness
	held []held
	sw   *open // nil: none
}

// open is a switch under way.
type open struct {
	snap.Switch
	id           snap.RestoreID
	target, base held
	point        point
}

type point int

const (
	prepared point = iota
	committed
	undone
)

// invariant checks that the driver agrees with the model about the switch.
func (m *model) invariant(*rapid.T) {
	if m.sw == nil {
		return
	}
	want := m.sw.target
	switch m.sw.point {
	case prepared:
		m.h.stale(m.sw, m.h.print() != m.sw.base.print)
		return
	case undone:
		want = m.sw.base
	}
	if p := m.h.check(m.sw); p.Match != (m.h.print() == want.print) {
		m.h.Fatalf("Check says %+v of %s, the fingerprints say otherwise", p, want.ID)
	}
}

// pick draws a snapshot, or skips the step if there is none.
func (m *model) pick(t *rapid.T) held {
	if len(m.held) == 0 {
		t.Skip("no snapshot")
	}
	return rapid.SampledFrom(m.held).Draw(t, "snapshot")
}

func (m *model) at(t *rapid.T, points ...point) {
	for _, p := range points {
		if m.sw != nil && m.sw.point == p {
			return
		}
	}
	t.Skip("no such switch")
}

func (m *model) capture(*rapid.T) { m.held = append(m.held, m.h.capture()) }
func (m *model) mutate(*rapid.T)  { m.h.mutate() }

func (m *model) verify(t *rapid.T) {
	m.h.verify(m.pick(t), rapid.SampledFrom([]snap.Depth{snap.Quick, snap.Full}).Draw(t, "depth"))
}

// delete deletes a snapshot that the switch does not need, as the daemon does.
func (m *model) delete(t *rapid.T) {
	s := m.pick(t)
	if m.sw != nil && (s.ID == m.sw.base.ID || s.ID == m.sw.target.ID) {
		t.Skip("in use")
	}
	m.h.delete(s)
	var rest []held
	for _, other := range m.held {
		if other.ID != s.ID {
			rest = append(rest, other)
		}
	}
	m.held = rest
}

// sweep sweeps unknown ids only, so that nothing is dropped.
func (m *model) sweep(*rapid.T) {
	gone := snap.Gone{Snapshots: []snap.SnapshotID{m.h.snapshotID()}, Restores: []snap.RestoreID{m.h.restoreID()}}
	m.h.must("Sweep", m.h.driver().Sweep(m.h.ctx, gone))
}

func (m *model) prepare(t *rapid.T) {
	if m.sw != nil && m.sw.point != prepared {
		t.Skip("a switch is under way")
	}
	target, base := m.pick(t), m.h.capture()
	m.held = append(m.held, base)
	if m.sw == nil {
		m.sw = &open{id: m.h.restoreID()}
	}
	m.sw.Switch = m.h.prepareAs(m.sw.id, target, base)
	m.sw.target, m.sw.base = target, base
}

func (m *model) reopen(*rapid.T) {
	m.h.reopen()
	if m.sw != nil {
		m.sw.Switch = m.h.resume(m.sw.id)
	}
}

// commit must succeed exactly if the live state is the base.
func (m *model) commit(t *rapid.T) {
	m.at(t, prepared)
	before := m.h.present()
	err := m.sw.Commit(m.h.ctx)
	if (err == nil) != (before == m.sw.base.print) {
		m.h.Fatalf("Commit says %v; the base is the present: %t", err, before == m.sw.base.print)
	}
	if err != nil {
		if m.h.print() != before {
			m.h.Fatalf("Commit refused, and changed the live state")
		}
		return
	}
	m.sw.point = committed
	m.h.lives(m.sw.target)
}

// undo undoes a commit and all later writes. Without a commit it must change nothing.
func (m *model) undo(t *rapid.T) {
	m.at(t, prepared, committed)
	if m.sw.point == committed {
		m.h.undo(m.sw, m.sw.base)
	} else {
		before := m.h.present()
		m.h.must("Undo", m.sw.Undo(m.h.ctx))
		if m.h.print() != before {
			m.h.Fatalf("Undo without a Commit changed the live state")
		}
	}
	m.sw.point = undone
}

func (m *model) finish(t *rapid.T) {
	m.at(t, committed, undone)
	before := m.h.present()
	m.h.must("Finish", m.sw.Finish(m.h.ctx))
	m.h.gone(m.sw.id)
	if m.h.print() != before {
		m.h.Fatalf("Finish changed the live state")
	}
	m.sw = nil
}
