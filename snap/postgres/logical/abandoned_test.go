package logical

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"mulligan/errs"
	"mulligan/snap/postgres/pgtest"
	"mulligan/testkit"
)

// The server ends what a daemon that stands still has begun: the app can change its tables, and the capture fails.
func TestAbandoned(t *testing.T) {
	t.Parallel()
	c := startCluster(t, pgtest.Options{})
	s := newSubject(t, c)
	stands, goOn, done := make(chan bool), make(chan bool), make(chan error, 1)
	s.cfg.Failpoint = func(step string) error {
		if step == "read: rows" {
			close(stands)
			<-goOn
		}
		return nil
	}
	s.Reopen(t)
	s.driver.abandoned = 10 * time.Second // a slow machine comes to the rows in less
	go func() { done <- tryCapture(t, s.driver) }()
	select {
	case <-stands:
	case err := <-done:
		t.Fatalf("it ended before that: %v", err)
	}
	s.as(t, "SET lock_timeout = '150s'; ALTER TABLE api.docs ADD added int")
	close(goOn)
	if err := <-done; errs.KindOf(err) != errs.Unavailable {
		t.Errorf("the capture ends with %s: %v", errs.KindOf(err), err)
	}
}

// A transaction is not abandoned while the daemon waits for others that read in its snapshot.
func testNotAbandoned(t *testing.T) {
	t.Parallel()
	c := startCluster(t, pgtest.Options{})
	s := newSubject(t, c)
	dir := testkit.OpenDir(t)
	gate := filepath.Join(dir, "gate")
	check(t, os.WriteFile(gate, nil, 0o600))
	for _, name := range []string{"pg_dump", "pg_restore"} {
		wrap(t, dir, c.Bin, name, "while [ -e "+gate+" ]; do sleep 0.05; done")
	}
	s.cfg.BinDirs = []string{dir}
	s.Reopen(t)
	s.driver.abandoned = 8 * time.Second // a slow machine pings the server in less
	done := make(chan error, 1)
	go func() { done <- tryCapture(t, s.driver) }()
	testkit.Eventually(t, "pg_dump takes long", func() bool {
		select {
		case err := <-done:
			t.Fatalf("the capture ended: %v", err)
		default:
		}
		return c.Psql(t, "postgres", "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'mulligan' AND now() - xact_start > '24s'") != "0"
	})
	check(t, os.Remove(gate))
	check(t, <-done)
}
