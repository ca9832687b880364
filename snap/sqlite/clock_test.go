package sqlite

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mulligan/snap"
	"mulligan/testkit"
)

// TestWholeSeconds: where the filesystem keeps whole seconds, a database that is written
// to twice within one, and keeps its size, is still seen to have changed.
func TestWholeSeconds(t *testing.T) {
	mnt := testkit.Loop(t, 128, "mkfs.ext4", "-q", "-F", "-I", "128")
	s := emptySubject(t, startClient(t))
	s.cfg.Dir = filepath.Join(mnt, "app")
	check(t, os.MkdirAll(filepath.Join(s.cfg.Dir, "data"), 0o755))
	s.Reopen(t)
	s.client.do(t, order{Path: s.path(), SQL: []string{
		"PRAGMA journal_mode=DELETE", "CREATE TABLE kv(v)", "CREATE TABLE one(x)", "INSERT INTO one VALUES('good')",
		"INSERT INTO kv SELECT randomblob(9*1024*1024)",
	}})
	for deadline := time.Now().Add(testkit.Patience); !s.twiceInOneSecond(t); {
		if time.Now().After(deadline) {
			t.Fatal("two writes and a capture never fell into one second")
		}
	}
}

// twiceInOneSecond writes to the database before and after a capture. false: the file has
// other times afterwards, which shows nothing.
func (s *subject) twiceInOneSecond(t *testing.T) bool {
	t.Helper()
	for now := time.Now(); now.Nanosecond() < 5e7 || now.Nanosecond() > 1e8; now = time.Now() {
		time.Sleep(time.Millisecond) // polls the clock: early in a second, and not at once
	}
	s.client.do(t, order{Path: s.path(), SQL: []string{"UPDATE one SET x = 'good'"}})
	for began := time.Now(); time.Since(began) < 20*time.Millisecond; {
		time.Sleep(time.Millisecond) // polls the clock: more than a tick of the kernel's after the write
	}
	good, err := s.capture(t, "db-good")
	check(t, err)
	var first, second unix.Stat_t
	check(t, unix.Stat(s.path(), &first))
	s.client.do(t, order{Path: s.path(), SQL: []string{"UPDATE one SET x = 'evil'"}})
	check(t, unix.Stat(s.path(), &second))
	if first.Mtim != second.Mtim || first.Ctim != second.Ctim {
		check(t, s.driver.Delete(t.Context(), "db-good"))
		return false
	}
	evil, err := s.capture(t, "db-evil")
	check(t, err)
	if good.Hash == evil.Hash {
		t.Fatal("the second capture misses a write of the same second")
	}
	held, err := os.ReadFile(contentOf(t, s, "db-evil"))
	check(t, err)
	live, err := os.ReadFile(s.path())
	check(t, err)
	if !bytes.Equal(held, live) {
		t.Fatal("the second capture is not what is live")
	}
	sw, err := s.driver.Prepare(t.Context(), snap.RestoreRequest{ID: "op-1", Target: "db-good", Base: "db-good"})
	check(t, err)
	stale, err := sw.Stale(t.Context())
	check(t, err)
	if !stale {
		t.Fatal("a restore takes a database that was written to since for its base")
	}
	return true
}
