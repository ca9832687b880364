package offsite

import (
	"errors"
	"testing"
	"time"

	"mulligan/daemon/store"
)

// TestLooks: whether there is something to send is looked for after a hint, after a failure, and else only now and then.
func TestLooks(t *testing.T) {
	const pause = time.Minute
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	tg := newTarget(store.Remote{})
	looks := func(want bool, when string) {
		t.Helper()
		if got := tg.looks(now, pause); got != want {
			t.Errorf("%s: it looks: %t, want %t", when, got, want)
		}
	}
	looks(true, "at the start")
	looks(false, "again")
	tg.hint()
	looks(true, "after a hint")
	looks(false, "after that")
	now = now.Add(pause)
	looks(true, "after the pause")
	tg.finish(errors.New("the server is away"), now, time.Second)
	looks(true, "after a failure")
	if tg.writable(now) {
		t.Error("nothing waits after a failure")
	}
	now = now.Add(time.Second)
	if !tg.writable(now) {
		t.Error("the wait after a failure does not end")
	}
	tg.finish(nil, now, time.Second)
	looks(false, "after a success")
}
