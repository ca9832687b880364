package mysql

import (
	"testing"

	"mulligan/testkit"
)

// TestContents goes back and forward with all that a database may have, and beside clients at work.
func TestContents(t *testing.T) {
	testkit.Some(t, 1,
		testTypes,
		testLargeRow,
		testManyClients,
	)
}

// TestTroubles meets what servers refuse, forget, and do by themselves.
func TestTroubles(t *testing.T) {
	testkit.Some(t, 2,
		testNotAbandoned,
		testHostileServer,
		testFileInTheSide,
		testNamedDatabase,
		testQualifiedTriggers,
		testEndedEvents,
		testServerSettings,
	)
}
