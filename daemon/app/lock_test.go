package app

import (
	"testing"
	"time"

	"mulligan/daemon/store"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/testkit"
)

// TestWays: who comes while another operation has the app is refused, or waits.
func TestWays(t *testing.T) {
	for _, c := range []struct {
		name       string
		has, comes Way
		waits      bool
	}{
		{"a rollback during another one", Alone, Alone, false},
		{"a rollback during a dry run", Look, Alone, true},
		{"a dry run during a rollback", Alone, Look, false},
		{"short work during a rollback", Alone, Brief, true},
		{"a rollback during short work", Brief, Alone, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := New(store.App{App: ipc.App{ID: "app-1", Slug: "shop"}})
			if err := a.hold(t.Context(), "first", ipc.Caller{}, c.has, time.Now()); err != nil {
				t.Fatal(err)
			}
			if !c.waits {
				if err := a.hold(t.Context(), "second", ipc.Caller{}, c.comes, time.Now()); errs.KindOf(err) != errs.Busy {
					t.Fatalf("it is not refused: %v", err)
				}
				return
			}
			has := make(chan error, 1)
			go func() { has <- a.hold(t.Context(), "second", ipc.Caller{}, c.comes, time.Now()) }()
			select {
			case err := <-has:
				t.Fatalf("it does not wait: %v", err)
			case <-time.After(20 * time.Millisecond):
			}
			a.Release()
			select {
			case err := <-has:
				if err != nil {
					t.Fatal(err)
				}
			case <-time.After(testkit.Patience):
				t.Fatal("it waits without end")
			}
		})
	}
}
