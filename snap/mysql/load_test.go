package mysql

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"os/exec"
	"slices"
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

// write is a client in a process of its own.
func write(arg string) {
	var at [2]string
	must(json.Unmarshal([]byte(arg), &at))
	db := open(at[0], at[1])
	must(snaptest.Write(func(n int64) error {
		tx, err := db.Begin()
		if err != nil {
			return err
		}
		for _, q := range []string{"UPDATE counter SET n = n + 1", fmt.Sprintf("INSERT INTO log VALUES (%d, REPEAT('x', %d))", n, n%900),
			fmt.Sprintf("INSERT INTO loose VALUES (%d, 'load')", n), fmt.Sprintf("REPLACE INTO last VALUES (%d, %d)", n%50, n)} {
			if _, err := tx.Exec(q); err != nil {
				return err
			}
		}
		return tx.Commit()
	}))
}

// writable is a subject that a client writes to.
type writable struct{ *subject }

func (s writable) Writer(t *testing.T) *exec.Cmd {
	s.sql(t, s.db, "CREATE TABLE counter (n INT); INSERT INTO counter VALUES (0); CREATE TABLE log (n INT PRIMARY KEY, x TEXT); CREATE TABLE last (a INT PRIMARY KEY, n INT)")
	return command(t, "writer", [2]string{s.socket(), s.db})
}

// Written checks that the writer's tables agree with each other.
func (s writable) Written(t *testing.T) (n int64) {
	t.Helper()
	var rows, top, loose, last int64
	_, err := fmt.Sscan(s.sql(t, s.db, "SELECT n, (SELECT COUNT(*) FROM log), (SELECT MAX(n) FROM log), (SELECT COUNT(*) FROM loose WHERE b LIKE 'load%'), (SELECT MAX(n) FROM last) FROM counter"), &n, &rows, &top, &loose, &last)
	check(t, err)
	if rows != n || top != n || loose != n || last != n {
		t.Fatalf("torn: the counter is %d, the log has %d up to %d, loose %d, last %d", n, rows, top, loose, last)
	}
	return n
}

func (s writable) Wreck(t *testing.T, seed int64) {
	t.Helper()
	// A restore to a foreign key without its table is refused, and the suite goes back to wrecked states too.
	all := slices.DeleteFunc(wrecks(s.db), func(sql string) bool { return strings.Contains(sql, "foreign_key_checks") })
	s.sql(t, "", all[uint64(seed)%uint64(len(all))])
}

// One run is with a log of the server's, the next without.
func TestUnderLoad(t *testing.T) {
	logs := [][]string{{"--log-bin=log"}, nil}
	for _, i := range testkit.Sample(t, "servers", len(logs), 1) {
		args := logs[i]
		t.Run(fmt.Sprint(args), func(t *testing.T) {
			t.Parallel()
			s := newSubject(t, ownServer(t, args...))
			got, err := s.driver.Capture(t.Context(), snap.CaptureRequest{ID: "db-position"})
			check(t, err)
			if logged := len(args) > 0; logged != strings.HasPrefix(got.Position, "log.0") {
				t.Errorf("the position is %q", got.Position)
			}
			snaptest.RunUnderLoad(t, writable{s})
		})
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
func testManyClients(t *testing.T) {
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
