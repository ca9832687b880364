package logical

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"mulligan/snap"
	"mulligan/snap/postgres/pgbin"
	"mulligan/snap/postgres/pgtest"
	"mulligan/testkit"
)

// Without tools in the usual places, those beside the server are taken.
func TestToolsBesideServer(t *testing.T) {
	c := startCluster(t, pgtest.Options{})
	s := newSubject(t, c)
	old := pgbin.Places
	t.Cleanup(func() { pgbin.Places = old })
	pgbin.Places = nil
	t.Setenv("PATH", "/nowhere:.")
	s.Mutate(t, 1)
	good, before := s.capture(t), s.dump(t, "")
	s.Mutate(t, 2)
	s.restore(t, good)
	s.lives(t, "with the server's tools", before)
}

// wrap makes a tool of another version out of the server's: a script that ends with the lines.
func wrap(t *testing.T, dir, bin, name, lines string) {
	t.Helper()
	script := fmt.Sprintf("#!/bin/sh\n[ \"$1\" != --version ] || { echo '%s (PostgreSQL) 17.1'; exit 0; }\n%s/%[1]s \"$@\" || exit\n%[3]s\n", name, bin, lines)
	check(t, testkit.WriteProgram(filepath.Join(dir, name), []byte(script)))
}

// From version 17 on, pg_restore sets transaction_timeout, which older servers don't know. A restore doesn't fail for that,
// and fails for everything else.
func testNewerTools(t *testing.T) {
	const ignored = `cat >&2 <<'END'
pg_restore: error: could not execute query: ERROR:  unrecognized configuration parameter "transaction_timeout"
Command was: SET transaction_timeout = 0;
END
`
	c := startCluster(t, pgtest.Options{})
	s := newSubject(t, c)
	dir := testkit.OpenDir(t)
	s.cfg.BinDirs = []string{dir}
	s.Reopen(t)
	wrap(t, dir, c.Bin, "pg_dump", "")
	wrap(t, dir, c.Bin, "pg_restore", ignored+"echo 'pg_restore: warning: errors ignored on restore: 1' >&2; exit 1")
	s.Mutate(t, 1)
	good, before := s.capture(t), s.dump(t, "")
	s.Mutate(t, 2)
	s.restore(t, good)
	s.lives(t, "with newer tools", before)
	s.Mutate(t, 2)
	later := s.dump(t, "")
	wrap(t, dir, c.Bin, "pg_restore", ignored+`cat >&2 <<'END'
pg_restore: error: could not execute query: ERROR:  no room
Command was: CREATE TABLE x ();
pg_restore: warning: errors ignored on restore: 2
END
exit 1`)
	_, err := s.driver.Prepare(t.Context(), snap.RestoreRequest{ID: "op-1", Target: good, Base: good})
	if err == nil || !strings.Contains(err.Error(), "no room") {
		t.Errorf("pg_restore failed at a table: %v", err)
	}
	s.lives(t, "after a restore that failed", later)
	const failed, unknown, ended = "pg_restore: error: could not execute query: ERROR:  no\n", "Command was: SET transaction_timeout = 0;\n", "pg_restore: warning: errors ignored on restore: 1\n"
	for said, want := range map[string]bool{
		"": false, ended: false, failed + unknown: false, failed + unknown + ended: true, failed + unknown + failed + unknown + ended: true,
		failed + unknown + failed + ended: false, failed + unknown + failed + "Command was: SET x = 0;\n" + ended: false, unknown + ended: false,
	} {
		if got := onlyUnknownSetting(said); got != want {
			t.Errorf("%q: %v", said, got)
		}
	}
}
