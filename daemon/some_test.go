package daemon_test

import (
	"testing"

	"mulligan/testkit"
)

// TestGuests has apps that are guests of a real libvirt: they are taken back, forked and rescued.
func TestGuests(t *testing.T) {
	t.Parallel()
	testkit.Some(t, 1,
		testDomainUnit,
		testDomainKilled,
		testDomainMemory,
		testDomainRefusals,
		testLibvirtdRestarted,
		testLibvirtdAway,
		testPurgedDomain,
		testStartedWithoutLibvirtd,
		testBrokenGuest,
		testForkOfDomain,
		testForkOfDomainOfUnit,
		testForkOfDomainOnHost,
		testForkOfDomainWithoutLibvirtd,
		testDomain,
	)
}

// TestProjects has apps whose servers are in the containers of compose projects.
func TestProjects(t *testing.T) {
	t.Parallel()
	testkit.Some(t, 1,
		testContainersRemade,
		testForkedProject,
		testContainersCluster,
		testForkOfHostileProject,
		testContainers,
	)
}

// TestRehearsals rehearses restores beside the app.
func TestRehearsals(t *testing.T) {
	t.Parallel()
	testkit.Some(t, 1,
		testRehearsed,
		testRehearsalGivesWay,
		testRehearsalGivesWayBetween,
		testRescueBesideFrozenRehearsal,
		testTooLargeToRehearse,
		testRehearsedBesideOneThatIsDown,
	)
}

// TestKills kills the daemon, or lets a step or a system call fail. TestKillAtEveryStep is in every run.
func TestKills(t *testing.T) {
	t.Parallel()
	testkit.Some(t, 2,
		testForkKilledAtEveryStep,
		testKillAtEveryStepWithCluster,
		testContainersKilled,
		testKillAtAnyMoment,
		testFaultOfEverySystemCall,
		testKillInRevert,
		testServerDiesInPrepare,
		testClusterStoppedForNothing,
	)
}

// TestDamage damages what is stored, and the records.
func TestDamage(t *testing.T) {
	t.Parallel()
	testkit.Some(t, 1,
		testFlippedByteOfCluster,
		testFlippedByte,
		testDamagedRecords,
		testRuinCutShort,
		testLostRecords,
	)
}

// TestForksAtWork makes forks, works in them, keeps and drops them.
func TestForksAtWork(t *testing.T) {
	t.Parallel()
	testkit.Some(t, 1,
		testForksOfUnitsWithServers,
		testBisectForks,
		testForksOfUnits,
		testKeepPart,
		testReceiptsOfKeep,
		testWrittenWhileKept,
		testInsideWhileKept,
		testForkSettings,
		testForkSetWhileMade,
		testPartsOfFork,
		testForkThatFailsInUse,
		testForksPartly,
		testForkFolders,
		testForksOfOthers,
		testDropInSilentFolder,
		testForksMounted,
		testExpiry,
	)
}

// TestManyCallers has many callers at once.
func TestManyCallers(t *testing.T) {
	testkit.Some(t, 1,
		testLoad,
		testRaces,
		testRefusedClientsHoldNothing,
	)
}

// TestReceipts compares what an operation says, before it and after it, with what it does.
func TestReceipts(t *testing.T) {
	t.Parallel()
	testkit.Some(t, 2,
		testDryRun,
		testReceiptOfCommit,
		testReceiptOfCalledOff,
		testForeseen,
		testDowntime,
		testRefusalsComeFirst,
	)
}

// TestTroubles has parts that do not do what they are asked to.
func TestTroubles(t *testing.T) {
	t.Parallel()
	testkit.Some(t, 2,
		testFilesHeldUp,
		testUnitThatWontStop,
		testCommandThatIsKilled,
		testCommandsEndTogether,
		testChangeOfClientThatLeaves,
		testChangeThatFails,
		testClockJumps,
		testRescueOfUnit,
		testStoppedOnPurpose,
		testUndoOfTurnThatBeginsWithRollback,
		testContainersOfUsers,
		testForkOfUsersProject,
		testLeftoverOnTheServer,
	)
}

// TestRemotesAtWork pushes, prunes, fetches and clones: the daemon is killed in the middle, the server is away, or two of them meet.
func TestRemotesAtWork(t *testing.T) {
	testkit.Some(t, 4,
		testRemotePruned,
		testFetch,
		testRemotePruneKilled,
		testPushKilled,
		testCloneKilled,
		testClonePruned,
		testFetchWhileCloning,
		testRemoteVerified,
		testRemoteAway,
		testCloneSettledLater,
	)
}

// TestServersInTrouble has database servers that are down, frozen, or come late.
func TestServersInTrouble(t *testing.T) {
	t.Parallel()
	testkit.Some(t, 3,
		testServerUpAfterTheDaemon,
		testServerAway,
		testTurnWithServerAway,
		testServerFrozen,
		testRollbackDuringDryRun,
		testLayerThatCannotBeSwitched,
	)
}
