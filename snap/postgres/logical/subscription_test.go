package logical

import (
	"strings"
	"sync"
	"testing"

	"mulligan/snap"
	"mulligan/snap/postgres/pgtest"
)

// subscribe makes a subscription whose publisher nobody reaches.
const subscribe = `CREATE SUBSCRIPTION s CONNECTION 'host=/nowhere dbname=x' PUBLICATION p WITH (connect = false, slot_name = 'x')`

// testSubscriptions: the server drops no database that has a subscription, and those that restores and rehearsals make are dropped nevertheless.
func testSubscriptions(t *testing.T) {
	t.Parallel()
	c := startCluster(t, pgtest.Options{})
	s := newSubject(t, c)
	s.cfg.DSN = c.DSN(s.db)
	s.Reopen(t)
	const subscriptions = "SELECT datname, subname, subslotname FROM pg_subscription JOIN pg_database d ON d.oid = subdbid"
	c.Psql(t, s.db, subscribe)
	only := s.db + "|s|x"
	target := s.capture(t)
	s.Mutate(t, 1)
	s.restore(t, target)
	check(t, s.driver.Sweep(t.Context(), snap.Gone{Restores: []snap.RestoreID{s.prepared}}))
	s.leftovers(t)
	if got := c.Psql(t, "postgres", subscriptions); got != only {
		t.Errorf("after a restore there are the subscriptions %q, want %q", got, only)
	}
	c.Psql(t, s.db, "ALTER SUBSCRIPTION s ENABLE") // its worker reaches no publisher
	s.restore(t, target)
	s.leftovers(t)
	check(t, s.driver.Rehearse(t.Context(), "rehearse-0123456789ab", target))
	s.leftovers(t)
	if got := c.Psql(t, "postgres", subscriptions); got != only {
		t.Errorf("after a rehearsal there are the subscriptions %q, want %q", got, only)
	}
}

// TestUndroppable: what the server does not let go keeps neither the end of a restore nor the app's next operations, and is told of.
func TestUndroppable(t *testing.T) {
	t.Parallel()
	c := startCluster(t, pgtest.Options{})
	s := newSubject(t, c)
	target := s.capture(t)
	c.Psql(t, s.db, subscribe)
	s.restore(t, target) // by a role that may not drop the subscription
	check(t, s.driver.Sweep(t.Context(), snap.Gone{Restores: []snap.RestoreID{s.prepared}}))
	left, err := s.driver.DropLeftovers(t.Context())
	check(t, err)
	if name := beside(s.db, s.prepared, "old"); len(left) != 1 || !strings.Contains(left[0], name) || !strings.Contains(left[0], "subscription") {
		t.Errorf("left are %q, want %s because of its subscription", left, name)
	}
	if got := c.Psql(t, "postgres", "SELECT subslotname FROM pg_subscription"); got != "x" {
		t.Errorf("the subscription's slot is %q, want x", got)
	}
	const rehearsal = "rehearse-0123456789ab"
	var once sync.Once
	s.cfg.Failpoint = func(step string) error {
		if step == "clear: databases" {
			once.Do(func() { c.Psql(t, beside(s.db, rehearsal, "new"), subscribe) })
		}
		return nil
	}
	s.Reopen(t)
	check(t, s.driver.Rehearse(t.Context(), rehearsal, target)) // else the daemon would repeat it for ever, and each would leave a database
	if left, err = s.driver.DropLeftovers(t.Context()); err != nil || len(left) != 2 {
		t.Errorf("after the rehearsal, left are %q, %v", left, err)
	}
	s.cfg.Failpoint = nil
	s.cfg.DSN = c.DSN(s.db)
	s.Reopen(t)
	if left, err = s.driver.DropLeftovers(t.Context()); err != nil || len(left) > 0 {
		t.Errorf("for a superuser, left are %q, %v", left, err)
	}
	s.leftovers(t)
}
