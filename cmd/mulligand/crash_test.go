package main

import (
	"fmt"
	"testing"
	"time"

	"mulligan/ipc"
	"mulligan/testkit"
)

// kills is how often a daemon is killed in one kind of operation.
func kills() int {
	if testkit.Long() {
		return 40
	}
	return 4
}

// killDuring runs f, kills the daemon after some time, and starts it again. It reports
// whether f was cut short.
func killDuring(d *daemonProcess, after time.Duration, f func() error) (cut bool) {
	done := make(chan error, 1)
	go func() { done <- f() }()
	time.Sleep(after) // the moment is the point of the test
	d.kill()
	cut = <-done != nil
	d.start()
	return cut
}

// sound checks what must hold after any crash: the app runs, in one state; all
// that is listed is whole.
func (a *testApp) sound(t *testing.T) (word string) {
	t.Helper()
	a.up(t)
	word = a.word(t)
	if got := visit(t.Context(), a.addr); got != word+"\n" {
		t.Fatalf("a visitor sees %q, the workspace says %q", got, word)
	}
	for _, cp := range a.checkpoints() {
		if res := ask[ipc.VerifyResult](a.d, "verify", string(cp.ID), "--app", "shop"); !res.OK {
			t.Fatalf("%s is listed and damaged: %v", cp.ID, res.Problems)
		}
	}
	if s := ask[ipc.Status](a.d, "status"); len(s.Problems) > 0 {
		t.Fatalf("the daemon has problems: %v", s.Problems)
	}
	return word
}

func testKillInCreate(t *testing.T) {
	t.Parallel()
	d := startDaemon(t)
	a := newApp(t, d, 3000)
	began := time.Now()
	a.create()
	takes := time.Since(began)
	m := testkit.NewMoments(t, takes, kills())
	for i := 0; m.Next(); i++ {
		word := fmt.Sprint("create-", i)
		a.set(t, word)
		before, listed := a.files(t), len(a.checkpoints())
		after := m.After()
		m.Hit(killDuring(d, after, func() error {
			_, err := d.client.CreateCheckpoint(t.Context(), "shop", ipc.CreateRequest{Pinned: true})
			return err
		}))
		if got := a.sound(t); got != word {
			t.Fatalf("killed after %v: the app says %q, want %q", after, got, word)
		}
		sameListing(t, "workspace", a.files(t), before)
		if n := len(a.checkpoints()); n != listed && n != listed+1 {
			t.Fatalf("%d checkpoints are listed, there were %d", n, listed)
		}
		t.Logf("killed after %v of %v: %d checkpoints", after, takes, len(a.checkpoints()))
	}
}

func testKillInRollback(t *testing.T) {
	t.Parallel()
	d := startDaemon(t)
	a := newApp(t, d, 3000)
	a.set(t, "good")
	good := a.files(t)
	cp := ask[ipc.Checkpoint](d, "create", "--app", "shop", "--pin")
	a.set(t, "bad")
	began := time.Now()
	if _, err := d.client.Rollback(t.Context(), "shop", cp.ID, ipc.RollbackRequest{}, nil); err != nil {
		t.Fatal(err)
	}
	takes := time.Since(began)
	m := testkit.NewMoments(t, takes, kills())
	forward := 0
	for i := 0; m.Next(); i++ {
		word := fmt.Sprint("bad-", i)
		a.set(t, word)
		before := a.files(t)
		after := m.After()
		m.Hit(killDuring(d, after, func() error {
			_, err := d.client.Rollback(t.Context(), "shop", cp.ID, ipc.RollbackRequest{}, nil)
			return err
		}))
		switch got := a.sound(t); got {
		case "good":
			forward++
			sameListing(t, "as asked", a.files(t), good)
		case word:
			sameListing(t, "as before", a.files(t), before)
		default:
			t.Fatalf("killed after %v: the app says %q, want good or %q", after, got, word)
		}
	}
	t.Logf("%d of %d went forward", forward, kills())
}
