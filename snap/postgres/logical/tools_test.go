package logical

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mulligan/privsep"
	"mulligan/snap"
	"mulligan/snap/postgres/pgtest"
	"mulligan/testkit"
)

// nobody is a user without rights.
var nobody = privsep.User{UID: 65534, GID: 65534}

// openFolder is a temporary folder that every user may enter and write to.
func openFolder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "mulligan-tools")
	check(t, err)
	t.Cleanup(func() { check(t, os.RemoveAll(dir)) })
	check(t, os.Chmod(dir, 0o777))
	return dir
}

// A tool is asked for its version with the rights of the app's owner, and what the owner may not run is of no use.
func TestToolAskedAsOwner(t *testing.T) {
	testkit.Need(t, "root")
	dir := openFolder(t)
	for _, name := range []string{"pg_dump", "pg_restore"} {
		check(t, os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\nid -u >"+dir+"/who\necho '"+name+" (PostgreSQL) 15.1'\n"), 0o755))
	}
	b := &toolbox{dirs: []string{dir}, owner: nobody}
	if got, err := b.ask(t.Context(), dir); err != nil || got.major != 15 {
		t.Errorf("%+v, %v", got, err)
	}
	who, err := os.ReadFile(filepath.Join(dir, "who"))
	check(t, err)
	if string(who) != "65534\n" {
		t.Errorf("pg_dump --version ran as user %s", who)
	}
	check(t, os.Chmod(filepath.Join(dir, "pg_dump"), 0o700))
	b = &toolbox{dirs: []string{dir}, owner: nobody}
	if got, err := b.ask(t.Context(), dir); err == nil {
		t.Errorf("what nobody but root may run is taken: %+v", got)
	}
}

// Without tools in the usual places, those beside the server are taken.
func TestToolsBesideServer(t *testing.T) {
	c := startCluster(t, pgtest.Options{})
	s := newSubject(t, c)
	old := places
	t.Cleanup(func() { places = old })
	places = nil
	t.Setenv("PATH", "/nowhere:.")
	s.Mutate(t, 1)
	good, before := s.capture(t), s.dump(t, "")
	s.Mutate(t, 2)
	s.restore(t, good)
	s.lives(t, "with the server's tools", before)
}

// A server names the process that serves a session. Only if that is a server of this host is its folder looked at.
func TestPrograms(t *testing.T) {
	c := startCluster(t, pgtest.Options{})
	s := newSubject(t, c)
	conn, err := s.driver.connect(t.Context(), s.db)
	check(t, err)
	defer conn.close()
	if got, want := conn.programs(t.Context(), s.cfg.Owner), c.Bin; got != want {
		t.Errorf("the server's programs are in %q, want %q", got, want)
	}
}

// wrap makes a tool of another version out of the server's: a script that ends with the lines.
func wrap(t *testing.T, dir, bin, name, lines string) {
	t.Helper()
	script := fmt.Sprintf("#!/bin/sh\n[ \"$1\" != --version ] || { echo '%s (PostgreSQL) 17.1'; exit 0; }\n%s/%[1]s \"$@\" || exit\n%[3]s\n", name, bin, lines)
	check(t, os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755))
}

// From version 17 on, pg_restore sets transaction_timeout, which older servers don't know. A restore doesn't fail for that,
// and fails for everything else.
func TestNewerTools(t *testing.T) {
	const ignored = `cat >&2 <<'END'
pg_restore: error: could not execute query: ERROR:  unrecognized configuration parameter "transaction_timeout"
Command was: SET transaction_timeout = 0;
END
`
	c := startCluster(t, pgtest.Options{})
	s := newSubject(t, c)
	dir := openFolder(t)
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
