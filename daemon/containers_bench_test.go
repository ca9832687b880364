package daemon_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"mulligan/engine/enginetest"
	"mulligan/ipc"
	"mulligan/testkit"
	"mulligan/testkit/benchtable"
)

// visitor asks for a page again and again, each time with a limit of a second. For each line of its input it prints for how many milliseconds at most
// nobody has answered since the line before.
const visitor = `
import http.client, sys, threading, time
last, longest, lock = time.monotonic(), 0, threading.Lock()
def visit():
	global last, longest
	while True:
		try:
			c = http.client.HTTPConnection("127.0.0.1", 18080, timeout=1)
			c.request("GET", "/index.html")
			ok = c.getresponse().read() != b""
			c.close()
		except Exception:
			ok = False
		if ok:
			with lock:
				now = time.monotonic()
				longest, last = max(longest, now - last), now
		time.sleep(0.001)
threading.Thread(target=visit, daemon=True).start()
for line in sys.stdin:
	with lock:
		print(longest * 1000, flush=True)
		longest = 0
`

// visit starts the visitor of a project, and returns what asks it.
func (p *project) visit(b *testing.B) (longest func() time.Duration) {
	b.Helper()
	cmd := p.Command(b.Context(), "/usr/bin/python3", "-c", visitor)
	in, err := cmd.StdinPipe()
	check(b, err)
	out, err := cmd.StdoutPipe()
	check(b, err)
	check(b, testkit.Start(cmd))
	lines := bufio.NewReader(out)
	b.Cleanup(func() {
		_ = in.Close()
		_, _ = io.Copy(io.Discard, lines)
		_ = cmd.Wait() // its input has ended
	})
	return func() time.Duration {
		b.Helper()
		_, err := io.WriteString(in, "\n")
		check(b, err)
		line, err := lines.ReadString('\n')
		check(b, err)
		ms, err := strconv.ParseFloat(strings.TrimSpace(line), 64)
		check(b, err)
		return time.Duration(ms * float64(time.Millisecond))
	}
}

// BenchmarkContainers has a compose project with a web server, a worker, Redis and a PostgreSQL of 1 GB, all in containers with volumes. It measures
// for how long the page does not answer while the project goes back by hand: compose down, the copies of the volumes and of the workspace put back, compose
// up. Then mulligan protects it, with the database in mode physical: what does an automatic checkpoint cost after a turn's changes, and for how long at most
// does the page not answer meanwhile; for how long does it not answer during a rollback; and what does the database's marker alone take.
// It has three rounds, and reports the median of each figure. BENCH_MB makes the database smaller. make bench runs it in a network namespace of its own,
// see [enginetest]. The engine's own part of it is measured beside: the project is stopped and started by compose, and nothing else is done.
func BenchmarkContainers(b *testing.B) {
	const rounds = 3
	for _, kind := range enginetest.Kinds {
		b.Run(string(kind), func(b *testing.B) {
			p := startProject(b, kind, "    volumes: [\"/usr:/usr:ro\", \"./www:/www\"", "    ports: [\"127.0.0.1:18080:8080\"]\n    volumes: [\"/usr:/usr:ro\", \"./www:/www\"",
				"shared_buffers=16MB", "shared_buffers=128MB -c max_wal_size=4GB -c listen_addresses='*'",
				"--locale=C -E UTF8 -N\n", "--locale=C -E UTF8 -N\n          echo 'host all all all trust' >>/data/pg/pg_hba.conf\n") // as Docker's image has it
			w := world{dir: benchDir(b), at: p.ws}
			p.sql(fmt.Sprintf(`CREATE TABLE items AS SELECT i AS id, md5(i::text) || md5((i+1)::text) || md5((i+2)::text) || md5((i+3)::text) || md5((i+4)::text) || md5((i+5)::text) AS body
				FROM generate_series(1, %d) i`, setting("BENCH_MB", 1000)*1000000/230))
			p.sql("CREATE INDEX ON items (id)")
			p.sql("VACUUM ANALYZE items")
			p.sql("CHECKPOINT")
			b.Logf("the database has %s", p.sql("SELECT pg_size_pretty(pg_database_size('postgres'))"))
			answers := func(want string) {
				b.Helper()
				testkit.Eventually(b, "the page is back", func() bool {
					out, err := p.Exec("curl", "-sf", "http://127.0.0.1:18080/index.html")
					return err == nil && string(out) == want && p.try(p.db, "pg_isready", "-h", "/tmp") == nil
				})
			}
			answers("good")
			longest := p.visit(b)
			turn := func(i int) {
				write(b, p.ws, "www/index.html", fmt.Sprint("turn ", i))
				p.sql("UPDATE items SET body = 'bad' WHERE id % 1000 = 0")
				p.in(p.cache, "redis-cli", "set", "visits", fmt.Sprint(i))
				p.in(p.web, "/bin/sh", "-c", fmt.Sprint("echo one >/data/turn-", i))
			}

			var volumes []string
			for _, name := range []string{"rows", "keys", "uploads"} {
				volumes = append(volumes, p.Run(b, string(kind), "volume", "inspect", "-f", "{{.Mountpoint}}", "shop_"+name))
			}
			backup := filepath.Join(w.dir, "backup")
			p.compose("stop")
			sh(b, `b="$1"; shift; mkdir "$b"; for d in "$@"; do cp -a "$d" "$b/$(basename "$(dirname "$d")")"; done`, append([]string{backup}, append(volumes, p.ws)...)...)
			p.compose("start")
			answers("good")
			var took, paused, mulligan, hand, engine []time.Duration
			for i := range rounds {
				longest()
				p.compose("stop")
				p.compose("start")
				answers("good")
				engine = append(engine, longest())
				turn(i)
				longest()
				p.compose("down")
				sh(b, `b="$1"; shift; for d in "$@"; do find "$d" -mindepth 1 -delete; cp -a "$b/$(basename "$(dirname "$d")")/." "$d"; done`, append([]string{backup}, append(volumes, p.ws)...)...)
				p.compose("up -d")
				answers("good")
				hand = append(hand, longest())
			}
			sh(b, `rm -r "$1"`, backup)

			opt, marker := w.options(), &stopwatch{}
			opt.Failpoint = marker.at
			d := w.openAs(b, opt)
			defer w.close(b, d)
			_, err := d.AddApp(b.Context(), root, ipc.App{Slug: "shop", Workspace: p.ws, Unit: "compose:shop", Engine: p.Socket,
				Volumes: []ipc.Volume{{Name: "keys"}, {Name: "uploads"}}, Databases: []ipc.Database{{Name: "main", Driver: "postgres", DSN: "postgres://postgres@db:5432/postgres", Mode: "physical"}}})
			check(b, err)
			longest()
			began := time.Now()
			good, err := d.Create(b.Context(), root, "shop", ipc.CreateRequest{Quiesce: ipc.QuiesceNone, Pinned: true})
			check(b, err)
			b.Logf("the first checkpoint took %v, without an answer for %v", time.Since(began), longest())
			for i := range rounds {
				turn(i)
				longest()
				was := p.ids()
				began := time.Now()
				_, err := d.Create(b.Context(), root, "shop", ipc.CreateRequest{Quiesce: ipc.QuiesceNone, Trigger: ipc.TriggerAgent})
				check(b, err)
				took, paused = append(took, time.Since(began)), append(paused, longest())

				res, err := d.Rollback(context.Background(), root, "shop", good.ID, ipc.RollbackRequest{}, nil)
				if err != nil {
					b.Fatalf("%v, %+v", err, res)
				}
				answers("good")
				mulligan = append(mulligan, longest())
				for _, s := range res.Stages {
					b.Logf("  %-18s %6d ms  %s", s.Stage, s.DurationMS, s.Notes)
				}
				if now := p.ids(); now != was {
					b.Errorf("the containers are\n%s\nand were\n%s", now, was)
				}
			}
			none := []ipc.Volume{}
			_, err = d.SetApp(b.Context(), root, "shop", ipc.AppChange{Volumes: &none})
			check(b, err)
			marker.took = nil
			for range 20 {
				p.sql("UPDATE items SET body = 'bad' WHERE id = 1")
				_, err := d.Create(b.Context(), root, "shop", ipc.CreateRequest{Quiesce: ipc.QuiesceNone, Trigger: ipc.TriggerAgent})
				check(b, err)
			}
			b.ReportMetric(0, "ns/op") // which says nothing here
			part, mb := "containers, "+string(kind), setting("BENCH_MB", 1000)
			for _, r := range []benchtable.Row{
				{What: "checkpoint of a turn", Unit: "ms", Mulligan: median(took).Seconds() * 1000},
				{What: "for how long at most the page does not answer meanwhile", Unit: "ms", Mulligan: median(paused).Seconds() * 1000, Below: 100},
				{What: "of it the database", Unit: "ms", Mulligan: median(marker.took).Seconds() * 1000, Below: 20},
				{What: fmt.Sprintf("rollback, %d MB of PostgreSQL: for how long the page does not answer", mb), Unit: "s", Mulligan: median(mulligan).Seconds(),
					Others: []benchtable.Other{{Name: "compose down, restore, compose up", Value: median(hand).Seconds()}}, Times: 5, Smaller: mb < 1000},
				{What: "the same beside nothing but a stop and a start", Unit: "s", Mulligan: median(mulligan).Seconds(), Others: []benchtable.Other{{Name: "compose stop, compose start", Value: median(engine).Seconds()}}},
			} {
				r.Part = part
				benchtable.Report(b, r)
			}
		})
	}
}

// stopwatch measures how long the driver of a cluster takes for a marker, until it writes its record of it.
type stopwatch struct {
	began time.Time
	took  []time.Duration
}

func (s *stopwatch) at(step string) error {
	switch step {
	case "capture: mark":
		s.began = time.Now()
	case "capture: record":
		s.took = append(s.took, time.Since(s.began))
	}
	return nil
}

func median(all []time.Duration) time.Duration {
	slices.Sort(all)
	return all[len(all)/2]
}
