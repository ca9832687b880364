package testkit

import (
	"testing"
	"time"
)

// Patience bounds how long a test waits for an event that must come. It is far longer than a loaded machine needs. Only a
// failing test waits so long.
const Patience = 3 * time.Minute

// Eventually calls f repeatedly until it returns true. The test fails if f does not return true within Patience.
// Between two calls it waits as long as f took, so that an f which starts programs leaves half of the time to what it waits for.
func Eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(Patience); ; {
		began := time.Now()
		if f() {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("in vain, for %v: %s", Patience, what)
		}
		time.Sleep(min(max(time.Since(began), 5*time.Millisecond), 500*time.Millisecond))
	}
}
