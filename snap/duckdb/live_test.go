package duckdb

import (
	"fmt"
	"strings"
	"testing"

	"mulligan/errs"
	"mulligan/snap"
)

// A database that a process has open is captured as it is, with its log; it is not replaced.
func TestOpenElsewhere(t *testing.T) {
	c := newClient(t)
	s := newSubject(t, c)
	hold := order{Path: s.path(), Hold: true, SQL: []string{"CREATE TABLE IF NOT EXISTS open(a INTEGER)", "INSERT INTO open VALUES (1)"}}
	c.do(t, hold)
	capture(t, s, "a")
	was := s.Fingerprint(t)
	c.do(t, hold)
	capture(t, s, "b")
	sw, err := s.driver.Prepare(t.Context(), snap.RestoreRequest{ID: "op", Target: "a", Base: "b"})
	check(t, err)
	if err := sw.Commit(t.Context()); errs.KindOf(err) != errs.Busy || errs.HintOf(err) == "" {
		t.Fatalf("committed under a process that has the database open: %v", err)
	}
	c.do(t, order{Path: s.path(), SQL: []string{"SELECT 1"}}) // closes it, which writes the log into the database
	if stale, err := sw.Stale(t.Context()); err != nil || !stale {
		t.Fatalf("stale is %t, %v, after the files changed", stale, err)
	}
	capture(t, s, "c")
	sw, err = s.driver.Prepare(t.Context(), snap.RestoreRequest{ID: "op", Target: "a", Base: "c"})
	check(t, err)
	check(t, sw.Commit(t.Context()))
	if s.Fingerprint(t) != was {
		t.Error("the state is not that of the snapshot")
	}
	check(t, sw.Finish(t.Context()))
}

// A program tells tables and rows apart; without one the size is told.
func TestDiff(t *testing.T) {
	c := newClient(t)
	s := newSubject(t, c)
	c.do(t, order{Path: s.path(), SQL: []string{"CREATE TABLE people(id INTEGER, name VARCHAR)", "INSERT INTO people VALUES (1, 'a'), (2, 'b')", "CREATE TABLE gone(a INTEGER)"}})
	capture(t, s, "a")
	c.do(t, order{Path: s.path(), SQL: []string{
		"INSERT INTO people VALUES (3, 'c')", "DROP TABLE gone", `CREATE TABLE "new one"(a INTEGER)`, "ALTER TABLE people ADD COLUMN age INTEGER", "CREATE VIEW old AS SELECT * FROM people",
	}})
	list, err := s.driver.Diff(t.Context(), "a", "", nil)
	check(t, err)
	if len(list) != 1 || list[0].Path != s.cfg.Path || !strings.Contains(list[0].Summary, "was") {
		t.Errorf("without a program the difference is %v", list)
	}
	s.cfg.Program = c.program
	s.Reopen(t)
	list, err = s.driver.Diff(t.Context(), "a", "", nil)
	check(t, err)
	text := fmt.Sprint(list)
	for _, want := range []string{`DROP TABLE "main"."gone"; it had 0 rows`, `ADD COLUMN "age" INTEGER`, "3 rows, were 2 (1 more)", "new one", "CREATE VIEW"} {
		if !strings.Contains(text, want) {
			t.Errorf("the difference has no %q:\n%s", want, text)
		}
	}
	if list, err = s.driver.Diff(t.Context(), "a", "a", nil); err != nil || len(list) != 0 {
		t.Errorf("a state differs from itself: %v, %v", list, err)
	}
}

func capture(t *testing.T, s *subject, id snap.SnapshotID) {
	t.Helper()
	_, err := s.driver.Capture(t.Context(), snap.CaptureRequest{ID: id})
	check(t, err)
}
