package testkit

import (
	"testing"
	"time"
)

// Patience is how long a test waits for what must come: far longer than any machine takes,
// however loaded it is. Only a test that fails waits so long.
const Patience = 3 * time.Minute

// Eventually waits until f holds, for what no event tells of. The test fails if it does not in Patience.
func Eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(Patience); !f(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("in vain, for %v: %s", Patience, what)
		}
	}
}
