package files

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"mulligan/snap"
)

// held is a step at which a test waits.
type held struct {
	step    string
	reached chan struct{}
	release func()
	hits    atomic.Int32
	gate    chan struct{}
}

func hold(step string) *held {
	h := &held{step: step, reached: make(chan struct{}, 100), gate: make(chan struct{})}
	h.release = sync.OnceFunc(func() { close(h.gate) })
	return h
}

func (h *held) at(step string) error {
	if step == h.step {
		h.hits.Add(1)
		h.reached <- struct{}{}
		<-h.gate
	}
	return nil
}

// beginFollowing calls Follow, and waits until the folders are watched.
func beginFollowing(t *testing.T, s *site) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Follow(ctx, func(snap.Batch) {})
	}()
	t.Cleanup(func() { cancel(); <-done })
	for s.follower.Session() == nil || !strings.Contains(s.Following().Detail, "for the first time") {
		time.Sleep(time.Millisecond)
	}
}

// TestFollowAfterWalk: while a capture reads the workspace, the first reading of the follower waits for it: the two together would take
// twice as long as one after the other.
func TestFollowAfterWalk(t *testing.T) {
	h := hold("scanned")
	s := newSite(t, func(c *Config) { c.Failpoint = h.at })
	write(t, s.dir+"/a", "1")
	captured := make(chan error, 1)
	go func() {
		_, err := s.Capture(t.Context(), snap.CaptureRequest{ID: "s1"})
		captured <- err
	}()
	<-h.reached
	beginFollowing(t, s)
	t.Cleanup(h.release)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := s.Flush(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("the follower has read while a capture was reading: %v", err)
	}
	h.release()
	must(t, <-captured)
	_, err := s.Flush(t.Context())
	must(t, err)
	if got := s.Following().State; got != snap.Watching {
		t.Fatalf("after the walk: %s", got)
	}
}

// TestCaptureAfterFirstReading: a capture that comes while the follower reads the workspace for the first time waits for that, and does not walk
// by itself.
func TestCaptureAfterFirstReading(t *testing.T) {
	first, walks := hold("read first"), hold("scanned")
	walks.release()
	s := newSite(t, func(c *Config) { c.Failpoint = walks.at })
	s.follower.Failpoint = first.at
	write(t, s.dir+"/a", "1")
	beginFollowing(t, s)
	t.Cleanup(first.release)
	<-first.reached
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := s.Capture(ctx, snap.CaptureRequest{ID: "s1"}); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("a capture during the first reading: %v", err)
	}
	captured := make(chan error, 1)
	go func() {
		_, err := s.Capture(t.Context(), snap.CaptureRequest{ID: "s2"})
		captured <- err
	}()
	first.release()
	must(t, <-captured)
	must(t, s.Verify(t.Context(), "s2", snap.Full))
	if n := walks.hits.Load(); n != 0 {
		t.Fatalf("the workspace was read %d times by a capture", n)
	}
}
