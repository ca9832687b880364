package physical

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"mulligan/privsep"
)

// TestMain lets the test binary be a daemon that gets killed.
func TestMain(m *testing.M) {
	privsep.Main()
	if arg := os.Getenv("MULLIGAN_TEST_VICTIM"); arg != "" {
		victim(arg)
		os.Exit(0)
	}
	if arg := os.Getenv("MULLIGAN_TEST_RESCUER"); arg != "" {
		rescuer(arg)
		os.Exit(0)
	}
	// Servers that are killed become our children, and can be buried: where nobody
	// does that, their numbers stay taken, and the next server thinks that they live.
	must(unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
	os.Exit(m.Run())
}
