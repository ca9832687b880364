package logical

import (
	"testing"

	"mulligan/testkit"
)

// TestBusyServers captures and restores a database while clients are at work.
func TestBusyServers(t *testing.T) {
	t.Parallel()
	testkit.Some(t, 1,
		testUnderLoad,
		testFiftyClients,
		testCheckOfTheUntouched,
		testBusyServer,
	)
}

// TestContents goes back and forward with all that a database may have.
func TestContents(t *testing.T) {
	t.Parallel()
	testkit.Some(t, 1,
		testFamilies,
		testInherited,
		testRoles,
		testEncodings,
		testLargeRow,
		testDisasters,
		testSamples,
		testTroubles,
		testTablesOfExtensions,
		testTablesOfScripts,
		testLimitedSessions,
	)
}

// TestServersKilled kills the server in the middle of a restore.
func TestServersKilled(t *testing.T) {
	t.Parallel()
	testkit.Some(t, 1,
		testServerKilled,
		testServerKilledInDrop,
		testKilledAtEachStep,
	)
}

// TestTroubles meets servers and disks that do not do what they are asked to.
func TestTroubles(t *testing.T) {
	testkit.Some(t, 2,
		testNotAbandoned,
		testHostileServer,
		testDiskFull,
		testSubscriptions,
		testNewerTools,
	)
}
