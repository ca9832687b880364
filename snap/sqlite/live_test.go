package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/filetime"
	"mulligan/snap/snaptest"
	"mulligan/testkit"
)

// write is a process that writes without pause. Each transaction moves money between two tables whose sum
// stays, and rewrites some of the rest.
func write(arg string) {
	var path string
	must(json.Unmarshal([]byte(arg), &path))
	db := open(path)
	must(snaptest.Write(func(n int64) error { return transfer(db, n) }))
}

// transfer is one transaction; a capture may keep it from its lock for a while.
func transfer(db *sql.DB, n int64) error {
	tx, err := db.Begin()
	if err != nil {
		return err
	}
	for _, q := range []string{
		fmt.Sprintf("UPDATE a SET v = v - %d WHERE k = %d", n, n%50),
		fmt.Sprintf("UPDATE filler SET v = randomblob(%d) WHERE k %% 100 = %d", 1000+n%5000, n%100),
		fmt.Sprintf("UPDATE b SET v = v + %d WHERE k = %d", n, n%50),
		fmt.Sprintf("UPDATE counter SET n = %d", n),
	} {
		if _, err := tx.Exec(q); err != nil {
			return err
		}
	}
	return tx.Commit()
}

// writable is a subject that a client writes to.
type writable struct{ *subject }

func (s writable) Writer(t *testing.T) *exec.Cmd { return command(t, "writer", s.path()) }

// Written checks the sum of the two tables, and what SQLite itself says of the file.
func (s writable) Written(t *testing.T) int64 {
	t.Helper()
	db := open(s.path())
	defer db.Close()
	var sum, n int64
	var integrity string
	check(t, db.QueryRow("SELECT (SELECT sum(v) FROM a) + (SELECT sum(v) FROM b), (SELECT n FROM counter)").Scan(&sum, &n))
	check(t, db.QueryRow("PRAGMA integrity_check").Scan(&integrity))
	if sum != 100*1000 || integrity != "ok" {
		t.Fatalf("the state is torn: the sum is %d, integrity: %s", sum, integrity)
	}
	return n
}

func (s writable) Wreck(t *testing.T, seed int64) {
	t.Helper()
	wrecks := []string{"UPDATE filler SET v = x'00'", "DROP TABLE a", "DELETE FROM counter"}
	s.client.do(t, order{Path: s.path(), SQL: []string{wrecks[uint64(seed)%uint64(len(wrecks))]}})
}

func testUnderLoad(t *testing.T) {
	for _, mode := range []string{"DELETE", "PERSIST", "WAL"} {
		t.Run(mode, func(t *testing.T) {
			s := newSubject(t, startClient(t), mode)
			s.cfg.BusyTimeout = testkit.Patience // on a slow disk the writer leaves few moments to others
			s.Reopen(t)
			s.client.do(t, order{Path: s.path(), SQL: []string{
				"PRAGMA journal_mode=" + mode,
				"CREATE TABLE a(k INTEGER PRIMARY KEY, v INT)", "CREATE TABLE b(k INTEGER PRIMARY KEY, v INT)",
				"CREATE TABLE filler(k INTEGER PRIMARY KEY, v BLOB)", "CREATE TABLE counter(n INT)", "INSERT INTO counter VALUES(0)",
				"WITH RECURSIVE c(i) AS (SELECT 0 UNION ALL SELECT i+1 FROM c WHERE i < 499) INSERT INTO filler SELECT i, randomblob(4000) FROM c",
				"INSERT INTO a SELECT k, 1000 FROM filler WHERE k < 50", "INSERT INTO b SELECT k, 1000 FROM filler WHERE k < 50",
			}})
			snaptest.RunUnderLoad(t, writable{s})
		})
	}
}

// contentOf writes a snapshot's content to a file of its own.
func contentOf(t testing.TB, s *subject, id snap.SnapshotID) string {
	t.Helper()
	root, err := s.cfg.Store.Root(s.driver.records.SnapshotRoot(id))
	check(t, err)
	stored, err := load(s.cfg.Store, root.Hash)
	check(t, err)
	path := filepath.Join(t.TempDir(), string(id))
	f, err := os.Create(path)
	check(t, err)
	check(t, stored.writeTo(context.Background(), f))
	check(t, f.Close())
	return path
}

// While a capture reads, writers go on, even to begin the log anew over what
// the capture was about to read: then it reads again.
func TestLogBegunAnew(t *testing.T) {
	holder, writer := startClient(t), startClient(t)
	s := newSubject(t, writer, "WAL")
	writer.do(t, order{Path: s.path(), SQL: []string{"PRAGMA journal_mode=WAL", "CREATE TABLE n(n INT)", "INSERT INTO n VALUES(0)"}})
	holder.do(t, order{Path: s.path(), Hold: true, SQL: []string{"SELECT count(*) FROM n"}})
	writer.do(t, order{Path: s.path(), SQL: []string{"UPDATE n SET n = 1", "UPDATE kv SET v = randomblob(9000)", "PRAGMA wal_checkpoint(FULL)"}})
	reads := 0
	s.cfg.Failpoint = func(step string) error {
		if step == "capture: read" {
			reads++
			writer.do(t, order{Path: s.path(), SQL: []string{fmt.Sprintf("UPDATE n SET n = %d", 10*reads)}})
		}
		return nil
	}
	s.Reopen(t)
	_, err := s.capture(t, "db-1")
	check(t, err)
	db := open(contentOf(t, s, "db-1"))
	defer db.Close()
	var n int
	check(t, db.QueryRow("SELECT n FROM n").Scan(&n))
	// The second reading began after the first write, and before its own.
	if reads != 2 || n != 10 {
		t.Errorf("read %d times, and captured %d", reads, n)
	}
}

// TestCheckpointBeforeTheLock: what a checkpoint writes to the database file, until a capture holds the checkpointer's lock, is in the capture.
func TestCheckpointBeforeTheLock(t *testing.T) {
	holder, writer := startClient(t), startClient(t)
	s := newSubject(t, writer, "WAL")
	writer.do(t, order{Path: s.path(), SQL: []string{"PRAGMA journal_mode=WAL", "CREATE TABLE grown(v BLOB)"}})
	holder.do(t, order{Path: s.path(), Hold: true, SQL: []string{"SELECT count(*) FROM grown"}})
	writes := 0
	s.cfg.Failpoint = func(step string) error {
		if step == "log: hold still" {
			writes++
			writer.do(t, order{Path: s.path(), SQL: []string{"INSERT INTO grown VALUES(randomblob(1 << 20))", "PRAGMA wal_checkpoint(TRUNCATE)"}})
		}
		return nil
	}
	s.Reopen(t)
	_, err := s.capture(t, "db-1")
	check(t, err)
	db := open(contentOf(t, s, "db-1"))
	defer db.Close()
	var integrity string
	var grown int
	check(t, db.QueryRow("PRAGMA integrity_check").Scan(&integrity))
	if integrity != "ok" {
		t.Fatalf("the capture is damaged: %s", integrity)
	}
	check(t, db.QueryRow("SELECT count(*) FROM grown").Scan(&grown))
	if grown != writes || writes == 0 {
		t.Errorf("the capture has %d rows of the %d that were written before the lock", grown, writes)
	}
}

// TestCommitWhileTheLogIsMeasured: a transaction that is appended to the log while a capture measures it is in the capture, or the base is stale.
func TestCommitWhileTheLogIsMeasured(t *testing.T) {
	holder, writer := startClient(t), startClient(t)
	s := newSubject(t, writer, "WAL")
	writer.do(t, order{Path: s.path(), SQL: []string{
		"PRAGMA journal_mode=WAL", "CREATE TABLE n(n INT)", "INSERT INTO n VALUES(0)",
		fmt.Sprintf("INSERT INTO kv(v) VALUES(randomblob(%d))", mapCheck), // from this size on, the files' identity is believed
	}})
	holder.do(t, order{Path: s.path(), Hold: true, SQL: []string{"SELECT count(*) FROM n"}})
	s.awaitReliableTimes(t)
	writes := 0
	s.cfg.Failpoint = func(step string) error {
		if step != "log: measure" || writes > 0 {
			return nil
		}
		writes++
		writer.do(t, order{Path: s.path(), SQL: []string{"UPDATE n SET n = 1"}})
		testkit.Eventually(t, "the log's times can be told from a later write's", func() bool {
			var st unix.Stat_t
			check(t, unix.Stat(s.path()+"-wal", &st))
			return newFileID(st).Distinct
		})
		return nil
	}
	s.Reopen(t)
	_, err := s.capture(t, "db-1")
	check(t, err)
	sw, err := s.driver.Prepare(t.Context(), snap.RestoreRequest{ID: "op-1", Target: "db-1", Base: "db-1"})
	check(t, err)
	stale, err := sw.Stale(t.Context())
	check(t, err)
	db := open(contentOf(t, s, "db-1"))
	defer db.Close()
	var n int
	check(t, db.QueryRow("SELECT n FROM n").Scan(&n))
	if writes != 1 || n != 1 && !stale {
		t.Errorf("%d transactions were written, the capture has n = %d, and it is stale: %v", writes, n, stale)
	}
}

// BenchmarkCapture captures a database of 256 MiB: for the first time, after a
// small change that is in the database file, after one that is in the log, and unchanged.
func BenchmarkCapture(b *testing.B) {
	for kind, write := range map[string][]string{
		"first":     nil,
		"file":      {"PRAGMA journal_mode=DELETE", "UPDATE kv SET n = n + 1 WHERE k = 500"},
		"log":       {"PRAGMA journal_mode=WAL", "PRAGMA wal_autocheckpoint=0", "UPDATE kv SET n = n + 1 WHERE k = 500"},
		"unchanged": {"SELECT 1"},
	} {
		b.Run(kind, func(b *testing.B) {
			d, path := benchmarkDriver(b)
			db := open(path)
			defer db.Close()
			b.SetBytes(256 << 20)
			for i := -2; b.Loop(); i++ {
				b.StopTimer()
				if kind != "first" && i == -2 { // two, so that one of them is settled
					benchmarkCapture(b, d, i)
					time.Sleep(filetime.Coarsest + 2*filetime.Tick)
					benchmarkCapture(b, d, i+1)
				}
				for _, q := range write {
					_, err := db.Exec(q)
					check(b, err)
				}
				b.StartTimer()
				benchmarkCapture(b, d, i+2)
			}
		})
	}
}

func benchmarkCapture(b *testing.B, d *Driver, i int) {
	b.Helper()
	_, err := d.Capture(b.Context(), snap.CaptureRequest{ID: snap.SnapshotID(fmt.Sprintf("db-%d", i))})
	check(b, err)
}

func benchmarkDriver(b *testing.B) (*Driver, string) {
	b.Helper()
	dir := b.TempDir()
	check(b, os.Mkdir(filepath.Join(dir, "app"), 0o755))
	store, err := cas.Open(filepath.Join(dir, "store"), cas.Options{})
	check(b, err)
	b.Cleanup(func() { check(b, store.Close()) })
	path := filepath.Join(dir, "app", "app.db")
	db := open(path)
	_, err = db.Exec("CREATE TABLE kv(k INTEGER PRIMARY KEY, n INT, v BLOB)")
	check(b, err)
	_, err = db.Exec("WITH RECURSIVE c(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM c WHERE i < 4096) INSERT INTO kv SELECT i, 0, randomblob(65000) FROM c")
	check(b, err)
	check(b, db.Close())
	d, err := New(Config{App: "app-1", Name: "main", Dir: filepath.Join(dir, "app"), Path: "app.db", StateDir: filepath.Join(dir, "state"), Store: store})
	check(b, err)
	return d, path
}
