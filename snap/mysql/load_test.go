package mysql

import (
	"bufio"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	client "github.com/go-sql-driver/mysql"

	"mulligan/snap"
	"mulligan/snap/snaptest"
	"mulligan/testkit"
)

// open is a client's own connection, not the driver's.
func open(socket, db string) *sql.DB {
	cfg := client.NewConfig()
	cfg.User, cfg.Net, cfg.Addr, cfg.DBName, cfg.Logger = "root", "unix", socket, db, &client.NopLogger{}
	c, err := client.NewConnector(cfg)
	must(err)
	return sql.OpenDB(c)
}

// write is a client in a process of its own, which says what it begins and what is done.
func write(arg string) {
	var at [2]string
	must(json.Unmarshal([]byte(arg), &at))
	db := open(at[0], at[1])
	for n := 1; ; n++ {
		fmt.Println("begun", n)
		tx, err := db.Begin()
		must(err)
		for _, q := range []string{"UPDATE counter SET n = n + 1", fmt.Sprintf("INSERT INTO log VALUES (%d, REPEAT('x', %d))", n, n%900),
			fmt.Sprintf("INSERT INTO loose VALUES (%d, 'load')", n), fmt.Sprintf("REPLACE INTO last VALUES (%d, %d)", n%50, n)} {
			_, err := tx.Exec(q)
			must(err)
		}
		must(tx.Commit())
		fmt.Println("done", n)
	}
}

// writer is such a process, as the test sees it.
type writer struct {
	cmd         *exec.Cmd
	begun, done atomic.Int64
	end         sync.WaitGroup
}

func startWriter(t *testing.T, s *subject) *writer {
	t.Helper()
	s.sql(t, s.db, "CREATE TABLE counter (n INT); INSERT INTO counter VALUES (0); CREATE TABLE log (n INT PRIMARY KEY, x TEXT); CREATE TABLE last (a INT PRIMARY KEY, n INT)")
	w := &writer{cmd: command(t, "writer", [2]string{s.socket(), s.db})}
	out, err := w.cmd.StdoutPipe()
	check(t, err)
	check(t, w.cmd.Start())
	w.end.Go(func() {
		for lines := bufio.NewScanner(out); lines.Scan(); {
			word, n := "", int64(0)
			fmt.Sscan(lines.Text(), &word, &n)
			if word == "begun" {
				w.begun.Store(n)
			} else {
				w.done.Store(n)
			}
		}
	})
	t.Cleanup(w.stop)
	return w
}

func (w *writer) stop() {
	if w.cmd.ProcessState == nil {
		_ = w.cmd.Process.Kill()
		w.end.Wait()
		_ = w.cmd.Wait()
	}
}

// count checks that the writer's tables agree with each other, and says how far it got.
func (s *subject) count(t *testing.T) (n int64) {
	t.Helper()
	var rows, top, loose, last int64
	_, err := fmt.Sscan(s.sql(t, s.db, "SELECT n, (SELECT COUNT(*) FROM log), (SELECT MAX(n) FROM log), (SELECT COUNT(*) FROM loose WHERE b LIKE 'load%'), (SELECT MAX(n) FROM last) FROM counter"), &n, &rows, &top, &loose, &last)
	check(t, err)
	if rows != n || top != n || loose != n || last != n {
		t.Fatalf("torn: the counter is %d, the log has %d up to %d, loose %d, last %d", n, rows, top, loose, last)
	}
	return n
}

// Captured while a second process writes, and restored in any order, each
// state is that of its moment: what was done before is there, what began after is not. One
// run is with a log of the server's, the next without.
func TestUnderLoad(t *testing.T) {
	logs := [][]string{{"--log-bin=log"}, nil}
	for _, i := range testkit.Sample(t, "servers", len(logs), 1) {
		args := logs[i]
		t.Run(fmt.Sprint(args), func(t *testing.T) {
			t.Parallel()
			underLoad(t, newSubject(t, ownServer(t, args...)), len(args) > 0)
		})
	}
}

func underLoad(t *testing.T, s *subject, logged bool) {
	w := startWriter(t, s)
	type moment struct {
		snap.Snapshot
		from, to, n int64
		dump        string
	}
	var all []*moment
	captures := 6
	if snaptest.Long() {
		captures = 12
	}
	for i := range captures {
		testkit.Eventually(t, "the writer goes on", func() bool { return w.done.Load() > int64(20*i) })
		m := &moment{from: w.done.Load()}
		var err error
		m.Snapshot, err = s.driver.Capture(t.Context(), snap.CaptureRequest{ID: snap.SnapshotID(fmt.Sprint("db-", i))})
		check(t, err)
		if logged != strings.HasPrefix(m.Position, "log.0") {
			t.Errorf("the position is %q", m.Position)
		}
		at := w.begun.Load()
		testkit.Eventually(t, "the writer's word arrives", func() bool { return w.begun.Load() > at })
		m.to = w.begun.Load()
		all = append(all, m)
	}
	w.stop()
	r := testkit.Rand(t)
	visits := len(wrecks("")) // one after each
	if snaptest.Long() {
		visits = 16
	}
	for i := range visits {
		m := all[r.IntN(len(all))]
		s.restore(t, m.ID)
		n, dump := s.count(t), s.dump(t, s.db)
		if n < m.from || n > m.to || m.n != 0 && (n != m.n || dump != m.dump) {
			t.Fatalf("%s was captured between %d and %d, has %d, and had %d", m.ID, m.from, m.to, n, m.n)
		}
		m.n, m.dump = n, dump
		s.sql(t, "", wrecks(s.db)[i%len(wrecks(s.db))])
	}
}

// wrecks is what an app, or its agent, does to a database by mistake.
func wrecks(db string) []string {
	return []string{
		"ALTER TABLE " + db + ".kinds DROP COLUMN f",
		"UPDATE " + db + ".kinds SET b = NULL",
		"SET foreign_key_checks = 0; DROP TABLE " + db + ".parent",
		"DROP DATABASE " + db,
		"TRUNCATE " + db + ".kinds",
		"DROP TABLE " + db + ".loose; CREATE TABLE " + db + ".loose (other INT)",
	}
}

var restores atomic.Int64

// restore takes the live state to a snapshot, in the way of the daemon.
func (s *subject) restore(t *testing.T, target snap.SnapshotID) {
	t.Helper()
	ctx, n := t.Context(), restores.Add(1)
	base := snap.SnapshotID(fmt.Sprint("db-base-", n))
	_, err := s.driver.Capture(ctx, snap.CaptureRequest{ID: base, Quiesced: true})
	check(t, err)
	sw, err := s.driver.Prepare(ctx, snap.RestoreRequest{ID: snap.RestoreID(fmt.Sprint("op-", n)), Target: target, Base: base})
	check(t, err)
	check(t, sw.Commit(ctx))
	p, err := sw.Check(ctx)
	check(t, err)
	if !p.Match {
		t.Fatalf("the proof does not match: %+v", p)
	}
	check(t, sw.Finish(ctx))
	check(t, s.driver.Delete(ctx, base))
}

// Each kind of damage, two of them in a run, there and back: restored, and undone to the damaged state exactly.
func TestWrecks(t *testing.T) {
	srv := sharedServer(t)
	all := wrecks("DB")
	for _, i := range testkit.Sample(t, "wrecks", len(all), 2) {
		wreck := all[i]
		t.Run(wreck, func(t *testing.T) {
			s := newSubject(t, srv)
			_, err := s.driver.Capture(t.Context(), snap.CaptureRequest{ID: "db-target"})
			check(t, err)
			before := s.dump(t, s.db)
			s.sql(t, "", strings.ReplaceAll(wreck, "DB", s.db))
			_, err = s.driver.Capture(t.Context(), snap.CaptureRequest{ID: "db-base"})
			check(t, err)
			wrecked := s.dump(t, s.db)
			check(t, fate{Do: "prepare"}.run(s.driver))
			check(t, fate{Do: "commit"}.run(s.driver))
			if s.dump(t, s.db) != before {
				t.Error("not restored")
			}
			s.sql(t, s.db, "DROP TABLE child; INSERT INTO loose VALUES (9, 'later'); CREATE TABLE later (a INT)")
			check(t, fate{Do: "undo"}.run(s.driver))
			if s.dump(t, s.db) != wrecked {
				t.Error("not undone")
			}
			sw, err := s.driver.Resume(t.Context(), "op-1")
			check(t, err)
			check(t, sw.Finish(t.Context()))
			s.alone(t)
		})
	}
}

// A restore goes on, whole, while many clients are connected, read, write and
// reconnect: none of them sees parts of both states, or no table.
func TestManyClients(t *testing.T) {
	s := newSubject(t, ownServer(t, "--max-connections=200"))
	s.sql(t, s.db, "CREATE TABLE a (v INT); CREATE TABLE b (v INT); INSERT INTO a VALUES (1); INSERT INTO b VALUES (1); CREATE TRIGGER sums AFTER INSERT ON b FOR EACH ROW SET @n = 1")
	_, err := s.driver.Capture(t.Context(), snap.CaptureRequest{ID: "db-target"})
	check(t, err)
	want := s.dump(t, s.db)
	s.sql(t, s.db, "UPDATE a SET v = 2; UPDATE b SET v = 2; DROP TRIGGER sums")

	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	var reads, torn, failed atomic.Int64
	for range 50 {
		all.Go(func() {
			for ctx.Err() == nil {
				db := open(s.socket(), s.db)
				for range 10 {
					var a, b int
					switch err := db.QueryRow("SELECT a.v, b.v FROM a, b").Scan(&a, &b); {
					case err != nil:
						failed.Add(1)
					case a != b:
						torn.Add(1)
					default:
						reads.Add(1)
					}
				}
				_ = db.Close()
			}
		})
	}
	testkit.Eventually(t, "the clients are there", func() bool { return reads.Load() > 500 })
	s.restore(t, "db-target")
	seen := reads.Load()
	testkit.Eventually(t, "the clients go on", func() bool { return reads.Load() > seen+500 })
	cancel()
	all.Wait()
	if s.dump(t, s.db) != want || torn.Load()+failed.Load() != 0 {
		t.Fatalf("the state is the target's: %t; %d clients saw parts of both, %d none", s.dump(t, s.db) == want, torn.Load(), failed.Load())
	}
}
