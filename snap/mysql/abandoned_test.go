package mysql

import (
	"testing"
	"time"

	"mulligan/snap"
	"mulligan/testkit"
)

// The server ends what a daemon that stands still has begun when all tables are locked: the app can change its tables, and the exchange fails.
func TestAbandoned(t *testing.T) {
	s := newSubject(t, sharedServer(t))
	check(t, s.capture("db-target"))
	s.mutate(t, 1)
	check(t, s.capture("db-base"))
	stands, goOn, done := make(chan bool), make(chan bool), make(chan error, 1)
	s.cfg.Failpoint = func(step string) error {
		if step == "exchange" {
			close(stands)
			<-goOn
		}
		return nil
	}
	s.reopen(t)
	sw, err := s.driver.Prepare(t.Context(), snap.RestoreRequest{ID: "op-abandoned", Target: "db-target", Base: "db-base"})
	check(t, err)
	s.driver.abandoned = 8 * time.Second // a slow machine comes to the exchange in less
	go func() { done <- sw.Commit(t.Context()) }()
	select {
	case <-stands:
	case err := <-done:
		t.Fatalf("it ended before that: %v", err)
	}
	s.sql(t, s.db, "SET lock_wait_timeout = 150; ALTER TABLE parent ADD added INT")
	close(goOn)
	if err := <-done; err == nil {
		t.Error("the exchange succeeded")
	}
	s.cfg.Failpoint = nil
	s.sql(t, s.db, "SELECT added FROM parent")
}

// testNotAbandoned: a session is not abandoned while the daemon digests the rows of a large table without a key.
func testNotAbandoned(t *testing.T) {
	s := newSubject(t, sharedServer(t))
	s.driver.abandoned = 6 * time.Second // a slow machine is silent for less
	digested := 0
	s.driver.digesting = func() {
		if digested++; digested > 1 {
			return
		}
		began := time.Now()
		testkit.Eventually(t, "the server would have ended a silent session", func() bool { return time.Since(began) > 3*s.driver.abandoned })
	}
	check(t, s.capture("db-1"))
	if digested == 0 {
		t.Error("no table was digested")
	}
}
