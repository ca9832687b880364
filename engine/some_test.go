package engine_test

import (
	"testing"

	"mulligan/testkit"
)

// TestPausing pauses containers, whose engine or whose users interfere.
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
