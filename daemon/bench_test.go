package daemon_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"mulligan/ipc"
	"mulligan/snap/postgres/pgtest"
	"mulligan/testkit"
	"mulligan/testkit/benchtable"
)

// BenchmarkRollbackDowntime has an app with 20,000 files and a Postgres database
// of 1 GB go back over an agent's work, by mulligan and by hand: stop, git reset
// and clean, drop and pg_restore, start. A visitor measures how long nobody
// answers. BENCH_FILES and BENCH_MB make it smaller.
func BenchmarkRollbackDowntime(b *testing.B) {
	settings := map[string]string{"shared_buffers": "256MB", "max_wal_size": "4GB"}
	b.Run("logical", func(b *testing.B) {
		w := world{dir: benchDir(b)}
		c := pgtest.Start(b, pgtest.Options{Settings: settings})
		w.compare(b, "dump", c, w.database(b, c))
	})
	b.Run("physical", func(b *testing.B) {
		w := world{dir: benchDir(b)}
		c, db := w.cluster(b, settings)
		w.compare(b, "its files", c, db)
	})
}

func (w world) compare(b *testing.B, how string, c *pgtest.Cluster, db ipc.Database) {
	files, mb := setting("BENCH_FILES", 20000), setting("BENCH_MB", 1000)
	w.fill(b, c, files, mb)
	var byHand, byMulligan time.Duration
	for range b.N {
		byHand += w.naively(b, c)
		byMulligan += w.mulligan(b, db)
	}
	b.ReportMetric(0, "ns/op") // which says nothing here
	benchtable.Report(b, benchtable.Row{Part: "a rollback of a running app", What: fmt.Sprintf("for how long nobody answers: %d files, %d MB of PostgreSQL by %s", files, mb, how), Unit: "s",
		Mulligan: byMulligan.Seconds() / float64(b.N), Others: []benchtable.Other{{Name: "stop, git reset, pg_restore, start", Value: byHand.Seconds() / float64(b.N)}}, Times: 1})
}

func setting(name string, otherwise int) int {
	if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
		return n
	}
	return otherwise
}

func benchDir(b *testing.B) string {
	b.Helper()
	dir, err := os.MkdirTemp("", "mb")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { os.RemoveAll(dir) })
	must(os.Mkdir(filepath.Join(dir, "ws"), 0o755))
	return dir
}

// fill makes the app's files and rows, and a commit of the files.
func (w world) fill(b *testing.B, c *pgtest.Cluster, files, mb int) {
	b.Helper()
	name := filepath.Base(w.dir)
	// 240 bytes a row, and the key's index.
	c.Psql(b, name, fmt.Sprintf(`CREATE TABLE items (id int PRIMARY KEY, body text);
		INSERT INTO items SELECT i, md5(i::text) || md5((i+1)::text) || md5((i+2)::text) || md5((i+3)::text) || md5((i+4)::text) || md5((i+5)::text)
		FROM generate_series(1, %d) i; VACUUM ANALYZE items`, mb*1000000/260))
	for i := range files {
		sub := filepath.Join(w.ws(), "src", fmt.Sprint(i/100))
		if i%100 == 0 {
			must(os.MkdirAll(sub, 0o755))
		}
		must(os.WriteFile(filepath.Join(sub, fmt.Sprint(i)), fmt.Appendf(nil, "%d %s\n", i, w.dir), 0o644))
	}
	w.set(b, "zero")
	sh(b, `cd "$1" && git init -q && git config gc.autoDetach false && git add -A && git -c user.name=a -c user.email=a@example.org commit -qm zero`, w.ws())
	b.Logf("%d files; the database has %s", files, c.Psql(b, name, `SELECT pg_size_pretty(pg_database_size(current_database()))`))
}

// spoil is the agent's work.
func (w world) spoil(b *testing.B) {
	b.Helper()
	w.set(b, "spoilt")
	sh(b, `cd "$1"/src && for i in 1 2 3 4 5 6 7 8 9; do echo bad >>$i/${i}05; rm -f $i/${i}06; echo new >$i/new; done`, w.ws())
	if out, err := exec.Command("psql", "-q", w.pg, "-c", "UPDATE items SET body = 'bad' WHERE id % 100 = 0").CombinedOutput(); err != nil {
		b.Fatalf("%v: %s", err, out)
	}
}

// outage is how long nobody answers while f runs.
func (w world) outage(b *testing.B, f func()) time.Duration {
	b.Helper()
	var last, longest atomic.Int64
	var stop atomic.Bool
	ended := make(chan struct{})
	last.Store(time.Now().UnixNano())
	go func() {
		defer close(ended)
		for !stop.Load() {
			if w.visit() == "" {
				time.Sleep(time.Millisecond)
				continue
			}
			now := time.Now().UnixNano()
			longest.Store(max(longest.Load(), now-last.Load()))
			last.Store(now)
		}
	}()
	f()
	waitUntil(b, func() bool { return w.visit() == "zero<nil>" })
	stop.Store(true)
	<-ended
	return time.Duration(longest.Load())
}

func waitUntil(b *testing.B, f func() bool) {
	b.Helper()
	for over := time.Now().Add(testkit.Patience); !f(); time.Sleep(time.Millisecond) {
		if time.Now().After(over) {
			b.Fatal("the app is not back")
		}
	}
}

// naively goes back as people do who have a commit and a dump.
func (w world) naively(b *testing.B, c *pgtest.Cluster) time.Duration {
	b.Helper()
	dump := filepath.Join(w.dir, "dump")
	sh(b, `rm -rf "$2" && pg_dump -Fc -Z1 -f "$2" "$1"`, w.pg, dump)
	w.spoil(b)
	config := fmt.Sprintf(`{"dir":%q,"pg":%q}`, w.dir, w.pg)
	start := func() *exec.Cmd {
		cmd := exec.Command(os.Args[0], "serve-app", config)
		must(cmd.Start())
		return cmd
	}
	app := start()
	waitUntil(b, func() bool { return w.visit() == "spoilt<nil>" })
	down := w.outage(b, func() {
		must(app.Process.Signal(syscall.SIGTERM))
		app.Wait()
		sh(b, `cd "$1" && git reset -q --hard && git clean -qfd`, w.ws())
		name := filepath.Base(w.dir)
		c.Psql(b, "postgres", `DROP DATABASE "`+name+`"`)
		c.Psql(b, "postgres", `CREATE DATABASE "`+name+`"`)
		sh(b, `pg_restore -j2 -d "$1" "$2"`, w.pg, dump)
		app = start()
	})
	must(app.Process.Kill())
	app.Wait()
	return down
}

// mulligan goes back with a rollback.
func (w world) mulligan(b *testing.B, db ipc.Database) time.Duration {
	b.Helper()
	ctx := context.Background()
	d := w.open(b)
	defer w.close(b, d)
	config := fmt.Sprintf(`{"dir":%q,"pg":%q}`, w.dir, w.pg)
	dbs := []ipc.Database{{Name: "shop", Driver: "sqlite", DSN: "shop.db"}, db}
	if _, err := d.AddApp(ctx, root, ipc.App{
		Slug: "shop", Workspace: w.ws(), Retention: ipc.DefaultRetention(), Databases: dbs, Run: appCommand(b, config),
	}); err != nil {
		b.Fatal(err)
	}
	defer func() { must(d.RemoveApp(ctx, root, "shop", true)) }()
	waitUntil(b, func() bool { return w.visit() == "zero<nil>" })
	began := time.Now()
	cp, err := d.Create(ctx, root, "shop", ipc.CreateRequest{})
	if err != nil {
		b.Fatal(err)
	}
	b.Logf("the checkpoint took %v", time.Since(began))
	w.spoil(b)
	return w.outage(b, func() {
		began := time.Now()
		res, err := d.Rollback(ctx, root, "shop", cp.ID, ipc.RollbackRequest{}, nil)
		if err != nil || !res.Verification.Match {
			b.Fatalf("%+v, %v", res, err)
		}
		b.Logf("the rollback took %v", time.Since(began))
		for _, s := range res.Stages {
			b.Logf("  %-18s %6d ms  %s", s.Stage, s.DurationMS, s.Notes)
		}
	})
}
