package snaptest

import (
	"testing"

	"mulligan/testkit"
)

// Long says that all is asked for, however long it takes: MULLIGAN_TEST_LONG=1.
func Long() bool { return testkit.Long() }

// EachStep calls killAt with the numbers of steps, counted from 1, until it says that there
// is no such step to be killed at, and gives that number. It takes one of ten, other
// ones in the next run, and all in a long run. The test fails if nothing was killed.
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
