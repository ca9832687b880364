package disk

import (
	"testing"

	"mulligan/testkit"
)

// TestGuests has what else can happen to a guest and its disks.
func TestGuests(t *testing.T) {
	t.Parallel()
	testkit.Some(t, 4,
		testKilledInMerge,
		testForkGuest,
		testDiskFillsUnderARunningGuest,
		testKilledInCapture,
		testDisksComeAndGo,
		testDeleteWhileTheGuestWrites,
		testBlockPull,
		testAdministered,
		testChangingOwners,
		testPaused,
		testRollbackWithMemory,
		testStartedByOthersAfterMerges,
		testAdoptInterrupted,
		testHungAgent,
	)
}
