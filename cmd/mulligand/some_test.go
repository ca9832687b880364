package main

import (
	"testing"

	"mulligan/testkit"
)

// TestGuests has apps that are guests of a real libvirt.
func TestGuests(t *testing.T) {
	t.Parallel()
	testkit.Some(t, 1,
		testForkedGuests,
		testForkedGuestBoots,
		testRescueWithoutLibvirtd,
		testWreck,
	)
}

// TestClusters takes back PostgreSQL servers by their files.
func TestClusters(t *testing.T) {
	t.Parallel()
	testkit.Some(t, 1,
		testPostgresOwned,
		testPostgresPhysical,
		testRescueAfterRestart,
		testServerStoppedOnPurpose,
	)
}

// TestAgentsAtWork has the real programs of agents at work. TestClaudeCode is in every run.
func TestAgentsAtWork(t *testing.T) {
	t.Parallel()
	testkit.Some(t, 1,
		testOpenCode,
		testGemini,
		testClaudeCodeMayWrite,
		testCodexMayWrite,
		testClaudeCodeForks,
		testCodexForks,
		testCodexElicitation,
		testInspector,
		testCodex,
		testRevertInAConversation,
	)
}

// TestForksOfOthers forks apps that know nothing of it.
func TestForksOfOthers(t *testing.T) {
	t.Parallel()
	testkit.Some(t, 1,
		testForksApart,
		testForkNetwork,
		testForksOnHost,
		testForksOnHostCollide,
	)
}

// TestKills kills the daemon at any moment.
func TestKills(t *testing.T) {
	t.Parallel()
	testkit.Some(t, 1,
		testKillInRollback,
		testKillInCreate,
		testKillInRevert,
	)
}

// TestHostsLost brings an app back from a bucket after its host was lost.
func TestHostsLost(t *testing.T) {
	testkit.Some(t, 1,
		testHostLost,
		testHostLostCluster,
	)
}

// TestPages looks at the page in a browser.
func TestPages(t *testing.T) {
	t.Parallel()
	testkit.Some(t, 2,
		testPage,
		testPageForks,
		testPageByKeyboard,
		testPageOpensOn,
		testPageTurns,
		testPageNames,
		testPageAfterBack,
		testPageFromTheTop,
		testPageStates,
		testPageLost,
		testPageAfterRestart,
		testPageOfThousands,
		testPageLateAnswers,
		testPageClosedDialogs,
		testPageFailures,
		testPageFocus,
	)
}

// TestForking forks apps of all kinds, and finds the turn that broke one.
func TestForking(t *testing.T) {
	t.Parallel()
	testkit.Some(t, 1,
		testForksOfEverything,
		testForkedServers,
		testServiceForks,
		testServiceForkNetwork,
		testForks,
		testForksByMCP,
		testCompare,
		testBisect,
		testBisectByHealth,
	)
}

// TestServers takes back databases of servers by their contents.
func TestServers(t *testing.T) {
	t.Parallel()
	testkit.Some(t, 1,
		testPostgres,
		testMariaDB,
		testRedis,
	)
}

// TestTroubles has full disks, stopped workers, locked databases and units that do not start.
func TestTroubles(t *testing.T) {
	t.Parallel()
	testkit.Some(t, 2,
		testStoreDiskFull,
		testWorkspaceDiskFull,
		testDatabaseLocked,
		testStoppedWorkers,
		testTwoRollbacksAtOnce,
		testRebuild,
		testUnitThatWontStart,
	)
}
