package app

import (
	"testing"
	"time"

	"mulligan/daemon/accounts"
	"mulligan/daemon/records"
	"mulligan/daemon/settings"
	"mulligan/daemon/store"
	"mulligan/ipc"
)

// TestGuestFollowsStopTimeout: a guest that ignores being asked to go down is switched off
// after stop_timeout, whatever else of the app takes as long before.
func TestGuestFollowsStopTimeout(t *testing.T) {
	const limit = 7 * time.Second
	s := NewSet(&settings.Options{StopTimeout: limit}, accounts.New(&settings.Options{}), &records.Records{})
	rec := store.App{App: ipc.App{Domain: "shop"}}
	if got := s.DiskConfig(rec).ShutdownTimeout; got != limit {
		t.Errorf("a guest has %s to go down, and stop_timeout is %s", got, limit)
	}
	if left := s.StopLimit(New(rec)) - limit; left*3/4 < limit {
		t.Errorf("after what runs on the host, the guest has only three quarters of %s", left)
	}
}
