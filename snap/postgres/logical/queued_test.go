package logical

import (
	"testing"
	"time"

	"mulligan/snap/postgres/pgtest"
	"mulligan/testkit"
)

// TestQueuedStatement: a statement of the app that wants a table for itself comes between the two sessions of a capture, and waits for the first
// one, and the second one behind it. The capture lets go, so that the statement comes through, and is made after it.
func TestQueuedStatement(t *testing.T) {
	t.Parallel()
	c := startCluster(t, pgtest.Options{})
	s := newSubject(t, c)
	s.Mutate(t, 1)
	done, tries := make(chan string), 0
	s.cfg.LockTimeout = 5 * time.Second
	s.cfg.Failpoint = func(step string) error {
		if step != "read: rows" {
			return nil
		}
		if tries++; tries > 1 {
			return nil
		}
		go func() { done <- c.Psql(t, s.db, "TRUNCATE api.docs CASCADE") }()
		testkit.Eventually(t, "the statement waits for the capture", func() bool {
			return c.Psql(t, "postgres", "SELECT count(*) FROM pg_locks WHERE NOT granted AND mode = 'AccessExclusiveLock'") != "0"
		})
		return nil
	}
	s.Reopen(t)
	id := s.capture(t)
	<-done
	if tries < 2 {
		t.Errorf("the rows were read %d times", tries)
	}
	after := s.dump(t, "")
	s.cfg.Failpoint = nil
	s.Reopen(t)
	s.Mutate(t, 2)
	sw := s.prepare(t, id)
	check(t, sw.Commit(t.Context()))
	s.lives(t, "restored", after)
	check(t, sw.Finish(t.Context()))
}
