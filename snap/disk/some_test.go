package disk

import (
	"testing"

	"mulligan/testkit"
)

// TestGuests has what else can happen to a guest and its disks.
func TestGuests(t *testing.T) {
	t.Parallel()
	testkit.Some(t, 1,
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
		testAnswerOfShutdownLost,
		testKilledInRollback,
		testUnit,
		testRescueOfGuest,
		testSalvage,
		testRollbacksOfARunningGuest,
	)
}

// TestAlone has what happens to domains that are off, and to libvirtd: no other test may run beside it.
func TestAlone(t *testing.T) {
	testkit.Some(t, 1,
		testQuiescedWhenOff,
		testKilledLibvirtd,
		testFlatten,
		testRebasedByOthers,
		testNoAgent,
		testLibvirtOfAnotherHost,
		testResizedWhileOff,
		testDamagedLayers,
		testReplacedNVRAM,
		testDiskFillsMeanwhile,
		testMergeWithoutRoom,
		testMergeOfDeletedLayers,
		testDetachedImageOutOfReach,
		testUnreadable,
	)
}
