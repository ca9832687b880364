package physical

import (
	"context"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/postgres/physical/asowner"
	"mulligan/snap/postgres/physical/pgserver"
	"mulligan/snap/postgres/physical/replay"
	"mulligan/snap/postgres/physical/wal"
	"mulligan/testkit"
)

// fails checks an error's kind, and that it says something to go by.
func fails(t *testing.T, what string, err error, kind errs.Kind, says string) {
	t.Helper()
	if errs.KindOf(err) != kind || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "\n") {
		t.Errorf("%s: %v (%s), want %s and %q", what, err, errs.KindOf(err), kind, says)
	}
}

func (s *subject) value(t *testing.T, sql string) string {
	t.Helper()
	return s.Psql(t, "app", sql)
}

// Where the log ends with a whole file, the next one need not be there yet. That
// is no gap, and no reason to copy the cluster once more.
func testEndOfFile(t *testing.T) {
	t.Parallel()
	s := newSubject(t, options{})
	for range 10 { // more than files are made ahead
		s.Psql(t, "app", "SELECT pg_logical_emit_message(false, 'test', ''); SELECT pg_switch_wal()")
		if due, err := s.driver.tidy(t.Context()); err != nil || due {
			t.Fatalf("a base is due: %v, %v", due, err)
		}
	}
}

// The app's tables come back over several timelines: each marker from its own
// ancestors, whatever was restored before.
func testAcrossTimelines(t *testing.T) {
	t.Parallel()
	s := newSubject(t, options{})
	s.Psql(t, "app", "CREATE TABLE t (v text)")
	seen := map[string]string{}
	at := map[snap.SnapshotID]string{}
	step := func(id snap.SnapshotID) {
		s.Psql(t, "app", "INSERT INTO t VALUES ('"+string(id)+"')")
		position := capture(t, s, id).Position
		if other, found := seen[position]; found {
			t.Errorf("%s and %s have the same position %s", id, other, position)
		}
		seen[position] = string(id)
		at[id] = s.value(t, "SELECT string_agg(v, ' ' ORDER BY v) FROM t")
	}
	to := func(id snap.SnapshotID) {
		t.Helper()
		base := snap.SnapshotID("before-" + randomHex(4))
		capture(t, s, base)
		s.restore(t, id, base)
		if got := s.value(t, "SELECT string_agg(v, ' ' ORDER BY v) FROM t"); got != at[id] {
			t.Errorf("at %s there is %q, want %q", id, got, at[id])
		}
		check(t, s.driver.Delete(t.Context(), base))
	}
	step("a")
	step("b")
	to("a")
	step("c")
	check(t, s.driver.bases.take(t.Context()))
	step("d")
	to("b")
	step("e")
	for _, id := range []snap.SnapshotID{"c", "a", "e", "d"} {
		to(id)
	}
	timelines := s.value(t, "SELECT count(DISTINCT split_part(v, ':', 1)) FROM unnest('{"+strings.Join(keys(seen), ",")+"}'::text[]) v")
	if timelines == "1" {
		t.Error("all markers are on one timeline")
	}
	for id := range at {
		check(t, s.driver.Verify(t.Context(), id, snap.Full))
	}
}

func keys(m map[string]string) (list []string) {
	for k := range m {
		list = append(list, k)
	}
	return list
}

// Forks that were given up leave their timelines taken: none is given twice.
func testTimelinesNeverCollide(t *testing.T) {
	t.Parallel()
	s := newSubject(t, options{})
	s.mutate(t, 1)
	capture(t, s, "db-a")
	s.mutate(t, 2)
	capture(t, s, "db-b")
	var taken []wal.Timeline
	for _, id := range []snap.RestoreID{"op-1", "op-2", "op-3"} {
		sw, err := s.driver.Prepare(t.Context(), snap.RestoreRequest{ID: id, Target: "db-a", Base: "db-b"})
		check(t, err)
		p, err := s.driver.Resumable("", id)
		check(t, err)
		if slices.Contains(taken, p.Fork.End.TLI) {
			t.Fatalf("timeline %d is given twice, after %v", p.Fork.End.TLI, taken)
		}
		taken = append(taken, p.Fork.End.TLI)
		if id != "op-3" {
			check(t, sw.Undo(t.Context()))
		} else {
			check(t, sw.Commit(t.Context()))
		}
		check(t, sw.Finish(t.Context()))
	}
}

func TestTablespacesAreRefused(t *testing.T) {
	t.Parallel()
	s := newSubject(t, options{})
	dir := filepath.Join(filepath.Dir(s.DataDir), "space")
	check(t, os.Mkdir(dir, 0o700))
	check(t, os.Chown(dir, s.cfg.Owner.UID, s.cfg.Owner.GID))
	s.Psql(t, "app", "CREATE TABLESPACE aside LOCATION '"+dir+"'")
	_, err := s.driver.Capture(t.Context(), snap.CaptureRequest{ID: "db-a"})
	fails(t, "Capture", err, errs.Unsupported, "tablespace")
	fails(t, "a base", s.driver.bases.take(t.Context()), errs.Unsupported, "aside")
	_, _, err = s.driver.Enable(t.Context())
	fails(t, "Enable", err, errs.Unsupported, "aside")
	s.Psql(t, "app", "DROP TABLESPACE aside")
	capture(t, s, "db-a")
}

func testUnloggedTablesAreAnnounced(t *testing.T) {
	t.Parallel()
	s := newSubject(t, options{})
	s.Psql(t, "app", "CREATE UNLOGGED TABLE fleeting (v text); INSERT INTO fleeting VALUES ('x'); CREATE TABLE lasting (v text); INSERT INTO lasting VALUES ('x')")
	check(t, s.driver.Maintain(t.Context()))
	got := capture(t, s, "db-a")
	if !strings.Contains(strings.Join(got.Warnings, " "), "public.fleeting in database app") {
		t.Errorf("the warnings are %q", got.Warnings)
	}
	s.Psql(t, "app", "DELETE FROM lasting")
	capture(t, s, "db-b")
	s.restore(t, "db-a", "db-b")
	if n := s.value(t, "SELECT (SELECT count(*) FROM fleeting) || ' ' || (SELECT count(*) FROM lasting)"); n != "0 1" {
		t.Errorf("of the unlogged and the logged table there are %s rows", n)
	}
}

func testPreparedTransactionsComeBack(t *testing.T) {
	t.Parallel()
	s := newSubject(t, options{})
	s.Psql(t, "app", "CREATE TABLE t (v text); BEGIN; INSERT INTO t VALUES ('x'); PREPARE TRANSACTION 'half'")
	if got := capture(t, s, "db-a"); !strings.Contains(strings.Join(got.Warnings, " "), "1 prepared") {
		t.Errorf("the warnings are %q", got.Warnings)
	}
	capture(t, s, "db-base")
	sw, err := s.driver.Prepare(t.Context(), snap.RestoreRequest{ID: "op-1", Target: "db-a", Base: "db-base"})
	check(t, err)
	s.Psql(t, "app", "COMMIT PREPARED 'half'")
	if stale, err := sw.Stale(t.Context()); err != nil || !stale {
		t.Errorf("after a commit of what was prepared before, Stale is %t, %v", stale, err)
	}
	check(t, sw.Undo(t.Context()))
	check(t, sw.Finish(t.Context()))
	capture(t, s, "db-b")
	s.restore(t, "db-a", "db-b")
	if got := s.value(t, "SELECT string_agg(gid, ' ') || ' ' || (SELECT count(*) FROM t) FROM pg_prepared_xacts"); got != "half 0" {
		t.Errorf("prepared transactions and rows are %q", got)
	}
	s.Psql(t, "app", "COMMIT PREPARED 'half'")
}

// The server's own work, and reading, make no base stale.
func testHousekeepingIsNoChange(t *testing.T) {
	t.Parallel()
	s := newSubject(t, options{})
	s.mutate(t, 1)
	capture(t, s, "db-a")
	s.mutate(t, 2)
	capture(t, s, "db-b")
	sw, err := s.driver.Prepare(t.Context(), snap.RestoreRequest{ID: "op-1", Target: "db-a", Base: "db-b"})
	check(t, err)
	s.Psql(t, "app", "VACUUM; ANALYZE; CHECKPOINT; SELECT pg_switch_wal(); SELECT count(*) FROM kv; BEGIN; CREATE TABLE no (v text); ROLLBACK")
	check(t, s.driver.Maintain(t.Context()))
	capture(t, s, "db-c")
	if stale, err := sw.Stale(t.Context()); err != nil || stale {
		t.Errorf("Stale is %t, %v", stale, err)
	}
	s.Psql(t, "app", "GRANT SELECT ON kv TO PUBLIC")
	if stale, err := sw.Stale(t.Context()); err != nil || !stale {
		t.Errorf("after a GRANT, Stale is %t, %v", stale, err)
	}
}

// While archiving fails the captures say so, and can be restored all the same.
func testFailingArchive(t *testing.T) {
	t.Parallel()
	s := newSubject(t, options{})
	s.mutate(t, 1)
	check(t, os.Rename(s.driver.store.Archive(), s.driver.store.Archive()+"-away"))
	check(t, os.WriteFile(s.driver.store.Archive(), nil, 0o600)) // so nothing can be written below it
	s.Psql(t, "app", "SELECT pg_switch_wal()")
	check(t, pgserver.Await(t.Context(), func() (bool, error) {
		return s.value(t, "SELECT failed_count > 0 FROM pg_stat_archiver") == "t", nil
	}))
	got, warnings, err := s.driver.marks.mark(t.Context())
	check(t, err)
	if !strings.Contains(strings.Join(warnings, " "), "fails to archive") {
		t.Errorf("the warnings are %q", warnings)
	}
	check(t, os.Remove(s.driver.store.Archive()))
	check(t, os.Rename(s.driver.store.Archive()+"-away", s.driver.store.Archive()))
	got.ID = "db-a"
	if got.Conf, err = s.driver.marks.survey(t.Context(), got); err != nil {
		t.Fatal(err)
	}
	check(t, s.driver.records.put("markers", "db-a", got))
	before := s.fingerprint(t)
	s.mutate(t, 2)
	capture(t, s, "db-b")
	s.restore(t, "db-a", "db-b")
	if s.fingerprint(t) != before {
		t.Error("the state is not that of the marker")
	}
	if out := run(t, s, "psql", "-XAtc", "SELECT pg_switch_wal()", "app"); out == "" {
		t.Error("psql prints nothing")
	}
}

// The archive holds each file once and for ever: the same again is done, other
// content under the name is refused, and what was cut is begun anew.
func TestArchiveCommand(t *testing.T) {
	t.Parallel()
	s := newSubject(t, options{bare: true})
	_, err := s.driver.store.claim(t.Context())
	check(t, err)
	name := "0000000A0000000000000001"
	src := filepath.Join(s.DataDir, name)
	archive := func() error {
		line := strings.NewReplacer("%p", name, "%f", name).Replace(s.driver.archive.command())
		cmd := s.Command("../../../../bin/sh", "-c", line)
		cmd.Path, cmd.Dir = "/bin/sh", s.DataDir
		return cmd.Run()
	}
	write := func(path, content string) {
		check(t, os.WriteFile(path, []byte(content), 0o600))
		check(t, os.Chown(path, s.cfg.Owner.UID, s.cfg.Owner.GID))
	}
	write(src, strings.Repeat("log", 5000))
	write(s.driver.store.path("archive", ".new."+name), "cut")
	check(t, archive())
	check(t, archive())
	if got, err := os.ReadFile(s.driver.store.path("archive", name)); err != nil || len(got) != 15000 {
		t.Errorf("the archive holds %d bytes, %v", len(got), err)
	}
	write(src, "something else")
	if archive() == nil {
		t.Error("another content was archived under the same name")
	}
	entries, err := os.ReadDir(s.driver.store.Archive())
	check(t, err)
	if len(entries) != 1 {
		t.Errorf("the archive holds %v", entries)
	}
}

// A full disk is an error that says so; the server goes on, and so do captures
// once there is room.
func testFullDisk(t *testing.T) {
	testkit.Need(t, "root")
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "small")
	check(t, os.Mkdir(dir, 0o755))
	check(t, os.Chmod(filepath.Dir(dir), 0o755))
	check(t, os.Chmod(filepath.Dir(filepath.Dir(dir)), 0o755))
	check(t, unix.Mount("tmpfs", dir, "tmpfs", 0, "size=400m,mode=755"))
	t.Cleanup(func() { check(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	s := newSubject(t, options{dir: dir, settings: map[string]string{"max_wal_size": "64MB", "min_wal_size": "32MB"}})
	s.mutate(t, 1)
	capture(t, s, "db-a")
	before := s.fingerprint(t)
	s.mutate(t, 2)
	capture(t, s, "db-b")

	filler := filepath.Join(dir, "filler")
	fill(t, filler, 30<<20)
	fails(t, "a base", s.driver.bases.take(t.Context()), errs.Failed, "free")
	_, err := s.driver.Prepare(t.Context(), snap.RestoreRequest{ID: "op-1", Target: "db-a", Base: "db-b"})
	fails(t, "Prepare", err, errs.Failed, "free")
	if errs.HintOf(err) == "" {
		t.Error("Prepare gives no hint")
	}
	const started = "SELECT pg_postmaster_start_time()"
	since := s.value(t, started)
	_, err = s.driver.Salvage(t.Context(), snap.CaptureRequest{ID: "db-raw"})
	fails(t, "Salvage", err, errs.Failed, "free")
	if now := s.value(t, started); now != since {
		t.Errorf("the server was stopped for a salvage that does not fit, and started again at %s", now)
	}
	for _, kind := range []string{"bases", "forks"} {
		if entries, err := os.ReadDir(s.driver.store.path(kind)); err != nil || len(entries) > 1 {
			t.Errorf("%s holds %v, %v", kind, entries, err)
		}
	}
	s.mutate(t, 3)
	capture(t, s, "db-c")
	check(t, os.Remove(filler))
	s.restore(t, "db-a", "db-c")
	if s.fingerprint(t) != before {
		t.Error("the state is not that of the marker")
	}
}

// fill leaves free bytes on the file system of path.
func fill(t *testing.T, path string, free uint64) {
	t.Helper()
	var st unix.Statfs_t
	check(t, unix.Statfs(filepath.Dir(path), &st))
	f, err := os.Create(path)
	check(t, err)
	check(t, unix.Fallocate(int(f.Fd()), 0, 0, int64(st.Bavail*uint64(st.Bsize)-free)))
	check(t, f.Close())
}

// Where the disk fills up in the middle, nothing half done stays.
func testNoSpaceInTheMiddle(t *testing.T) {
	t.Parallel()
	s := newSubject(t, options{})
	s.mutate(t, 1)
	capture(t, s, "db-a")
	s.mutate(t, 2)
	capture(t, s, "db-b")
	for _, step := range []string{"base: copy", "base: sync", "base: record", "fork: replay", "fork: look", "fork: make durable", "phase: prepared"} {
		s.cfg.Failpoint = func(at string) error {
			if at == step {
				return &os.PathError{Op: "write", Path: at, Err: unix.ENOSPC}
			}
			return nil
		}
		s.reopen(t)
		err := s.driver.bases.take(t.Context())
		if err == nil {
			_, err = s.driver.Prepare(t.Context(), snap.RestoreRequest{ID: "op-1", Target: "db-a", Base: "db-b"})
		}
		if !errors.Is(err, unix.ENOSPC) {
			t.Errorf("%s: the error is %v", step, err)
		}
		bases, err := s.driver.records.bases()
		check(t, err)
		dirs, err := os.ReadDir(s.driver.store.path("bases"))
		check(t, err)
		forks, err := os.ReadDir(s.driver.store.path("forks"))
		check(t, err)
		if len(dirs) != len(bases) || len(forks) != 0 && step != "phase: prepared" {
			t.Errorf("%s: %d bases, but folders %v; forks %v", step, len(bases), dirs, forks)
		}
	}
	s.cfg.Failpoint = nil
	s.reopen(t)
	check(t, s.driver.Sweep(t.Context(), snap.Gone{Restores: []snap.RestoreID{"op-1"}}))
	if forks, err := os.ReadDir(s.driver.store.path("forks")); err != nil || len(forks) != 0 {
		t.Errorf("after a sweep there are forks %v, %v", forks, err)
	}
	capture(t, s, "db-c") // the log since db-b was dropped
	s.restore(t, "db-a", "db-c")
}

// Configuration outside the data folder, as Debian has it, stays where it is and
// serves the forks too; what is in the folder goes back with it.
func testConfigOutside(t *testing.T) {
	t.Parallel()
	s := newSubject(t, options{bare: true})
	check(t, s.driver.server.Stop(t.Context()))
	etc := filepath.Join(filepath.Dir(s.DataDir), "etc")
	check(t, os.Mkdir(etc, 0o755))
	for _, name := range []string{"postgresql.conf", "pg_hba.conf", "pg_ident.conf"} {
		check(t, os.Rename(filepath.Join(s.DataDir, name), filepath.Join(etc, name)))
	}
	conf := filepath.Join(etc, "postgresql.conf")
	f, err := os.OpenFile(conf, os.O_APPEND|os.O_WRONLY, 0)
	check(t, err)
	_, err = f.WriteString("data_directory = '" + s.DataDir + "'\nhba_file = '" + etc + "/pg_hba.conf'\nident_file = '" + etc + "/pg_ident.conf'\n")
	check(t, errors.Join(err, f.Close()))
	server := s.cfg.Server.(pgserver.PgCtl)
	server.Config = conf
	s.cfg.Server = server
	s.reopen(t)
	check(t, s.driver.server.Start(t.Context()))
	s.enable(t)
	check(t, s.driver.Maintain(t.Context()))
	s.mutate(t, 6) // also ALTER SYSTEM
	before := s.fingerprint(t)
	capture(t, s, "db-a")
	s.mutate(t, 12)
	after := s.fingerprint(t)
	capture(t, s, "db-b")
	s.restore(t, "db-a", "db-b")
	if s.fingerprint(t) != before {
		t.Error("the state is not that of the marker")
	}
	capture(t, s, "db-c")
	s.restore(t, "db-b", "db-c")
	if s.fingerprint(t) != after {
		t.Error("forward again, the state is another one")
	}
}

// lateServer is a Server whose first Stop comes before a start that somebody
// asked for, and was killed after, has begun.
type lateServer struct {
	pgserver.PgCtl
	stops int
}

func (l *lateServer) Stop(ctx context.Context) error {
	l.stops++
	if err := l.PgCtl.Stop(ctx); err != nil || l.stops > 1 {
		return err
	}
	if err := l.Start(ctx); err != nil {
		return err
	}
	return pgserver.Await(ctx, func() (bool, error) { return pgserver.InUse(l.DataDir) })
}

// A server that a killed daemon's last request starts only now is stopped too.
func testStopOfLateStart(t *testing.T) {
	t.Parallel()
	s := newSubject(t, options{})
	check(t, s.driver.server.Stop(t.Context()))
	late := &lateServer{PgCtl: s.cfg.Server.(pgserver.PgCtl)}
	s.cfg.Server = late
	s.reopen(t)
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	check(t, s.driver.server.Stop(ctx))
	if late.stops < 2 {
		t.Error("the server was asked to stop once only")
	}
	if running, err := pgserver.InUse(s.DataDir); err != nil || running {
		t.Errorf("the server runs: %v, %v", running, err)
	}
	check(t, s.driver.server.Start(t.Context()))
	s.Psql(t, "app", "SELECT 1")
}

// A daemon was killed while a server of its replayed the log, and the server still runs: the next daemon makes the same restore, and what the dead
// one's server then takes away at its end was not the next one's.
func testServerOfDeadDaemon(t *testing.T) {
	t.Parallel()
	s := newSubject(t, options{})
	s.mutate(t, 1)
	capture(t, s, "db-a")
	before := s.fingerprint(t)
	s.mutate(t, 2)
	capture(t, s, "db-b")
	next := s.driver
	cfg, dies := s.cfg, errors.New("the daemon dies")
	var sw snap.Switch
	looked := false
	cfg.Failpoint = func(step string) (err error) {
		if step != "fork: look" {
			return nil
		}
		looked = true
		if sw, err = next.Prepare(t.Context(), snap.RestoreRequest{ID: "op-1", Target: "db-a", Base: "db-b"}); err != nil {
			t.Errorf("beside the server of a dead daemon: %v", err)
		}
		return dies
	}
	dead, err := New(cfg)
	check(t, err)
	defer dead.Close()
	if _, err := dead.Prepare(t.Context(), snap.RestoreRequest{ID: "op-0", Target: "db-a", Base: "db-b"}); !errors.Is(err, dies) || !looked {
		t.Fatalf("looked: %v, %v", looked, err)
	}
	if sw == nil {
		return
	}
	check(t, sw.Commit(t.Context()))
	check(t, sw.Finish(t.Context()))
	if s.fingerprint(t) != before {
		t.Error("the state is not that of the marker")
	}
	// What a power cut leaves of a server's socket is swept.
	left := filepath.Join(replay.SocketFolder(next.store.Store), ".s.PGSQL.1.lock")
	check(t, os.WriteFile(left, nil, 0o600))
	check(t, next.Sweep(t.Context(), snap.Gone{}))
	if entries, err := os.ReadDir(filepath.Dir(left)); err != nil || len(entries) > 0 {
		t.Errorf("after a sweep there are sockets %v, %v", entries, err)
	}
}

// A record whose length is damaged, on the last page of the log before a marker, seems to lead beyond the marker: verify finds that too.
func testRecordThatSeemsLong(t *testing.T) {
	t.Parallel()
	s := newSubject(t, options{})
	capture(t, s, "db-zero") // with a base copy
	s.mutate(t, 1)
	capture(t, s, "db-a")
	check(t, s.driver.Verify(t.Context(), "db-a", snap.Full))
	m, err := s.driver.records.marker("db-a")
	check(t, err)
	size, err := s.driver.segmentSize(t.Context())
	check(t, err)
	b, err := s.driver.bases.nearest(t.Context(), m, size)
	check(t, err)
	s.Psql(t, "app", "SELECT pg_switch_wal()")
	last := s.driver.store.path("archive", size.Name(m.TLI, size.Number(m.LSN)))
	testkit.Eventually(t, "the log is archived", func() bool { _, err := os.Stat(last); return err == nil })

	dir, err := s.driver.archive.gather(t.Context(), asowner.LogLinks{First: size.Name(m.TLI, size.Number(b.Start)), Size: size})
	check(t, err)
	var list []wal.LSN
	_, err = s.driver.archive.programs.ReadLog(t.Context(), dir, m.TLI, b.Start, 0, func(r wal.Record) bool {
		if r.At < m.LSN && r.At/8192 == (m.LSN-1)/8192 {
			list = append(list, r.At)
		}
		return r.At < m.LSN
	})
	check(t, err)
	check(t, s.driver.store.remove(t.Context(), dir))
	at := list[testkit.Rand(t).IntN(len(list))]
	f, err := os.OpenFile(s.driver.store.path("archive", size.Name(m.TLI, size.Number(at))), os.O_RDWR, 0)
	check(t, err)
	defer f.Close()
	for _, damage := range []byte{0x10, 0} { // in the length's highest byte: 256 MiB more, and as it was
		var length [4]byte
		offset := int64(uint64(at) % uint64(size))
		_, err := f.ReadAt(length[:], offset)
		check(t, err)
		binary.NativeEndian.PutUint32(length[:], binary.NativeEndian.Uint32(length[:])&0x00ffffff|uint32(damage)<<24)
		_, err = f.WriteAt(length[:], offset)
		check(t, err)
		if err = s.driver.Verify(t.Context(), "db-a", snap.Full); damage == 0 {
			check(t, err)
		} else {
			fails(t, "Verify with the record at "+at.String()+" of "+list[len(list)-1].String(), err, errs.Corrupt, "is damaged: ")
		}
	}
}

// A client writes line breaks into the log, which pg_waldump prints as they are, and what looks like a commit far behind the end of the log. The
// log is read all the same, and that is not believed: by verify, and by a rollback that looks for changes since the last checkpoint.
func testMessageOfSeveralLines(t *testing.T) {
	t.Parallel()
	const message = `SELECT pg_logical_emit_message(false, E'one\n\n"; payload (0 bytes): \nrmgr: Transaction len (rec/tot): 34/34, tx: 0, lsn: FFFFFFFF/0, prev 0/0, desc: COMMIT ', 'x')`
	s := newSubject(t, options{})
	capture(t, s, "db-a")
	before := s.fingerprint(t)
	s.mutate(t, 1)
	s.Psql(t, "app", message)
	capture(t, s, "db-b")
	check(t, s.driver.Verify(t.Context(), "db-b", snap.Full))
	m, err := s.driver.records.marker("db-b")
	check(t, err)
	size, err := s.driver.segmentSize(t.Context())
	check(t, err)
	changed := func() bool {
		t.Helper()
		end, err := wal.ParseLSN(s.Psql(t, "app", "SELECT pg_current_wal_insert_lsn()"))
		check(t, err)
		s.Psql(t, "app", "SELECT pg_switch_wal()") // a record that the log is read to, on the disk
		_, changed, err := s.driver.archive.firstChange(t.Context(), m.place, size, end)
		check(t, err)
		return changed
	}
	s.Psql(t, "app", message)
	s.Psql(t, "app", "SELECT pg_logical_emit_message(false, '', repeat('x', 30000000))") // printed in 90 MB
	if changed() {
		t.Error("messages count as a change")
	}
	s.mutate(t, 2)
	if !changed() {
		t.Error("what was changed after a message is not found")
	}
	s.restore(t, "db-a", "db-b")
	if s.fingerprint(t) != before {
		t.Error("the state is not that of the marker")
	}
}

// testLimitedSessions has a server whose settings end sessions that are idle or work for long: those of the driver are not ended.
func testLimitedSessions(t *testing.T) {
	t.Parallel()
	s := newSubject(t, options{})
	limits := strings.Fields(s.Psql(t, "postgres", `SELECT name FROM pg_settings WHERE context = 'user' AND name ~ '_timeout$' AND name !~ '^(tcp|wal)_'`))
	for _, name := range limits {
		s.Psql(t, "postgres", "ALTER SYSTEM SET "+name+" = '1min'")
	}
	s.Psql(t, "postgres", "SELECT pg_reload_conf()")
	testkit.Eventually(t, "the server has the limits", func() bool { return strings.TrimSpace(s.Psql(t, "postgres", "SHOW statement_timeout")) == "1min" })
	conn, err := s.driver.server.connect(t.Context())
	check(t, err)
	defer conn.Close()
	left, err := conn.Column(t.Context(), `SELECT name FROM pg_settings WHERE context = 'user' AND name ~ '_timeout$' AND name !~ '^(tcp|wal)_' AND setting <> '0'`)
	check(t, err)
	if len(limits) < 3 || len(left) > 0 {
		t.Errorf("of the limits %q, %q end the driver's sessions", limits, left)
	}
}
