package logical

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"testing"

	"mulligan/privsep"
	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/postgres/pgtest"
	"mulligan/snap/snaptest"
)

const victimEnv = "MULLIGAN_LOGICAL_VICTIM"

func TestMain(m *testing.M) {
	privsep.Main()
	if arg := os.Getenv(victimEnv); arg != "" {
		victim(arg)
		return
	}
	if arg := os.Getenv(aloneEnv); arg != "" {
		alone(arg)
		return
	}
	os.Exit(m.Run())
}

// fate is what a victim does, and the step that it dies at.
type fate struct {
	Dir, DSN string
	Do       string // "capture", "prepare", "commit", "undo", "finish"
	Step     int
}

// victim is a daemon that is killed at a step. It exits in order where the
// work has fewer steps.
func victim(arg string) {
	var f fate
	must(json.Unmarshal([]byte(arg), &f))
	store, err := cas.Open(filepath.Join(f.Dir, "store"), cas.Options{SegmentBytes: 64 << 10})
	must(err)
	d, err := New(Config{App: "app-1", Name: "main", DSN: f.DSN, StateDir: filepath.Join(f.Dir, "state"), Store: store, Jobs: 1, Failpoint: snaptest.DieAt(f.Step)})
	must(err)
	must(f.run(context.Background(), d))
	must(store.Close())
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func (f fate) run(ctx context.Context, d *Driver) error { return snaptest.Do(ctx, d, f.Do) }

// crashes numbers the databases: tests share a server, and run at the same instant.
var crashes atomic.Int64

// crashDatabase makes a database with two tables and a sequence.
func crashDatabase(t *testing.T, c *pgtest.Cluster) *subject {
	t.Helper()
	s := &subject{c: c, db: fmt.Sprint("crash", crashes.Add(1))}
	c.Psql(t, "postgres", "CREATE DATABASE "+s.db)
	s.open(t, c.DSN(s.db))
	c.Psql(t, s.db, "CREATE TABLE a (i int PRIMARY KEY, t text); INSERT INTO a SELECT g, md5(g::text) FROM generate_series(1, 300) g; CREATE TABLE b (i int); CREATE SEQUENCE q")
	return s
}

// crashSubject has snapshots db-target and db-base, the present, and gives
// their dumps.
func crashSubject(t *testing.T, c *pgtest.Cluster) (s *subject, target, base string) {
	t.Helper()
	s = crashDatabase(t, c)
	_, err := s.driver.Capture(t.Context(), snap.CaptureRequest{ID: "db-target"})
	check(t, err)
	target = s.dump(t, "")
	c.Psql(t, s.db, "DELETE FROM a WHERE i % 3 = 0; DROP TABLE b; SELECT setval('q', 7)")
	_, err = s.driver.Capture(t.Context(), snap.CaptureRequest{ID: "db-base"})
	check(t, err)
	return s, target, s.dump(t, "")
}

// A daemon that is killed at any step of anything leaves the old state or the
// new one, whole, and the next daemon goes either way from there.
func testKilledAtEachStep(t *testing.T) {
	t.Parallel()
	c := startCluster(t, pgtest.Options{})
	t.Run("each", func(t *testing.T) {
		snaptest.RunCrashes(t, func(t *testing.T) snaptest.Crashable {
			return crashing{crashDatabase(t, c)}
		})
	})
}

// crashing is a subject that a process which is killed shares.
type crashing struct{ *subject }

func (c crashing) Close(t *testing.T) { check(t, c.cfg.Store.Close()) }

func (c crashing) Alone(t *testing.T) {
	t.Helper()
	if left := c.c.Psql(t, "postgres", "SELECT datname FROM pg_database WHERE datname LIKE '"+c.db+"\\_\\_%'"); left != "" {
		t.Errorf("left on the server: %s", left)
	}
}

func (c crashing) Reopen(t *testing.T) {
	t.Helper()
	var err error
	c.cfg.Store, err = cas.Open(filepath.Join(filepath.Dir(c.cfg.StateDir), "store"), cas.Options{SegmentBytes: 64 << 10})
	check(t, err)
	c.subject.Reopen(t)
}

func (c crashing) Mutate(t *testing.T, seed int64) {
	c.c.Psql(t, c.db, fmt.Sprintf("DELETE FROM a WHERE i %% 3 = %d; DROP TABLE IF EXISTS b; SELECT setval('q', %d)", seed%3, 7+seed))
}

func (c crashing) Fingerprint(t *testing.T) string { return c.dump(t, "") }

// Halfway says that on a server whose other databases are written to all the time, as tests beside this one do, the live database
// is first moved aside by itself.
func (c crashing) Halfway() {}

func (c crashing) Process(t *testing.T, do string, step int) *exec.Cmd {
	arg, err := json.Marshal(fate{c.dir(), c.cfg.DSN, do, step})
	check(t, err)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), victimEnv+"="+string(arg))
	return cmd
}

// PostgreSQL is killed at random moments of a restore; when it is up again, the
// restore is finished or undone.
func testServerKilled(t *testing.T) {
	snaptest.RunServerKills(t, 1, func(t *testing.T) snaptest.Served {
		c := startCluster(t, pgtest.Options{Settings: map[string]string{"restart_after_crash": "off"}})
		return served{crashing{crashDatabase(t, c)}}
	})
}

// served is a subject whose server is killed.
type served struct{ crashing }

func (s served) Kill(t *testing.T)   { s.c.Kill(t) }
func (s served) Start(t *testing.T)  { s.c.Start(t) }
func (s served) Reopen(t *testing.T) { s.subject.Reopen(t) }

// A server that dies in DROP DATABASE leaves the database invalid, which takes nothing
// but another DROP: whatever is under way goes on from there.
func testServerKilledInDrop(t *testing.T) {
	t.Parallel()
	c := startCluster(t, pgtest.Options{})
	invalidate := func(name string) {
		t.Helper()
		c.Psql(t, "postgres", "UPDATE pg_database SET datconnlimit = -2 WHERE datname = '"+name+"'")
		if got := c.Psql(t, "postgres", "SELECT datconnlimit FROM pg_database WHERE datname = '"+name+"'"); got != "-2" {
			t.Fatalf("database %s has the connection limit %q, want -2", name, got)
		}
	}
	for _, do := range []string{"prepare", "commit", "undo"} {
		t.Run(do, func(t *testing.T) {
			s, target, base := crashSubject(t, c)
			p := func() *plan {
				p, err := s.driver.Resumable("", "op-1")
				check(t, err)
				return p
			}
			check(t, fate{Do: "prepare"}.run(t.Context(), s.driver))
			gone, want := snap.Gone{Restores: []snap.RestoreID{"op-1"}}, base
			if do != "prepare" {
				check(t, fate{Do: "commit"}.run(t.Context(), s.driver))
				gone.Restores = nil
			}
			switch do {
			case "prepare":
				invalidate(p().New)
			case "commit":
				invalidate(p().Old)
				want = target
			case "undo":
				check(t, fate{Do: "undo"}.run(t.Context(), s.driver))
				invalidate(p().New)
			}
			s.Reopen(t)
			check(t, s.driver.Sweep(t.Context(), gone))
			if do != "prepare" {
				check(t, fate{Do: "finish"}.run(t.Context(), s.driver))
			}
			s.lives(t, do, want)
			s.leftovers(t)
		})
	}
}

// What a process that dies in a rehearsal leaves is dropped by Sweep, as that of a restore.
func TestDiesInRehearsal(t *testing.T) {
	s := newSubject(t, startCluster(t, pgtest.Options{}))
	s.Mutate(t, 1)
	id, before := s.capture(t), s.dump(t, "")
	s.cfg.Failpoint = func(step string) error {
		if step == "build: dress" {
			panic(step)
		}
		return nil
	}
	s.Reopen(t)
	func() {
		defer func() {
			if recover() == nil {
				t.Error("it did not come to that")
			}
		}()
		_ = s.driver.Rehearse(t.Context(), "rehearse-0123456789ab", id)
	}()
	if left := s.c.Psql(t, "postgres", `SELECT count(*) FROM pg_database WHERE datname LIKE '%\_\_mulligan\_%'`); left != "1" {
		t.Fatalf("%s databases are left, not one", left)
	}
	s.cfg.Failpoint = nil
	s.Reopen(t)
	check(t, s.driver.Sweep(t.Context(), snap.Gone{}))
	s.leftovers(t)
	s.lives(t, "after the sweep", before)
}
