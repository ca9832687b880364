package sqlite

import (
	"testing"

	"mulligan/testkit"
)

// TestLarge works on databases that are large, busy, or ruined.
func TestLarge(t *testing.T) {
	testkit.Some(t, 2,
		testUnderLoad,
		testReadsWhatChanged,
		testSalvageConformance,
		testSwappedForLink,
	)
}
