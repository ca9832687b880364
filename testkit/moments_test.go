package testkit

import (
	"strings"
	"testing"
	"time"
)

// Moments that are far too late at first come in time soon; what is never hit is a failure.
func TestMoments(t *testing.T) {
	t.Setenv(tallyEnv, "")
	for _, takes := range []time.Duration{time.Microsecond, 80 * time.Millisecond, time.Hour} {
		late := 0
		m := NewMoments(t, 5*time.Second, 6)
		for m.Next() {
			hit := m.After() <= takes
			if !hit {
				late++
			}
			m.Hit(hit)
		}
		if m.hits != 6 || late > 60 {
			t.Errorf("of what takes %v: %d kills, %d were late", takes, m.hits, late)
		}
	}
	f := play(func(t testing.TB) {
		m := NewMoments(t, time.Second, 2)
		for m.Next() {
			m.Hit(false)
		}
	})
	if !strings.Contains(f.failed, "0 of 40 kills") {
		t.Errorf("what is never hit: %+v", f)
	}
}
