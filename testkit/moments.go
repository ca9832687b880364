package testkit

import (
	"math/rand/v2"
	"testing"
	"time"
)

// Moments draws moments at which to kill what does something, until enough kills came
// while it was being done:
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

// NewMoments draws moments for want kills of something that takes about within: how long
// it really takes on this machine is learnt from the kills that came too late.
func NewMoments(t testing.TB, within time.Duration, want int) *Moments {
	t.Helper()
	return &Moments{t: t, r: Rand(t, "moments"), within: max(within, time.Microsecond), want: want}
}

// Next reports whether one more kill is wanted. The test fails if far too many came
// too late.
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

// After draws the next moment.
func (m *Moments) After() time.Duration { return 1 + time.Duration(m.r.Int64N(int64(m.within))) }

// Hit says whether the kill came while the thing was being done.
func (m *Moments) Hit(hit bool) {
	if hit {
		m.hits++
		m.within += m.within / 4
		return
	}
	m.within = max(m.within/2, time.Microsecond)
}
