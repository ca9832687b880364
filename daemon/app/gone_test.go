package app

import (
	"testing"
	"time"

	"mulligan/daemon/records"
	"mulligan/daemon/settings"
	"mulligan/daemon/store"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/testkit"
)

// TestGoneAppIsNotWaitedFor: the daemon's own work waits for an app that is being
// registered; if that fails, nobody would ever let go of it.
func TestGoneAppIsNotWaitedFor(t *testing.T) {
	a := New(store.App{App: ipc.App{ID: "app-1", Slug: "shop"}})
	s := NewSet(&settings.Options{}, nil, &records.Records{})
	s.Put(a)
	a.activity, a.released = "being registered", make(chan struct{})
	waited := make(chan error, 1)
	go func() { waited <- a.hold(t.Context(), "see what is kept", ipc.Caller{}, Brief, time.Now()) }()
	s.Unregister(a)
	a.Release()
	select {
	case err := <-waited:
		if errs.KindOf(err) != errs.NotFound {
			t.Errorf("%v", err)
		}
	case <-time.After(testkit.Patience):
		t.Fatal("it waits without end")
	}
}
