package testkit

import (
	"math/rand/v2"
	"testing"
	"time"
)

// Moments draws random moments for kills of an operation, until enough kills came while the operation ran:
//
//	m := testkit.NewMoments(t, 300*time.Millisecond, 5)
//	for m.Next() {
//		… kill it after m.After() …
//		m.Hit(cut)
//	}
type Moments struct {
	t           testing.TB
	r           *rand.Rand
	within      time.Duration
	want        int
	hits, tries int
}

// NewMoments draws moments for want kills of an operation that takes about within. Kills that come too late show how long the
// operation takes on this machine.
func NewMoments(t testing.TB, within time.Duration, want int) *Moments {
	t.Helper()
	return &Moments{t: t, r: Rand(t, "moments"), within: max(within, time.Microsecond), want: want}
}

// Next reports whether another kill is wanted. The test fails if far too many kills came too late.
func (m *Moments) Next() bool {
	m.t.Helper()
	if m.hits == m.want {
		Tally(m.t, "kills", m.hits)
		return false
	}
	if m.tries == 10*m.want+20 {
		m.t.Fatalf("%d of %d kills came in time, want %d", m.hits, m.tries, m.want)
	}
	m.tries++
	return true
}

// After returns the time until the next kill.
func (m *Moments) After() time.Duration { return 1 + time.Duration(m.r.Int64N(int64(m.within))) }

// Hit records whether the kill came while the operation ran.
func (m *Moments) Hit(hit bool) {
	if hit {
		m.hits++
		m.within += m.within / 4
		return
	}
	m.within = max(m.within/2, time.Microsecond)
}
