package physical

import (
	"testing"

	"mulligan/testkit"
)

// TestPitfalls meets what is easily overlooked in a server's log and files.
func TestPitfalls(t *testing.T) {
	t.Parallel()
	testkit.Some(t, 1,
		testAcrossTimelines,
		testTimelinesNeverCollide,
		testNoSpaceInTheMiddle,
		testServerOfDeadDaemon,
		testRecordThatSeemsLong,
		testMessageOfSeveralLines,
		testConfigOutside,
		testFailingArchive,
		testFullDisk,
		testPreparedTransactionsComeBack,
		testUnloggedTablesAreAnnounced,
		testHousekeepingIsNoChange,
		testEndOfFile,
		testLimitedSessions,
	)
}

// TestRescues takes back clusters whose files are lost or damaged.
func TestRescues(t *testing.T) {
	t.Parallel()
	testkit.Some(t, 1,
		testRuinedClustersAreRestored,
		testKilledRescuing,
		testDownServerIsStarted,
		testLogOutlivesTheFolder,
		testUndoAfterTheRestoredFolderVanished,
		testRawBaseGrowsStale,
		testServerRunsAfterGivenUpSalvage,
		testServerRunsAfterKilledSalvage,
		testFailedStartAfterLateWrite,
	)
}

// TestBusyServers captures and restores a cluster while clients are at work.
func TestBusyServers(t *testing.T) {
	t.Parallel()
	testkit.Some(t, 1,
		testMarkersUnderLoad,
		testFiftyClients,
		testKilledAtRandom,
		testClientsReconnect,
	)
}

// TestServing stops, starts and watches servers at difficult moments.
func TestServing(t *testing.T) {
	t.Parallel()
	testkit.Some(t, 1,
		testLeftSocketLock,
		testStartWhileTheOldServerEnds,
		testStopBesideAnotherStop,
		testStopOfLateStart,
		testEndlessOutput,
		testLogins,
		testThreadsKeepTheirIDs,
	)
}

// TestKeeping keeps and drops bases and logs.
func TestKeeping(t *testing.T) {
	t.Parallel()
	testkit.Some(t, 1,
		testRetention,
		testEnableDisable,
		testCaptureWhileBaseIsTaken,
		testForeignArchive,
		testLostSlot,
		testDamagedMarker,
		testGivenUpCopy,
		testReceiptLikeDryRun,
	)
}

// TestCarrying sends markers to other hosts.
func TestCarrying(t *testing.T) {
	t.Parallel()
	testkit.Some(t, 1,
		testCarried,
		testCarriedDamaged,
	)
}
