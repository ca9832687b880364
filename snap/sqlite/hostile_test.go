package sqlite

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/testkit"
)

// wants checks the kind of err, and that its text has each of parts.
func wants(t *testing.T, err error, kind errs.Kind, parts ...string) {
	t.Helper()
	if errs.KindOf(err) != kind {
		t.Fatalf("the error is %q (%v), want %q", errs.KindOf(err), err, kind)
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q does not name %q", err, part)
		}
	}
	if err != nil && errs.HintOf(err) == "" {
		t.Errorf("%v has no hint", err)
	}
}

func (s *subject) capture(t *testing.T, id snap.SnapshotID) (snap.Snapshot, error) {
	t.Helper()
	return s.driver.Capture(t.Context(), snap.CaptureRequest{ID: id})
}

// What is not a database in a folder of the app is refused, and nothing is stored.
func TestRefused(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret.db")
	c := startClient(t)
	c.do(t, order{Path: secret, SQL: change(t, 1)})
	cases := map[string]struct {
		make func(s *subject) error
		kind errs.Kind
	}{
		"link":     {func(s *subject) error { return os.Symlink(secret, s.path()) }, errs.Invalid},
		"log link": {func(s *subject) error { return errs2(copyFile(secret, s.path()), os.Symlink(secret, s.path()+"-wal")) }, errs.Invalid},
		"not one":  {func(s *subject) error { return os.WriteFile(s.path(), bytes.Repeat([]byte("x"), 5000), 0o600) }, errs.Invalid},
		"short":    {func(s *subject) error { return os.WriteFile(s.path(), []byte("SQLite format 3\x00"), 0o600) }, errs.Invalid},
		"folder":   {func(s *subject) error { return os.Mkdir(s.path(), 0o700) }, errs.Invalid},
		"fifo":     {func(s *subject) error { return unix.Mkfifo(s.path(), 0o600) }, errs.Invalid},
		"file above": {func(s *subject) error {
			return errs2(os.Remove(filepath.Dir(s.path())), os.WriteFile(filepath.Dir(s.path()), nil, 0o600))
		}, errs.Invalid},
		"link above": {func(s *subject) error {
			return errs2(os.Remove(filepath.Dir(s.path())), os.Symlink(filepath.Dir(secret), filepath.Dir(s.path())))
		}, errs.Invalid},
	}
	for name, c2 := range cases {
		t.Run(name, func(t *testing.T) {
			s := emptySubject(t, c)
			check(t, os.Mkdir(filepath.Dir(s.path()), 0o755))
			check(t, c2.make(s))
			_, err := s.capture(t, "db-1")
			wants(t, err, c2.kind)
			if roots := s.cfg.Store.Roots(""); len(roots) != 0 {
				t.Errorf("stored: %v", roots)
			}
		})
	}
}

func errs2(list ...error) error {
	for _, err := range list {
		if err != nil {
			return err
		}
	}
	return nil
}

func copyFile(from, to string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, data, 0o600)
}

// However the owner of the folder swaps it for a link, no capture reads, and no restore
// writes, what the link leads to.
func testSwappedForLink(t *testing.T) {
	c := startClient(t)
	s := newSubject(t, c, "DELETE")
	_, err := s.capture(t, "db-own")
	check(t, err)
	outside := t.TempDir()
	c.do(t, order{Path: filepath.Join(outside, "app.db"), SQL: append(change(t, 1), "PRAGMA journal_mode=DELETE", "CREATE TABLE secret(x)")})
	secret, err := os.ReadFile(filepath.Join(outside, "app.db"))
	check(t, err)
	stop := swapping(t, filepath.Dir(s.path()), outside)
	captured := 0
	for captured < 50 {
		if _, err := s.capture(t, "db-raced"); err != nil {
			continue
		}
		captured++
		if path := contentOf(t, s, "db-raced"); hasSecret(t, path) {
			t.Fatal("the capture reached through the link")
		}
		if sw, err := s.driver.Prepare(t.Context(), snap.RestoreRequest{ID: "op-1", Target: "db-own", Base: "db-raced"}); err == nil {
			_ = sw.Commit(t.Context()) // it may well be refused
			_ = sw.Undo(t.Context())
			_ = sw.Finish(t.Context())
			check(t, s.driver.Sweep(t.Context(), snap.Gone{Snapshots: []snap.SnapshotID{"db-raced"}, Restores: []snap.RestoreID{"op-1"}}))
		}
	}
	stop()
	now, err := os.ReadFile(filepath.Join(outside, "app.db"))
	check(t, err)
	if entries, _ := os.ReadDir(outside); !bytes.Equal(now, secret) || len(entries) != 1 {
		t.Errorf("what lies outside was changed: %v", entries)
	}
}

// swapping exchanges the folder for a link to another, and back, until stopped.
func swapping(t *testing.T, folder, outside string) (stop func()) {
	t.Helper()
	link := folder + ".link"
	check(t, os.Symlink(outside, link))
	done := make(chan struct{})
	var wait sync.WaitGroup
	wait.Go(func() {
		for {
			for range 2 {
				if err := unix.Renameat2(unix.AT_FDCWD, folder, unix.AT_FDCWD, link, unix.RENAME_EXCHANGE); err != nil {
					t.Error(err)
					return
				}
			}
			select {
			case <-done:
				return
			default:
			}
		}
	})
	return func() { close(done); wait.Wait() }
}

func hasSecret(t *testing.T, path string) bool {
	t.Helper()
	if info, err := os.Stat(path); err == nil && info.Size() == 0 {
		return false // captured as absent
	}
	db := open(path)
	defer db.Close()
	var n int
	check(t, db.QueryRow("SELECT count(*) FROM sqlite_schema WHERE name = 'secret'").Scan(&n))
	return n > 0
}

// Who keeps the driver out is named.
func TestBusy(t *testing.T) {
	holder := startClient(t)
	s := newSubject(t, startClient(t), "DELETE")
	s.cfg.BusyTimeout = 20 * time.Millisecond
	s.Reopen(t)
	_, err := s.capture(t, "db-1")
	check(t, err)
	s.Mutate(t, 4)
	_, err = s.capture(t, "db-2")
	check(t, err)
	pid := by(holder.cmd.Process.Pid)
	sw, err := s.driver.Prepare(t.Context(), snap.RestoreRequest{ID: "op-1", Target: "db-1", Base: "db-2"})
	check(t, err)
	before := s.Fingerprint(t)

	for _, mode := range []string{"DELETE", "WAL"} {
		holder.do(t, order{Path: s.path(), Hold: true, SQL: []string{
			"PRAGMA journal_mode=" + mode, "PRAGMA locking_mode=EXCLUSIVE", "BEGIN EXCLUSIVE", "UPDATE kv SET seed = 1"}})
		_, err = s.capture(t, "db-3")
		wants(t, err, errs.Busy, s.cfg.Path, pid)
		wants(t, sw.Commit(t.Context()), errs.Busy, s.cfg.Path, pid)
	}
	for _, mode := range []string{"WAL", "DELETE"} { // idle, but it would go on with the old file
		holder.do(t, order{Path: s.path(), Hold: true, SQL: []string{"PRAGMA journal_mode=" + mode, "SELECT count(*) FROM kv"}})
		wants(t, sw.Commit(t.Context()), errs.Busy, s.cfg.Path, pid)
	}
	if s.Fingerprint(t) != before {
		t.Error("a refused Commit changed the database")
	}
	holder.do(t, order{Path: filepath.Join(t.TempDir(), "other.db")})
	check(t, s.driver.Delete(t.Context(), "db-2"))
	_, err = s.capture(t, "db-2")
	check(t, err)
	sw, err = s.driver.Prepare(t.Context(), snap.RestoreRequest{ID: "op-1", Target: "db-1", Base: "db-2"})
	check(t, err)
	check(t, sw.Commit(t.Context()))
}

// A journal that names a super-journal is not played back, wherever the name leads.
func TestSuperJournal(t *testing.T) {
	s := newSubject(t, startClient(t), "DELETE")
	s.leave(t, "journal")
	f, err := os.OpenFile(s.path()+"-journal", os.O_APPEND|os.O_WRONLY, 0)
	check(t, err)
	_, err = f.WriteString("\x00\x00\x00\x01/etc/passwd\x00\x00\x00\x0b\x00\x00\x00\x00" + journalMagic)
	check(t, err)
	check(t, f.Close())
	_, err = s.capture(t, "db-1")
	wants(t, err, errs.Conflict, "-journal")
}

// A full disk under the state folder is an error of Prepare, and nothing is left.
func TestStateDiskFull(t *testing.T) {
	s := newSubject(t, startClient(t), "DELETE")
	s.client.do(t, order{Path: s.path(), SQL: []string{"INSERT INTO kv(v) VALUES(randomblob(2000000))"}})
	if err := unix.Mount("none", s.cfg.StateDir, "tmpfs", 0, "size=1m"); err != nil {
		testkit.Lack(t, "cannot mount a small file system: ", err)
	}
	t.Cleanup(func() { check(t, unix.Unmount(s.cfg.StateDir, 0)) })
	s.Reopen(t)
	_, err := s.capture(t, "db-1")
	check(t, err)
	before := s.Fingerprint(t)
	_, err = s.driver.Prepare(t.Context(), snap.RestoreRequest{ID: "op-1", Target: "db-1", Base: "db-1"})
	wants(t, err, errs.Failed, "no space")
	_, err = s.driver.Resume(t.Context(), "op-1")
	if errs.KindOf(err) != errs.NotFound || s.Fingerprint(t) != before {
		t.Errorf("a failed Prepare left something: %v", err)
	}
	if list, _ := os.ReadDir(filepath.Join(s.cfg.StateDir, "switches")); len(list) != 0 {
		t.Errorf("left: %v", list)
	}
}
