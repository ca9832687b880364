package physical

import (
	"sync"
	"sync/atomic"
	"testing"

	"mulligan/snap"
	"mulligan/testkit"
)

// TestFirstCaptureBesideSweep: a capture that has to take a base, and a sweep that comes meanwhile, do not wait for each other.
func TestFirstCaptureBesideSweep(t *testing.T) {
	s := newSubject(t, options{bare: true, settings: map[string]string{"archive_mode": "on"}})
	s.enable(t)
	var once sync.Once
	marked, held := make(chan struct{}), make(chan struct{})
	s.cfg.Failpoint = func(step string) error {
		if step == "capture: mark" {
			once.Do(func() {
				close(marked)
				<-held
			})
		}
		return nil
	}
	s.reopen(t)
	var captured, swept atomic.Pointer[error]
	go func() {
		_, err := s.driver.Capture(t.Context(), snap.CaptureRequest{ID: "first"})
		captured.Store(&err)
	}()
	<-marked
	go func() {
		err := s.driver.Sweep(t.Context(), snap.Gone{})
		swept.Store(&err)
	}()
	testkit.Eventually(t, "the sweep holds the lock of bases", func() bool {
		if s.driver.bases.taking.TryLock() {
			s.driver.bases.taking.Unlock()
			return false
		}
		return true
	})
	close(held)
	testkit.Eventually(t, "the capture and the sweep end", func() bool { return captured.Load() != nil && swept.Load() != nil })
	check(t, *captured.Load())
	check(t, *swept.Load())
}
