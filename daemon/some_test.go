package daemon_test

import (
	"testing"

	"mulligan/testkit"
)

// TestGuests has apps that are guests of a real libvirt: they are taken back, forked and rescued.
func TestGuests(t *testing.T) {
	t.Parallel()
	testkit.Some(t, 4,
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
	)
}

// TestRehearsals rehearses restores beside the app.
func TestRehearsals(t *testing.T) {
	t.Parallel()
	testkit.Some(t, 2,
		testRehearsed,
		testRehearsalGivesWay,
		testRescueBesideFrozenRehearsal,
		testTooLargeToRehearse,
	)
}
