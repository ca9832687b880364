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
	testkit.Some(t, 2,
		testPostgresOwned,
		testPostgresPhysical,
		testRescueAfterRestart,
		testServerStoppedOnPurpose,
	)
}

// TestAgentsAtWork has the real programs of agents do what else they can; TestClaudeCode and TestCodex have what they always do.
func TestAgentsAtWork(t *testing.T) {
	t.Parallel()
	testkit.Some(t, 4,
		testOpenCode,
		testGemini,
		testClaudeCodeMayWrite,
		testCodexMayWrite,
		testClaudeCodeForks,
		testCodexForks,
		testCodexElicitation,
		testInspector,
	)
}

// TestForksOfOthers forks apps that know nothing of it.
func TestForksOfOthers(t *testing.T) {
	t.Parallel()
	testkit.Some(t, 1,
		testForksApart,
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

// TestPages looks at the page in a browser.
func TestPages(t *testing.T) {
	t.Parallel()
	testkit.Some(t, 3,
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
	)
}
