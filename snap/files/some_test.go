package files

import (
	"testing"

	"mulligan/testkit"
)

// TestManyWrites goes back and forward while much is written, and after that.
func TestManyWrites(t *testing.T) {
	testkit.Some(t, 1,
		testRandom,
		testTurnsOfTwoWriters,
		testRealStorm,
		testStorms,
		testDay,
		testWreck,
		testStressed,
	)
}

// TestStrangers works on workspaces with entries of other users, and on those that change on purpose.
func TestStrangers(t *testing.T) {
	testkit.Some(t, 2,
		testSwappedForLinks,
		testOthersThings,
		testOthersGroups,
		testEndlessFiles,
		testRightsStayWithContents,
		testMovedFolderIsNotReadAgain,
	)
}

// TestKilled kills captures and restores.
func TestKilled(t *testing.T) {
	testkit.Some(t, 1,
		testKilledAtSeams,
		testKilledFollowing,
		testKilledScope,
	)
}

// TestLarge has paths, files and differences between states that are large.
func TestLarge(t *testing.T) {
	testkit.Some(t, 1,
		testManyLongPaths,
		testLargeFileReadInPart,
		testSwitchOfMarkers,
	)
}
