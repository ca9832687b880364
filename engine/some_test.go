package engine_test

import (
	"testing"

	"mulligan/testkit"
)

// TestPausing pauses containers, and meets what keeps it from that.
func TestPausing(t *testing.T) {
	testkit.Some(t, 4,
		testThawedUnawares,
		testFrozenUnawares,
		testFreeze,
		testFreezeEnded,
		testFailed,
		testEngineKilled,
		testStays,
		testUnhealthyInTime,
		testEngineWithoutEnd,
	)
}
