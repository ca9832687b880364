package daemon

import (
	"testing"
	"time"

	"mulligan/daemon/app"
	"mulligan/daemon/store"
	"mulligan/ipc"
)

// TestGuestFollowsStopTimeout: a guest that ignores being asked to go down is switched off
// after stop_timeout, whatever else of the app takes as long before.
func TestGuestFollowsStopTimeout(t *testing.T) {
	const limit = 7 * time.Second
	d := &Daemon{opt: &Options{StopTimeout: limit}}
	rec := store.App{App: ipc.App{Domain: "shop"}}
	if got := d.DiskConfig(rec).ShutdownTimeout; got != limit {
		t.Errorf("a guest has %s to go down, and stop_timeout is %s", got, limit)
	}
	if left := d.StopLimit(app.New(rec)) - limit; left*3/4 < limit {
		t.Errorf("after what runs on the host, the guest has only three quarters of %s", left)
	}
}
