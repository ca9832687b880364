package snaptest

import (
	"bufio"
	"fmt"
	"os/exec"
	"sync"
	"sync/atomic"
	"testing"

	"mulligan/snap"
	"mulligan/testkit"
)

// Writable is a Subject that a client of its own writes to while the suite captures it.
type Writable interface {
	Subject

	// Writer returns a process that calls Write.
	Writer(t *testing.T) *exec.Cmd

	// Written returns the number of the last transaction in the live state. It fails the test if the state holds only a part of a
	// transaction, or is damaged.
	Written(t *testing.T) int64

	// Wreck changes the live state as an app or its agent may do by mistake.
	Wreck(t *testing.T, seed int64)
}

// Write performs transactions, numbered from 1, until one fails, and returns the error. It prints "begun N" before transaction
// N, and "done N" after it.
func Write(transaction func(n int64) error) error {
	for n := int64(1); ; n++ {
		fmt.Println("begun", n)
		if err := transaction(n); err != nil {
			return err
		}
		fmt.Println("done", n)
	}
}

// RunUnderLoad captures a state during writes, and restores the captures in random order. A capture must hold every transaction
// that was done before the capture began, and none that began after the capture ended.
func RunUnderLoad(t *testing.T, s Writable) {
	t.Helper()
	h := newHarness(t, s)
	captures := 4
	if testkit.Long() {
		captures = 12
	}
	w := startWriter(t, s)
	var all []*loaded
	for range captures {
		// A server that could not clean up during a capture does so in the transactions after it, such as SQLite its log.
		enough := w.done.Load() + 20
		testkit.Eventually(t, "the writer goes on", func() bool { return w.done.Load() > enough })
		c := &loaded{least: w.done.Load()}
		id := h.snapshotID()
		_, err := h.driver().Capture(h.ctx, snap.CaptureRequest{ID: id})
		h.must("Capture", err)
		at := w.begun.Load()
		testkit.Eventually(t, "the writer's word arrives", func() bool { return w.begun.Load() > at })
		c.id, c.most = id, w.begun.Load()
		all = append(all, c)
	}
	w.stop()
	r := testkit.Rand(t)
	order := append(r.Perm(captures), r.IntN(captures), r.IntN(captures))
	for i, n := range order {
		c := all[n]
		h.visit(c, s, i%3 == 0)
		s.Wreck(t, r.Int64())
		h.print()
	}
}

// loaded is a capture that was made under load.
type loaded struct {
	id          snap.SnapshotID
	least, most int64  // bounds of the number of transactions in the capture
	print       string // the fingerprint of the state; "" until it was restored for the first time
}

// visit restores a capture. If again is true, it then restores the former state, and the capture once more.
func (h *harness) visit(c *loaded, s Writable, again bool) {
	h.Helper()
	h.print()
	base := h.capture()
	h.loads(c, base, s)
	if again {
		now := h.capture()
		_, sw := h.prepare(base, now)
		h.commit(sw, now, base)
		h.must("Finish", sw.Finish(h.ctx))
		h.delete(now)
		h.loads(c, base, s)
	}
	h.delete(base)
}

// loads restores a capture and checks its transactions.
func (h *harness) loads(c *loaded, base held, s Writable) {
	h.Helper()
	_, sw := h.prepare(held{Snapshot: snap.Snapshot{ID: c.id}}, base)
	h.must("Commit", sw.Commit(h.ctx))
	if p := h.check(sw); !p.Match {
		h.Fatalf("the restore of %s is not proved: %+v", c.id, p)
	}
	h.must("Finish", sw.Finish(h.ctx))
	n, print := s.Written(h.t), h.print()
	if n < c.least || n > c.most {
		h.Fatalf("%s was captured between the transactions %d and %d, and has %d", c.id, c.least, c.most, n)
	}
	if c.print != "" && c.print != print {
		h.Fatalf("%s is another state than when it was restored before", c.id)
	}
	c.print = print
}

// writer is a process that calls Write.
type writer struct {
	begun, done atomic.Int64
	stop        func() // kills the process and waits for its end
}

func startWriter(t *testing.T, s Writable) *writer {
	t.Helper()
	cmd := s.Writer(t)
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	w := &writer{}
	var end sync.WaitGroup
	end.Go(func() {
		for lines := bufio.NewScanner(out); lines.Scan(); {
			word, n := "", int64(0)
			if _, err := fmt.Sscan(lines.Text(), &word, &n); err != nil {
				return
			}
			if word == "begun" {
				w.begun.Store(n)
			} else {
				w.done.Store(n)
			}
		}
	})
	w.stop = sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		end.Wait()
		_ = cmd.Wait() // it was killed
	})
	t.Cleanup(w.stop)
	return w
}
