// Package snaptest is the conformance suite that every driver of a layer passes.
//
// # What the author of a driver provides
//
// A [Subject]: a driver over some live state that the test owns, and four
// things that the suite does behind the driver's back. The test of a driver is
// then:
//
//	func TestConformance(t *testing.T) {
//		snaptest.Run(t, func(t *testing.T) snaptest.Subject { return newSubject(t) })
//	}
//
// newSubject is called once for each subtest and gives a fresh live state, with
// something in it, and no snapshots. It registers its own clean-up with
// t.Cleanup. A server that takes long to start may be shared between subjects,
// as long as each has a database (a disk, a folder) of its own.
//
// What the suite takes for granted:
//
//   - [Subject.Mutate] and [Subject.Fingerprint] go to the live state through a
//     real client of the engine (psql, redis-cli, qemu-io, the file system), never
//     through the driver. They work at any time: if they need the engine running,
//     they see to it. When Mutate returns, its change is committed and its client
//     has disconnected, so to the driver the app is stopped.
//   - Each Mutate leaves a state that was never there before: its fingerprint
//     differs from all earlier ones. The suite never gives the same seed twice to
//     one subject; write the seed somewhere into the state and this holds.
//     Besides, let the seed choose among the kinds of change that the layer knows:
//     small and large, growing and shrinking, schema and data, added and removed.
//   - Each Mutate adds at least 32 KiB that cannot be compressed, whatever else it
//     takes away, so that sizes can be told from zero.
//   - [Subject.Fingerprint] reads all that the driver promises to bring back, in a
//     form that does not depend on where or when it is stored: sorted rows and the
//     schema, or names, modes and contents.
//   - [Subject.Reopen] stands for a crash: nothing of the old driver's memory may
//     reach the new one. The old driver is not shut down in an orderly way, except
//     for what the operating system would release (file locks, connections).
//   - [Subject.Damage] changes at least one byte that Verify(Full) of that snapshot
//     has to read, in place, keeping the length. A driver that stores objects
//     shared by several snapshots may damage all of those snapshots with it.
//
// [Stored], [Slow] and [Layered] are optional. A [Reusable] goes through RunReusing.
//
// The subject of a driver that is a [snap.Salvager] is a [Breakable] and passes
// [RunSalvage] too, in a test of its own.
package snaptest

import (
	"slices"
	"testing"

	"mulligan/snap"
	"mulligan/testkit"
)

// Subject is one driver under test, with access to the live state behind the driver's back.
type Subject interface {
	// Driver is the driver under test; after Reopen, the new one.
	Driver() snap.Driver

	// Reopen drops the driver as a crash would, and opens a new one over the
	// same live state and the same stored state.
	Reopen(t *testing.T)

	// Mutate changes the live state, in a way that depends on seed only.
	Mutate(t *testing.T, seed int64)

	// Fingerprint reads the live state and returns something that is equal for
	// equal states and differs for different ones.
	Fingerprint(t *testing.T) string

	// Damage flips a byte in what is stored for the snapshot.
	Damage(t *testing.T, id snap.SnapshotID)
}

// Stored is a Subject that can measure the store. Without it, the suite only compares results of
// Size with each other.
type Stored interface {
	// Stored is the number of bytes on disk that all snapshots together take,
	// after whatever Delete left for the background is done.
	Stored(t *testing.T) int64
}

// Slow is a Subject whose driver takes seconds for a step. The suite runs fewer steps with it.
type Slow interface {
	Slow() bool
}

// Reusable is a Subject whose live state takes long to make: one goes through all cases of RunReusing,
// until one of them fails or damages what is stored. Before each case all snapshots and switches are swept.
type Reusable interface {
	Subject

	// Again removes what earlier cases left in the live state, as far as it would slow down later
	// ones.
	Again(t *testing.T)
}

// Layered is a Subject whose live state depends on the stored snapshots, so that deleting the
// newest one frees nothing.
type Layered interface {
	Layered()
}

// Run runs all cases of the suite.
func Run(t *testing.T, newSubject func(t *testing.T) Subject) { run(t, cases, newSubject) }

// RunSlow is Run for a driver whose steps take long, and for a further way to use a driver: the round trip, the random sequence of all
// operations, and an eighth of the other cases. The next run takes another eighth, and a long run takes all cases.
func RunSlow(t *testing.T, newSubject func(t *testing.T) Subject) { run(t, slowCases(t), newSubject) }

func run(t *testing.T, cases []testCase, newSubject func(t *testing.T) Subject) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) { c.run(newHarness(t, newSubject(t))) })
	}
}

// RunReusing is RunSlow for a Reusable.
func RunReusing(t *testing.T, newSubject func(t *testing.T) Reusable) {
	var h *harness
	for _, c := range slowCases(t) {
		if h == nil {
			h = newHarness(t, newSubject(t))
		}
		whole := t.Run(c.name, func(t *testing.T) {
			h.again(t)
			c.run(h)
		})
		if !whole || c.spoils {
			h = nil
		}
	}
}

// RunVariants is Run for a driver whose layer comes in variants, such as the modes of a journal.
// Each case of the suite takes one of the variants, and the next run the next one; a long run
// takes all of them.
func RunVariants(t *testing.T, variants []string, newSubject func(t *testing.T, variant string) Subject) {
	turn, turns := testkit.Part(t, len(variants))
	if testkit.Long() {
		turn, turns = 0, 1
	}
	for i, c := range cases {
		for j, variant := range variants {
			if (i+turn)%turns == j%turns {
				t.Run(c.name+"/"+variant, func(t *testing.T) { c.run(newHarness(t, newSubject(t, variant))) })
			}
		}
	}
}

// Variants returns those variants of a driver that this run takes: one, and the next run the next one; a long run takes all.
func Variants(t *testing.T, what string, all ...string) []string {
	t.Helper()
	if testkit.Long() {
		return all
	}
	i := testkit.Sample(t, what, len(all), 1)[0]
	return all[i : i+1]
}

// slowCases returns the cases that this run takes of a driver whose steps take long.
func slowCases(t *testing.T) []testCase {
	t.Helper()
	always := func(c testCase) bool { return c.name == "RoundTrip" || c.name == "Machine" }
	others := len(cases) - 2
	turns := testkit.Sample(t, "other cases", others, (others+7)/8)
	var taken []testCase
	n := 0
	for _, c := range cases {
		if always(c) || slices.Contains(turns, n) {
			taken = append(taken, c)
		}
		if !always(c) {
			n++
		}
	}
	if n != others || len(taken) != 2+len(turns) {
		t.Fatalf("%d cases are taken, and %d of them by turns, of %d", len(taken), len(turns), n)
	}
	return taken
}

// testCase is a case of the suite. One that spoils leaves damage behind.
type testCase struct {
	name   string
	run    func(*harness)
	spoils bool
}

// cases are the suite.
var cases = []testCase{
	{"RoundTrip", roundTrip, false},
	{"Hash", hash, false},
	{"DeleteInAnyOrder", deleteInAnyOrder, false},
	{"Size", size, false},
	{"Freed", freed, false},
	{"Verify", verify, false},
	{"Damage", damage, true},
	{"Unknown", unknown, false},
	{"Sweep", sweep, false},
	{"CancelledCapture", cancelledCapture, false},
	{"Rehearse", rehearse, false},
	{"Transport", transport, false},
	{"Prepare", prepare, false},
	{"PrepareAgain", prepareAgain, false},
	{"SameState", sameState, false},
	{"Changed", changed, false},
	{"CommitTwice", commitTwice, false},
	{"UndoPrepared", undoPrepared, false},
	{"UndoRefused", undoRefused, false},
	{"UndoCommitted", undoCommitted, false},
	{"UndoAfterWrites", undoAfterWrites, false},
	{"Resume", resume, false},
	{"ResumeUndo", resumeUndo, false},
	{"SweepSwitches", sweepSwitches, false},
	{"CancelledSwitch", cancelledSwitch, false},
	{"Machine", machine, false},
}
