package logical

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mulligan/snap/postgres/pgtest"
	"mulligan/testkit"
)

// statements splits SQL where a line ends with a semicolon.
func statements(sql string) (list []string) {
	var group strings.Builder
	for line := range strings.Lines(sql) {
		group.WriteString(line)
		if strings.HasSuffix(strings.TrimSpace(line), ";") {
			list = append(list, group.String())
			group.Reset()
		}
	}
	return list
}

// TestStamps makes a database with a few of each kind of object: each step that changes the schema changes its stamp, and none that
// changes rows, sequences, statistics or large objects alone does.
func TestStamps(t *testing.T) {
	t.Parallel()
	c := startCluster(t, pgtest.Options{Databases: []string{"stamped", "other"}})
	s := &subject{c: c, db: "stamped"}
	s.open(t, c.DSN("stamped"))
	conn, err := s.driver.connect(t.Context(), s.db)
	check(t, err)
	defer conn.close()
	id, err := conn.identifyRows(t.Context())
	check(t, err)
	stamp := func() string {
		t.Helper()
		stamp, err := conn.stamp(t.Context(), id)
		check(t, err)
		return stamp
	}
	now := stamp()
	step := func(sql string, changes bool) {
		t.Helper()
		check(t, conn.exec(t.Context(), sql))
		next := stamp()
		if (next != now) != changes {
			t.Errorf("that the stamp changes with %.200q is %v", sql, next != now)
		}
		now = next
	}
	for _, sql := range statements(families) {
		step(sql, !strings.HasPrefix(sql, "INSERT") && !strings.HasPrefix(sql, "SELECT lo_"))
	}
	step("INSERT INTO s1.words VALUES ('more'); UPDATE s1.parent SET twin = 7 WHERE id = 2; DELETE FROM s1.hashed; SELECT nextval('s1.odd'); SELECT lo_create(5)", false)
	step("ANALYZE s1.animal", false)
	step("ALTER DATABASE other SET work_mem = '5MB'; COMMENT ON DATABASE other IS 'x'", false)
	for _, sql := range []string{
		"ALTER TABLE s1.words ADD COLUMN x int", "ALTER TABLE s1.words DROP COLUMN x", "ALTER ROLE fam_reader RENAME TO fam_looker", "ALTER ROLE fam_looker RENAME TO fam_reader",
		"COMMENT ON TABLE s1.words IS 'a'", "COMMENT ON TABLE s1.words IS 'b'", "COMMENT ON TABLE s1.words IS NULL", "GRANT SELECT ON s1.words TO fam_reader", "REVOKE SELECT ON s1.words FROM fam_reader",
		"ALTER VIEW s1.v1 RENAME TO v0", "ALTER SEQUENCE s1.odd CACHE 9", "ALTER TYPE s1.shade RENAME VALUE 'dim' TO 'dimmer'", "CREATE EXTENSION citext SCHEMA public", "DROP EXTENSION citext",
		"ALTER TABLE s1.words DISABLE TRIGGER t1", "ALTER TABLE s1.words ENABLE TRIGGER t1", "CREATE INDEX CONCURRENTLY slow ON s1.words (w)",
	} {
		step(sql, true)
	}
	step("UPDATE pg_index SET indisvalid = false WHERE indexrelid = 's1.slow'::regclass", true)
}

// TestUnchangedSchema captures a database again after its rows have changed: pg_dump runs for the first capture, and after the schema
// has changed. What is restored is what was there.
func TestUnchangedSchema(t *testing.T) {
	t.Parallel()
	c := startCluster(t, pgtest.Options{})
	s := newSubject(t, c)
	dir := testkit.OpenDir(t)
	script := fmt.Sprintf("#!/bin/sh\n[ \"$1\" = --version ] || echo >>%s/ran\nexec %s/pg_dump \"$@\"\n", dir, c.Bin)
	check(t, testkit.WriteProgram(filepath.Join(dir, "pg_dump"), []byte(script)))
	check(t, os.Symlink(filepath.Join(c.Bin, "pg_restore"), filepath.Join(dir, "pg_restore")))
	check(t, os.WriteFile(filepath.Join(dir, "ran"), nil, 0o666))
	check(t, os.Chmod(filepath.Join(dir, "ran"), 0o666))
	s.cfg.BinDirs = []string{dir}
	s.Reopen(t)
	ran := func() int {
		text, err := os.ReadFile(filepath.Join(dir, "ran"))
		check(t, err)
		return len(text)
	}
	s.capture(t)
	first := ran()
	if first == 0 {
		t.Fatal("pg_dump did not run: this shows nothing")
	}
	s.Reopen(t)
	s.as(t, "DELETE FROM public.parts; INSERT INTO api.docs (seed) VALUES (777)")
	second, before := s.capture(t), s.dump(t, "")
	if got := ran(); got != first {
		t.Errorf("pg_dump ran %d times for a capture of the same schema", got-first)
	}
	s.as(t, "ALTER TABLE api.docs ADD COLUMN later int; UPDATE api.docs SET later = 5")
	s.capture(t)
	if got := ran(); got == first {
		t.Error("pg_dump did not run for a capture of another schema")
	}
	s.restore(t, second)
	s.lives(t, "restored", before)
}
