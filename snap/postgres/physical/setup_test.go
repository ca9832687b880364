package physical

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/postgres/physical/pgserver"
	"mulligan/testkit"
)

// Enabling says what it changes, needs one restart, and can be taken back.
func testEnableDisable(t *testing.T) {
	t.Parallel()
	s := newSubject(t, options{bare: true})
	settings := func() string {
		return s.Psql(t, "app", "SELECT name || '=' || setting FROM pg_file_settings WHERE sourcefile LIKE '%auto.conf' ORDER BY 1")
	}
	_, err := s.driver.Capture(t.Context(), snap.CaptureRequest{ID: "db-0"})
	fails(t, "Capture before Enable", err, errs.Conflict, "keeps the log of the cluster")

	changes, restart, err := s.driver.Enable(t.Context())
	check(t, err)
	text := strings.Join(changes, "\n")
	for _, word := range []string{s.driver.cfg.Store, "archive_mode", "archive_command", "slot"} {
		if !restart || !strings.Contains(text, word) {
			t.Errorf("Enable says nothing of %s (restart: %t):\n%s", word, restart, text)
		}
	}
	check(t, s.driver.Maintain(t.Context())) // before the restart the slot keeps the log
	s.mutate(t, 1)
	capture(t, s, "db-a")
	check(t, s.driver.server.Stop(t.Context()))
	check(t, s.driver.server.Start(t.Context()))
	check(t, s.driver.Maintain(t.Context()))
	if n := s.value(t, "SELECT count(*) FROM pg_replication_slots"); n != "0" {
		t.Errorf("archiving, the server has %s slots", n)
	}
	again, restart, err := s.driver.Enable(t.Context())
	if err != nil || restart || len(again) != 0 {
		t.Errorf("Enable again: %q, %t, %v", again, restart, err)
	}
	check(t, s.driver.Verify(t.Context(), "db-a", snap.Full))

	other := s.cfg
	other.App, other.StateDir = "app-2", t.TempDir()
	d, err := New(other)
	check(t, err)
	_, _, err = d.Enable(t.Context())
	fails(t, "Enable for another app", err, errs.Conflict, "app-1/main")

	_, restart, err = s.driver.Disable(t.Context())
	if err != nil || !restart {
		t.Fatalf("Disable: %t, %v", restart, err)
	}
	check(t, s.driver.server.Stop(t.Context()))
	check(t, s.driver.server.Start(t.Context()))
	if _, restart, err = s.driver.Disable(t.Context()); err != nil || restart {
		t.Fatalf("Disable again: %t, %v", restart, err)
	}
	if got := settings(); got != "" {
		t.Errorf("afterwards the server still has %q", got)
	}
	if _, err := os.Lstat(s.driver.cfg.Store); !os.IsNotExist(err) {
		t.Errorf("the store is left: %v", err)
	}
	err = s.driver.Verify(t.Context(), "db-a", snap.Quick)
	fails(t, "Verify", err, errs.NotFound, "db-a")
}

// Somebody else's archive stays theirs, also over a restore.
func testForeignArchive(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	check(t, os.Chmod(dir, 0o777))
	check(t, os.Chmod(filepath.Dir(dir), 0o755))
	command := "test ! -e " + dir + "/%f && cp %p " + dir + "/%f"
	s := newSubject(t, options{settings: map[string]string{"archive_mode": "on", "archive_command": command}})
	s.mutate(t, 1)
	capture(t, s, "db-a")
	s.mutate(t, 2)
	capture(t, s, "db-b")
	s.restore(t, "db-a", "db-b")
	s.Psql(t, "app", "SELECT pg_switch_wal()")
	check(t, pgserver.Await(t.Context(), func() (bool, error) {
		segments, err := filepath.Glob(dir + "/00000002????????????????")
		histories, err2 := filepath.Glob(dir + "/00000002.history")
		return len(segments) > 0 && len(histories) > 0, errs.Also(err, err2)
	}))
	if got := s.value(t, "SHOW archive_command"); got != command {
		t.Errorf("archive_command is %q", got)
	}
}

// A server that removes log which was not copied gives up the slot. It gets another one, and the next marker rests on a new base.
func testLostSlot(t *testing.T) {
	t.Parallel()
	s := newSubject(t, options{slot: true})
	const status = "SELECT wal_status FROM pg_replication_slots WHERE slot_name = '" + slot + "'"
	limit := func(size string) {
		s.Psql(t, "postgres", "ALTER SYSTEM SET max_slot_wal_keep_size = '"+size+"'")
		s.Psql(t, "postgres", "SELECT pg_reload_conf()")
	}
	for i, first := range []string{"Maintain", "Capture"} {
		s.mutate(t, int64(i))
		bases, err := s.driver.records.bases()
		check(t, err)
		limit("1MB")
		testkit.Eventually(t, "the server gives up the slot", func() bool {
			s.Psql(t, "postgres", "SELECT txid_current(), pg_switch_wal()")
			s.Psql(t, "postgres", "CHECKPOINT")
			return s.value(t, status) == "lost"
		})
		limit("-1")
		if first == "Maintain" {
			check(t, s.driver.Maintain(t.Context()))
		}
		id := snap.SnapshotID("db-" + first)
		capture(t, s, id)
		if now := s.value(t, status); now != "reserved" {
			t.Errorf("%s leaves a slot that is %q", first, now)
		}
		now, err := s.driver.records.bases()
		check(t, err)
		if slices.Equal(now, bases) {
			t.Errorf("%s takes no base", first)
		}
		check(t, s.driver.Verify(t.Context(), id, snap.Full))
	}
}

// otherFS is a path on another file system than path.
func otherFS(t *testing.T, path string) string {
	for _, dir := range []string{"/dev/shm", "/var/tmp"} {
		var a, b unix.Stat_t
		check(t, errors.Join(unix.Stat(dir, &a), unix.Stat(path, &b)))
		if a.Dev != b.Dev {
			return filepath.Join(dir, "mulligan-"+randomHex(4))
		}
	}
	testkit.Lack(t, "the host has one file system only")
	return ""
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	s := newSubject(t, options{bare: true})
	enable := func(change func(*Config)) error {
		cfg := s.cfg
		cfg.StateDir = t.TempDir()
		change(&cfg)
		d, err := New(cfg)
		if err != nil {
			return err
		}
		_, _, err = d.Enable(t.Context())
		return err
	}
	s.Psql(t, "postgres", "CREATE ROLE plain LOGIN")
	fails(t, "a plain role", enable(func(c *Config) { c.DSN = s.DSNAs("plain", "app") }), errs.Denied, "not a superuser")
	s.Psql(t, "postgres", "CREATE ROLE mule SUPERUSER LOGIN PASSWORD 'right'")
	wrong := enable(func(c *Config) { c.DSN = s.TCP("mule", "hunter2", "app") })
	fails(t, "a wrong password", wrong, errs.Denied, "does not let us in")
	if strings.Contains(wrong.Error()+errs.HintOf(wrong), "hunter2") {
		t.Errorf("a password is shown: %v", wrong)
	}
	fails(t, "another folder", enable(func(c *Config) { c.DataDir = filepath.Dir(s.DataDir) }), errs.Invalid, "keeps its data in")
	fails(t, "no server", enable(func(c *Config) { c.DSN = "postgres://postgres@/app?host=/nowhere" }), errs.Unavailable, "nowhere")
	fails(t, "a store elsewhere", enable(func(c *Config) { c.Store = otherFS(t, s.DataDir) }), errs.Unsupported, "not on the file system")
	fails(t, "a quote", enable(func(c *Config) { c.DataDir += "'" }), errs.Invalid, "archive_command")
	fails(t, "a relative path", enable(func(c *Config) { c.StateDir = "state" }), errs.Invalid, "absolute")
	if os.Getuid() == 0 {
		above := filepath.Dir(s.DataDir)
		check(t, os.Chown(above, 0, 0))
		fails(t, "a folder of root's", enable(func(*Config) {}), errs.Denied, "cannot write to")
		check(t, os.Chown(above, s.cfg.Owner.UID, s.cfg.Owner.GID))
		check(t, s.driver.server.Stop(t.Context()))
		check(t, unix.Mount(s.DataDir, s.DataDir, "", unix.MS_BIND, ""))
		check(t, s.driver.server.Start(t.Context()))
		err := enable(func(c *Config) { c.Store = s.DataDir + ".mulligan-2" })
		check(t, s.driver.server.Stop(t.Context()))
		check(t, unix.Unmount(s.DataDir, 0))
		check(t, s.driver.server.Start(t.Context()))
		fails(t, "a mount point", err, errs.Unsupported, "mount point")
		part := filepath.Join(s.DataDir, "pg_stat_tmp")
		check(t, unix.Mount(part, part, "", unix.MS_BIND, ""))
		err = enable(func(*Config) {})
		check(t, unix.Unmount(part, 0))
		fails(t, "a mount in the data folder", err, errs.Unsupported, "something is mounted at "+part)
	}
	check(t, enable(func(*Config) {}))
}

// As root, the daemon enters by the peer login of the server's user. A server that
// is down, or lets us in no more, is one clear error, and nothing is changed.
func testLogins(t *testing.T) {
	testkit.Need(t, "root")
	t.Parallel()
	s := newSubject(t, options{})
	s.WriteHBA(t, "local all all peer\nhost all all 127.0.0.1/32 scram-sha-256\n")
	check(t, s.driver.server.Stop(t.Context()))
	check(t, s.driver.server.Start(t.Context()))
	s.as(t, fmt.Sprintf("host=%s port=%d dbname=app", s.Socket, s.Port))
	capture(t, s, "db-a")
	capture(t, s, "db-b")
	tries := func(what string, kind errs.Kind, says string) {
		t.Helper()
		_, err := s.driver.Capture(t.Context(), snap.CaptureRequest{ID: "db-c"})
		fails(t, what+", capture", err, kind, says)
		_, err = s.driver.Prepare(t.Context(), snap.RestoreRequest{ID: "op-1", Target: "db-a", Base: "db-b"})
		fails(t, what+", prepare", err, kind, says)
		fails(t, what+", maintain", s.driver.Maintain(t.Context()), kind, says)
		if errs.HintOf(err) == "" || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v has the hint %q", what, err, errs.HintOf(err))
		}
	}
	s.as(t, s.TCP("postgres", "hunter2", "app"))
	tries("a wrong password", errs.Denied, "does not let us in")
	s.as(t, s.DSNAs("nobody", "app"))
	tries("another user", errs.Denied, "does not let us in")
	s.as(t, fmt.Sprintf("host=%s port=%d dbname=app", s.Socket, s.Port))
	check(t, s.driver.server.Stop(t.Context()))
	conf, err := os.ReadFile(s.DataDir + "/postgresql.conf")
	check(t, err)
	s.put(t, "postgresql.conf", "port = many\n") // else it would be started
	tries("the server is down", errs.Unavailable, s.Socket)
	s.put(t, "postgresql.conf", string(conf))
	check(t, s.driver.server.Start(t.Context()))
	s.restore(t, "db-a", "db-b")
}

// as gives the driver another DSN.
func (s *subject) as(t *testing.T, dsn string) {
	t.Helper()
	s.cfg.DSN = dsn
	s.reopen(t)
}

// Bases and log that no checkpoint needs go; what one needs stays.
func testRetention(t *testing.T) {
	t.Parallel()
	s := newSubject(t, options{})
	s.cfg.MaxReplay = 1
	s.reopen(t)
	prints := map[snap.SnapshotID]string{}
	for _, id := range []snap.SnapshotID{"db-a", "db-b", "db-c", "db-d"} {
		s.mutate(t, int64(len(prints)*6+1))
		prints[id] = s.fingerprint(t)
		capture(t, s, id)
		check(t, s.driver.Maintain(t.Context())) // a base after each
	}
	stored := func() (bases int, log int) {
		list, err := s.driver.records.bases()
		check(t, err)
		files, err := filepath.Glob(s.driver.store.path("archive", "0*"))
		check(t, err)
		return len(list), len(files)
	}
	bases, _ := stored()
	if bases != 5 {
		t.Errorf("there are %d bases after 4 captures with one before and after each", bases)
	}
	for _, id := range []snap.SnapshotID{"db-b", "db-d"} {
		said, err := s.driver.Size(t.Context(), id)
		check(t, err)
		before := s.Stored(t)
		check(t, s.driver.Delete(t.Context(), id))
		if freed := before - s.Stored(t); said < 1<<20 || freed < said*3/4 || freed > said*5/4 {
			t.Errorf("deleting %s freed %d bytes, and Size said %d", id, freed, said)
		}
		delete(prints, id)
	}
	if n, _ := stored(); n != 3 {
		t.Errorf("there are %d bases for 2 captures and those to come", n)
	}
	for id, want := range prints {
		check(t, s.driver.Verify(t.Context(), id, snap.Full))
		base := snap.SnapshotID("db-before-" + string(id))
		capture(t, s, base)
		s.restore(t, id, base)
		if s.fingerprint(t) != want {
			t.Errorf("%s is not as it was", id)
		}
		check(t, s.driver.Delete(t.Context(), base))
	}
	for id := range prints {
		check(t, s.driver.Delete(t.Context(), id))
	}
	check(t, s.driver.retention.prune(t.Context()))
	if bases, log := stored(); bases != 0 || log > len(histories(t, s)) {
		t.Errorf("without captures there are %d bases and %d files of log", bases, log)
	}
	s.mutate(t, 30)
	capture(t, s, "db-e") // takes a base
	check(t, s.driver.Verify(t.Context(), "db-e", snap.Full))
}

func histories(t *testing.T, s *subject) []string {
	t.Helper()
	list, err := filepath.Glob(s.driver.store.path("archive", "*.history"))
	check(t, err)
	return list
}

// A base that is being taken holds up no capture.
func testCaptureWhileBaseIsTaken(t *testing.T) {
	t.Parallel()
	s := newSubject(t, options{})
	s.mutate(t, 1)
	reached, goOn := make(chan struct{}), make(chan struct{})
	s.cfg.Failpoint = func(step string) error {
		if step == "base: sync" {
			close(reached)
			<-goOn
		}
		return nil
	}
	s.cfg.MaxReplay = 1
	s.reopen(t)
	done := make(chan error, 1)
	go func() { done <- s.driver.Maintain(t.Context()) }()
	<-reached
	capture(t, s, "db-a")
	s.mutate(t, 2)
	capture(t, s, "db-b")
	close(goOn)
	check(t, <-done)
	s.restore(t, "db-a", "db-b")
}
