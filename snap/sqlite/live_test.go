package sqlite

import (
	"bufio"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/filetime"
	"mulligan/snap/snaptest"
	"mulligan/testkit"
)

// write is a process that writes without pause, until its input ends. Before
// and after each transaction it tells the transaction's number. Each moves
// money between two tables whose sum stays, and rewrites much of the rest.
func write(arg string) {
	var path string
	must(json.Unmarshal([]byte(arg), &path))
	go func() {
		_, _ = bufio.NewReader(os.Stdin).ReadByte()
		os.Exit(0)
	}()
	db := open(path)
	for n := 1; ; n++ {
		fmt.Println(n)
		must(transfer(db, n))
		fmt.Println(-n)
	}
}

// transfer is one transaction; a capture may keep it from its lock for a while.
func transfer(db *sql.DB, n int) error {
	tx, err := db.Begin()
	if err != nil {
		return err
	}
	for _, q := range []string{
		fmt.Sprintf("UPDATE a SET v = v - %d WHERE k = %d", n, n%50),
		fmt.Sprintf("UPDATE filler SET v = randomblob(%d) WHERE k %% 10 = %d", 1000+n%5000, n%10),
		fmt.Sprintf("UPDATE b SET v = v + %d WHERE k = %d", n, n%50),
		fmt.Sprintf("UPDATE counter SET n = %d", n),
	} {
		if _, err := tx.Exec(q); err != nil {
			return err
		}
	}
	return tx.Commit()
}

// Captures of a database under load are states between two transactions: no
// later than the end of the capture, and with all that was acknowledged before it.
// Each of them can be gone back to, and forward from, in any order.
func TestCaptureUnderLoad(t *testing.T) {
	for _, mode := range []string{"DELETE", "PERSIST", "WAL"} {
		t.Run(mode, func(t *testing.T) {
			s := newSubject(t, startClient(t), mode)
			s.client.do(t, order{Path: s.path(), SQL: []string{
				"PRAGMA journal_mode=" + mode,
				"CREATE TABLE a(k INTEGER PRIMARY KEY, v INT)", "CREATE TABLE b(k INTEGER PRIMARY KEY, v INT)",
				"CREATE TABLE filler(k INTEGER PRIMARY KEY, v BLOB)", "CREATE TABLE counter(n INT)", "INSERT INTO counter VALUES(0)",
				"WITH RECURSIVE c(i) AS (SELECT 0 UNION ALL SELECT i+1 FROM c WHERE i < 499) INSERT INTO filler SELECT i, randomblob(4000) FROM c",
				"INSERT INTO a SELECT k, 1000 FROM filler WHERE k < 50", "INSERT INTO b SELECT k, 1000 FROM filler WHERE k < 50",
			}})
			begun, done, stop := startWriter(t, s.path())
			want := map[snap.SnapshotID]string{}
			captures, visits := 6, 2
			if snaptest.Long() {
				captures, visits = 12, 12
			}
			for i := range captures {
				reached := done.Load() + 5
				for done.Load() < reached {
					if t.Context().Err() != nil {
						t.Fatal("the writer stands still")
					}
					time.Sleep(time.Millisecond) // waits for progress, whenever that comes
				}
				id := snap.SnapshotID(fmt.Sprintf("db-%d", i))
				want[id] = captureUnderLoad(t, s, id, begun, done)
			}
			stop()
			for i, n := range testkit.Rand(t).Perm(captures)[:visits] {
				id, base := snap.SnapshotID(fmt.Sprintf("db-%d", n)), snap.SnapshotID(fmt.Sprintf("before-%d", i))
				before := s.logical(t, s.path())
				s.restore(t, id, base)
				if got := s.logical(t, s.path()); got != want[id] {
					t.Errorf("%s was %s and comes back as %s", id, want[id], got)
				}
				s.restore(t, base, base+"-again")
				if got := s.logical(t, s.path()); got != before {
					t.Errorf("%s was %s and comes back as %s", base, before, got)
				}
				s.restore(t, id, base+"-last")
				s.client.do(t, order{Path: s.path(), SQL: []string{"UPDATE filler SET v = x'00'"}})
			}
		})
	}
}

// restore takes the live state to a snapshot, having captured it as base.
func (s *subject) restore(t *testing.T, target, base snap.SnapshotID) {
	t.Helper()
	_, err := s.driver.Capture(t.Context(), snap.CaptureRequest{ID: base, Quiesced: true})
	check(t, err)
	sw, err := s.driver.Prepare(t.Context(), snap.RestoreRequest{ID: "op-" + snap.RestoreID(base), Target: target, Base: base})
	check(t, err)
	check(t, sw.Commit(t.Context()))
	proof, err := sw.Check(t.Context())
	check(t, err)
	if !proof.Match {
		t.Fatalf("the proof does not match: %+v", proof)
	}
	check(t, sw.Finish(t.Context()))
}

// captureUnderLoad makes a snapshot, checks what it holds, and gives a digest of that.
func captureUnderLoad(t *testing.T, s *subject, id snap.SnapshotID, begun, done *atomic.Int64) string {
	t.Helper()
	least := done.Load()
	_, err := s.driver.Capture(t.Context(), snap.CaptureRequest{ID: id})
	check(t, err)
	most := begun.Load()
	db := open(contentOf(t, s, id))
	defer db.Close()
	var sum, n int64
	var integrity string
	check(t, db.QueryRow("SELECT (SELECT sum(v) FROM a) + (SELECT sum(v) FROM b), (SELECT n FROM counter)").Scan(&sum, &n))
	check(t, db.QueryRow("PRAGMA integrity_check").Scan(&integrity))
	if sum != 100*1000 || integrity != "ok" {
		t.Errorf("%s is torn: the sum is %d, integrity: %s", id, sum, integrity)
	}
	if n < least || n > most {
		t.Errorf("%s holds transaction %d; %d was acknowledged before, %d begun after", id, n, least, most)
	}
	return dump(t, db)
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

// startWriter gives the numbers of the newest transaction begun and the newest
// acknowledged, and what ends the writer.
func startWriter(t *testing.T, path string) (begun, done *atomic.Int64, stop func()) {
	t.Helper()
	cmd := command(t, "writer", path)
	in, err := cmd.StdinPipe()
	check(t, err)
	out, err := cmd.StdoutPipe()
	check(t, err)
	check(t, cmd.Start())
	begun, done = &atomic.Int64{}, &atomic.Int64{}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			var n int64
			if _, err := fmt.Sscan(lines.Text(), &n); err != nil {
				return
			}
			if n > 0 {
				begun.Store(n)
			} else {
				done.Store(-n)
			}
		}
	}()
	stop = sync.OnceFunc(func() {
		check(t, in.Close())
		<-ended
		check(t, cmd.Wait())
	})
	t.Cleanup(stop)
	return begun, done, stop
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
