package redis

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	client "github.com/redis/go-redis/v9"

	"mulligan/snap"
	"mulligan/testkit"
)

// write is a client in a process of its own, which says what it begins and what is done.
func write(arg string) {
	var dsn string
	must(json.Unmarshal([]byte(arg), &dsn))
	opt, err := client.ParseURL(dsn)
	must(err)
	c, ctx := client.NewClient(opt), context.Background()
	n, err := c.Get(ctx, "n").Int64()
	if err != client.Nil {
		must(err)
	}
	for {
		n++
		fmt.Println("begun", n)
		_, err := c.TxPipelined(ctx, func(p client.Pipeliner) error {
			p.Incr(ctx, "n")
			p.RPush(ctx, "all", n)
			p.HSet(ctx, fmt.Sprint("h:", n%50), "last", n, "text", strings.Repeat("x", int(n%900)))
			p.ZAdd(ctx, "z", client.Z{Score: float64(n), Member: n % 300})
			return nil
		})
		must(err)
		fmt.Println("done", n)
	}
}

// writer is such a process, as the test sees it.
type writer struct {
	cmd         *exec.Cmd
	begun, done atomic.Int64
	end         sync.WaitGroup
}

func startWriter(t *testing.T, s *server) *writer {
	t.Helper()
	w := &writer{cmd: command(t, "writer", s.dsn())}
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

// count checks that the writer's keys agree with each other, and says how far it got.
func count(t *testing.T, s *server) int64 {
	t.Helper()
	ctx := context.Background()
	n, err := s.db.Get(ctx, "n").Int64()
	check(t, err)
	all, err := s.db.LRange(ctx, "all", 0, -1).Result()
	check(t, err)
	last, err := s.db.HGet(ctx, fmt.Sprint("h:", n%50), "last").Int64()
	check(t, err)
	if int64(len(all)) != n || all[n-1] != fmt.Sprint(n) || last != n {
		t.Fatalf("torn: n is %d, the list has %d, the hash %d", n, len(all), last)
	}
	return n
}

// Captured while a second process writes, and restored in any order, each
// state is that of its moment: what was done before is there, what began after is not.
func TestUnderLoad(t *testing.T) {
	s := newSubject(t, "--appendonly", "yes")
	w := startWriter(t, s.server)
	type moment struct {
		snap.Snapshot
		from, to, n int64
		digest      string
	}
	var all []*moment
	for i := range 12 {
		testkit.Eventually(t, "the writer goes on", func() bool { return w.done.Load() > int64(50*i) })
		m := &moment{from: w.done.Load()}
		var err error
		m.Snapshot, err = s.driver.Capture(t.Context(), snap.CaptureRequest{ID: snap.SnapshotID(fmt.Sprint("db-", i))})
		check(t, err)
		at := w.begun.Load()
		testkit.Eventually(t, "the writer's word arrives", func() bool { return w.begun.Load() > at })
		m.to = w.begun.Load()
		all = append(all, m)
	}
	w.stop()
	r := testkit.Rand(t)
	for range 20 {
		m := all[r.IntN(len(all))]
		s.restore(t, m.ID)
		n, digest := count(t, s.server), s.digest(t)
		if n < m.from || n > m.to || m.n != 0 && (n != m.n || digest != m.digest) {
			t.Fatalf("%s was captured between %d and %d, has %d, and had %d", m.ID, m.from, m.to, n, m.n)
		}
		m.n, m.digest = n, digest
		if r.IntN(2) == 0 {
			check(t, s.db.FlushAll(t.Context()).Err())
			check(t, s.db.Set(t.Context(), "n", "wrong", 0).Err())
		}
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

// A restore goes on, whole, while many clients are connected, read, write and reconnect.
func TestManyClients(t *testing.T) {
	s := newSubject(t)
	check(t, s.db.Set(t.Context(), "state", "old", 0).Err())
	_, err := s.driver.Capture(t.Context(), snap.CaptureRequest{ID: "db-target"})
	check(t, err)
	want := s.digest(t)
	check(t, s.db.FlushAll(t.Context()).Err())
	check(t, s.db.Set(t.Context(), "state", "new", 0).Err())

	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	var reads, other atomic.Int64
	for i := range 50 {
		all.Go(func() {
			for ctx.Err() == nil {
				c := s.client(0)
				for range 20 {
					switch v, err := c.Get(ctx, "state").Result(); {
					case err == nil && (v == "old" || v == "new"):
						reads.Add(1)
					case err == nil:
						other.Add(1)
					}
					if i == 0 {
						c.BLPop(ctx, time.Second, "nothing") // blocked ones are told
					}
				}
				_ = c.Close()
			}
		})
	}
	testkit.Eventually(t, "the clients are there", func() bool { return reads.Load() > 500 })
	s.restore(t, "db-target")
	seen := reads.Load()
	testkit.Eventually(t, "the clients go on", func() bool { return reads.Load() > seen+500 })
	cancel()
	all.Wait()
	if got := s.digest(t); got != want || other.Load() != 0 {
		t.Fatalf("the state is not the target's, or %d clients saw something else", other.Load())
	}
}
