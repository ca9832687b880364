package main

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mulligan/ipc"
	"mulligan/snap/postgres/pgtest"
	"mulligan/systemd/systemdtest"
	"mulligan/testkit"
)

// dbApp is an app with a unit, files, a SQLite file, and a Postgres database
// whose cluster the daemon manages; and what is known of its checkpoints.
type dbApp struct {
	*testApp
	h     *systemdtest.Host
	c     *pgtest.Cluster
	owned bool                        // no unit serves the cluster
	words map[ipc.CheckpointID]string // the state that each listed checkpoint holds
}

// rows is how many each of the shop's tables has, of a kilobyte.
const rows = 3000

func newDBApp(t *testing.T, owned bool) *dbApp {
	t.Helper()
	c := pgtest.New(t, pgtest.Options{Slim: true, Settings: map[string]string{"wal_level": "replica", "max_wal_size": "128MB"}})
	h := systemdtest.Boot(t)
	if owned {
		ownServer(t, c)
	} else {
		clusterUnit(t, h, c, "pg.service")
	}
	c.Psql(t, "postgres", "CREATE DATABASE shop")
	c.Psql(t, "shop", fmt.Sprintf(`CREATE TABLE one (id int PRIMARY KEY, word text, pad text);
		INSERT INTO one SELECT i, 'none', repeat(md5(i::text), 30) FROM generate_series(1, %d) i;
		CREATE TABLE two (LIKE one INCLUDING ALL); INSERT INTO two SELECT * FROM one;
		CREATE EXTENSION amcheck`, rows))
	d := newHostDaemon(t, h)
	d.start()
	a := &dbApp{newUnitApp(t, h, d), h, c, owned, map[ipc.CheckpointID]string{}}
	a.put(t, "zero")
	settings := "#mode=physical&data_dir=" + c.DataDir
	if !owned {
		settings += "&unit=pg.service"
	}
	d.must("app", "set", "database=main="+c.DSN("shop")+settings, "retention.keep_last=1000", "retention.keep_safety=1000", "--app", "shop")
	if owned {
		pgCtl(t, c, "restart")
	} else {
		a.systemctl(t, "restart", "pg.service")
	}
	return a
}

// killServer kills the cluster's server, which may be down at this moment, at once.
func (a *dbApp) killServer() {
	if !a.owned {
		_, _ = a.h.Exec("systemctl", "kill", "-s", "KILL", "pg.service")
		return
	}
	links, _ := filepath.Glob("/proc/[0-9]*/cwd") // the pattern is good
	for _, link := range links {
		if at, err := os.Readlink(link); err == nil && at == a.c.DataDir {
			if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(link))); err == nil {
				_ = unix.Kill(pid, unix.SIGKILL)
			}
		}
	}
}

// startServer starts the cluster's server as an administrator, or the server's owner, would, until the server answers. The daemon may be starting or stopping it, and systemd
// may not have seen yet that it was killed.
func (a *dbApp) startServer(t *testing.T) {
	t.Helper()
	eventually(t, "the server starts, or runs", func() bool {
		if a.owned {
			_ = a.c.Command("pg_ctl", "start", "-w", "-s", "-D", a.c.DataDir, "-l", a.c.Log).Run()
		} else {
			_, _ = a.h.Exec("systemctl", "reset-failed", "pg.service") // it need not have failed
			_, _ = a.h.Exec("systemctl", "start", "pg.service")
		}
		_, err := a.c.TryPsql("postgres", "SELECT 1")
		return err == nil
	})
}

func (a *dbApp) systemctl(t *testing.T, args ...string) {
	t.Helper()
	if out, err := a.h.Exec(append([]string{"systemctl"}, args...)...); err != nil {
		t.Fatalf("systemctl %v: %v\n%s", args, err, out)
	}
}

// put takes the whole app into the state called word.
func (a *dbApp) put(t *testing.T, word string) {
	t.Helper()
	a.set(t, word)
	a.c.Psql(t, "shop", fmt.Sprintf("BEGIN; UPDATE one SET word = '%[1]s'; UPDATE two SET word = '%[1]s'; COMMIT", word))
}

// is checks that the whole app is in one state, with all that belongs to it, and names it.
func (a *dbApp) is(t *testing.T) string {
	t.Helper()
	word := a.word(t)
	want := fmt.Sprintf("%d|%d|%s|%[3]s", 2*rows, 2*rows*960, word)
	got := a.c.Psql(t, "shop", `SELECT count(*), sum(length(pad)), min(word), max(word) FROM (SELECT * FROM one UNION ALL SELECT * FROM two) x WHERE pad = repeat(md5(id::text), 30)`)
	if got != want {
		t.Fatalf("the page says %q, the database is at %s", word, got)
	}
	a.c.Psql(t, "shop", "SELECT bt_index_check('one_pkey', true), bt_index_check('two_pkey', true)")
	return word
}

// learn notes what checkpoints there are now: new ones hold the state word.
func (a *dbApp) learn(t *testing.T, word string) {
	t.Helper()
	listed := map[ipc.CheckpointID]bool{}
	for _, cp := range a.checkpoints() {
		listed[cp.ID] = true
		if _, known := a.words[cp.ID]; !known {
			a.words[cp.ID] = word
		}
	}
	for id, word := range a.words {
		if !listed[id] {
			t.Fatalf("checkpoint %s of %q is lost", id, word)
		}
	}
}

func (a *dbApp) pick(rng *rand.Rand) ipc.CheckpointID {
	ids := slices.Sorted(maps.Keys(a.words))
	return ids[rng.IntN(len(ids))]
}

// goTo rolls the app back to a checkpoint, and checks that it is what it was then.
func (a *dbApp) goTo(t *testing.T, id ipc.CheckpointID) {
	t.Helper()
	before := a.is(t)
	res := ask[ipc.RollbackResult](a.d, "rollback", string(id), "--app", "shop")
	if !res.RolledBack || res.Verification == nil || !res.Verification.Match {
		t.Fatalf("%+v", res)
	}
	if got := a.is(t); got != a.words[id] {
		t.Fatalf("%s holds %q and brings back %q", id, a.words[id], got)
	}
	a.learn(t, before)
}

// bases counts those base copies of the cluster that there are, and that are being made.
func (a *dbApp) bases(t *testing.T) int {
	t.Helper()
	list, err := filepath.Glob(a.c.DataDir + ".mulligan/bases/*")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// needsBase writes so much log that the daemon takes a base copy, and waits until it has begun.
func (a *dbApp) needsBase(t *testing.T) {
	t.Helper()
	n := a.bases(t)
	// A gigabyte, most of it zeros that take no space.
	a.c.Psql(t, "shop", `DO $$ BEGIN FOR i IN 1..66 LOOP PERFORM pg_logical_emit_message(false, 'test', 'x'); PERFORM pg_switch_wal(); END LOOP; END $$`)
	eventually(t, "a base copy begins", func() bool { return a.bases(t) > n })
}

// TestLongKillPostgres kills the daemon, the server of its app's database, or both, at
// random moments of captures, base copies and rollbacks. Then the app is wholly as
// before or as asked, and each checkpoint that was listed brings back its state.
func TestLongKillPostgres(t *testing.T) {
	testkit.NeedLong(t)
	t.Parallel()
	for _, owned := range []bool{false, true} {
		t.Run(fmt.Sprintf("owned=%t", owned), func(t *testing.T) {
			t.Parallel()
			newDBApp(t, owned).survivesKills(t, len(testkit.Sample(t, "kills", 30, 1)))
		})
	}
}

func (a *dbApp) survivesKills(t *testing.T, rounds int) {
	t.Helper()
	first := a.create() // takes the first base
	takes := map[string]time.Duration{"base": time.Second}
	takes["capture"] = timed(func() { a.create() })
	a.learn(t, "zero")
	a.put(t, "one")
	takes["rollback"] = timed(func() { a.goTo(t, first.ID) })
	t.Logf("operations take %v", takes)
	rng := testkit.Rand(t)
	for i := range rounds {
		t.Logf("%d: %s", i, a.disturb(t, rng, i, takes))
		a.goTo(t, a.pick(rng))
		for len(a.words) > 6 { // those deleted take what only they need with them, and no more
			id := a.pick(rng)
			a.d.must("delete", string(id), "--app", "shop")
			delete(a.words, id)
		}
	}
	testkit.Tally(t, "kills", rounds)
	for _, id := range slices.Collect(maps.Keys(a.words)) { // each adds one
		a.goTo(t, id)
	}
	a.settled(t)
	a.sound(t)
}

func timed(f func()) time.Duration {
	began := time.Now()
	f()
	return time.Since(began)
}

// disturb is one round: an operation, and a kill at some moment of it.
func (a *dbApp) disturb(t *testing.T, rng *rand.Rand, n int, takes map[string]time.Duration) (how string) {
	t.Helper()
	before := fmt.Sprintf("word-%d", n)
	a.put(t, before)
	op, target := []string{"rollback", "capture", "rollback", "base"}[n%4], a.pick(rng)
	if op == "base" {
		a.needsBase(t)
	}
	var stage atomic.Value
	stage.Store(ipc.StageName("-"))
	done := make(chan error, 1)
	go func() { done <- a.try(t, op, target, &stage) }()
	after := time.Duration(rng.Int64N(int64(takes[op]) * 11 / 10))
	time.Sleep(after) // the moment is the point of the test
	victim := []string{"daemon", "server", "both"}[rng.IntN(3)]
	how = fmt.Sprintf("%s, %s killed after %v, at %v", op, victim, after.Round(time.Millisecond), stage.Load())
	if victim != "daemon" {
		a.killServer()
	}
	if victim != "server" {
		a.d.kill()
	}
	err := <-done
	a.mend(t, victim, rng.IntN(2) == 0)
	got := a.is(t)
	switch {
	case op == "rollback" && got == a.words[target]:
		how += ": as asked"
	case got == before && (op != "rollback" || err != nil):
		how += ": as before"
	default:
		t.Fatalf("%s: the app is %q, was %q, asked for was %q (%v)", how, got, before, a.words[target], err)
	}
	a.learn(t, before)
	a.whole(t, got)
	return fmt.Sprintf("%s (%v)", how, err)
}

// try carries out an operation that is to be cut short.
func (a *dbApp) try(t *testing.T, op string, target ipc.CheckpointID, stage *atomic.Value) (err error) {
	switch op {
	case "capture":
		_, err = a.d.client.CreateCheckpoint(t.Context(), "shop", ipc.CreateRequest{})
	case "rollback":
		_, err = a.d.client.Rollback(t.Context(), "shop", target, ipc.RollbackRequest{}, func(s ipc.Stage) { stage.Store(s.Stage) })
	}
	return err
}

// whole checks that visitors are served the state word, and that all checkpoints are sound.
func (a *dbApp) whole(t *testing.T, word string) {
	t.Helper()
	a.up(t)
	if page := visit(t.Context(), a.addr); page != word+"\n" {
		t.Fatalf("a visitor sees %q, the app is %q", page, word)
	}
	for id := range a.words {
		if res := ask[ipc.VerifyResult](a.d, "verify", string(id), "--app", "shop"); !res.OK {
			t.Fatalf("%s is listed and damaged: %v", id, res.Problems)
		}
	}
}

// mend starts what was killed, as systemd and an administrator would.
func (a *dbApp) mend(t *testing.T, victim string, daemonFirst bool) {
	t.Helper()
	server := func() { a.startServer(t) }
	if !daemonFirst {
		server()
	}
	if victim != "server" {
		a.d.start()
	}
	if daemonFirst {
		server()
	}
	a.settled(t)
}

// settled waits until the daemon has no problems. What could not be settled while
// the server was down, it settles by itself.
func (a *dbApp) settled(t *testing.T) {
	t.Helper()
	eventually(t, "the daemon has no problems", func() bool { return len(ask[ipc.Status](a.d, "status").Problems) == 0 })
}
