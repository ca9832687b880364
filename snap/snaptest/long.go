package snaptest

import (
	"testing"

	"mulligan/testkit"
)

// Long reports whether the tests should cover everything, however long that takes
// (MULLIGAN_TEST_LONG=1).
func Long() bool { return testkit.Long() }

// EachStep calls killAt with step numbers, counted from 1, until killAt reports that there is no
// such step, and returns that number. It tries one step of ten, other steps in the next run, and
// all steps in a long run. The test fails if nothing was killed.
func EachStep(t *testing.T, killAt func(step int) bool) int {
	t.Helper()
	const most = 1000
	start, stride := testkit.Part(t, 10)
	step, kills := 1+start, 0
	for !killAt(step) {
		if step == 1 {
			t.Error("nothing was killed")
			return step
		}
		step = (step + 1) / 2 // there are fewer steps than parts: one of the first half
	}
	first := step
	for kills++; killAt(step + stride); step += stride {
		if kills++; step > most {
			t.Fatalf("still killed at step %d", step)
		}
	}
	step += stride
	t.Logf("killed at one of %d steps, from step %d on", stride, first)
	testkit.Tally(t, "kills", kills)
	return step
}
