package offsite

import (
	"errors"
	"testing"
	"time"

	"mulligan/daemon/store"
	"mulligan/ipc"
	"mulligan/remote"
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

// TestLedgerReadBefore: what the ledger said before a push is not taken for what it says after it.
func TestLedgerReadBefore(t *testing.T) {
	ledger := func(ids ...string) (s remote.Status) {
		for _, id := range ids {
			s.Sent = append(s.Sent, remote.Sent{ID: id})
		}
		return s
	}
	tg := newTarget(store.Remote{})
	upTo := func(want ipc.CheckpointID, when string) {
		t.Helper()
		if got := tg.view().UpTo; got != want {
			t.Errorf("%s: up to %s, want %s", when, got, want)
		}
	}
	tg.note(ledger("a"), nil, false)
	upTo("a", "once it is read")
	var b store.Checkpoint
	b.ID = "b"
	tg.noteSent(b, ledger("a", "b"))
	tg.note(ledger("a"), nil, false)
	upTo("b", "read by two, of whom one has sent something since")
	tg.note(ledger("a"), nil, true)
	upTo("a", "read when nothing can be sent")
}
