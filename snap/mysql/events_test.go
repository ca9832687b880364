package mysql

import (
	"fmt"
	"strings"
	"testing"

	"mulligan/snap"
)

// testEndedEvents: a checkpoint comes back, and the proof matches, after the end of events that the server does not create anew then. It says so
// of these, and of no others.
func testEndedEvents(t *testing.T) {
	s := newSubject(t, ownServer(t, "--event-scheduler=OFF")) // the scheduler would drop them when it likes
	check(t, s.capture("db-none"))
	create := "SET timestamp = UNIX_TIMESTAMP('2020-01-01'); SET time_zone = '+05:45'; "
	for _, e := range []string{
		"gone ON SCHEDULE EVERY 1 DAY ENDS '2020-01-02 10:00:00' DO DELETE FROM kinds", "stays ON SCHEDULE EVERY '1:30' HOUR_MINUTE ENDS '2020-01-02' COMMENT 'x' DO DELETE FROM kinds",
		"kept ON SCHEDULE AT '2020-01-02' ON COMPLETION PRESERVE DO DELETE FROM kinds", "off ON SCHEDULE AT '2020-01-02' ON COMPLETION PRESERVE DISABLE DO DELETE FROM kinds",
		"goes_on ON SCHEDULE EVERY 1 DAY STARTS '2020-01-01' ENDS '2037-01-01' DO SELECT ' ENDS ''2020-01-02'' ON COMPLETION NOT PRESERVE'",
	} {
		create += "CREATE EVENT " + e + "; "
	}
	s.sql(t, s.db, create)
	check(t, s.capture("db-target"))
	events := func() string {
		return s.sql(t, "", "SELECT GROUP_CONCAT(event_name, ' ', status, ' ', IFNULL(ends, '') ORDER BY 1) FROM information_schema.events WHERE event_schema = '"+s.db+"'")
	}
	had := events()
	s.restore(t, "db-target")
	if now := events(); now != had {
		t.Errorf("where nothing was to be changed, the events were %s\nare %s", had, now)
	}
	for _, wreck := range []string{"DROP EVENT gone; DROP EVENT kept; DROP EVENT off; DROP EVENT goes_on; CREATE EVENT gone ON SCHEDULE EVERY 1 WEEK DO SELECT 1", "DROP DATABASE " + s.db} {
		want := strings.NewReplacer("kept ENABLED", "kept DISABLED", "gone ENABLED 2020-01-02 10:00:00,", "").Replace(had)
		if strings.HasPrefix(wreck, "DROP DATABASE") {
			want = strings.TrimSpace(strings.ReplaceAll(want, ",stays ENABLED 2020-01-02 00:00:00", ""))
		}
		s.sql(t, s.db, wreck)
		check(t, s.capture("db-base"))
		base := s.dump(t, s.db)
		sw, err := s.driver.Prepare(t.Context(), snap.RestoreRequest{ID: "op-events", Target: "db-target", Base: "db-base"})
		check(t, err)
		list, _ := sw.Changes(100)
		if said := fmt.Sprint(list); !strings.Contains(said, "event off delete") || strings.Contains(said, "event gone delete") || strings.Contains(said, "event stays") {
			t.Errorf("the changes are %v", list)
		}
		check(t, sw.Commit(t.Context()))
		notes := s.proves(t, sw)
		if now := events(); now != want || !strings.Contains(notes, "Event gone of that state has ended") {
			t.Errorf("after %s, the events are %s\nwant %s\nthe notes are %s", wreck, now, want, notes)
		}
		s.sql(t, s.db, "ALTER EVENT off COMMENT 'another'")
		if p, err := sw.Check(t.Context()); err != nil || p.Match {
			t.Errorf("another event is not noticed, %v", err)
		}
		check(t, sw.Undo(t.Context()))
		if notes := s.proves(t, sw); notes != "" || s.dump(t, s.db) != base {
			t.Errorf("after %s, Undo did not get to the base: %s", wreck, notes)
		}
		check(t, sw.Finish(t.Context()))
		s.restore(t, "db-target")
	}
	s.restore(t, "db-none")
	s.restore(t, "db-target")
}
