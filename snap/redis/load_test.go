package redis

import (
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
	"mulligan/snap/snaptest"
	"mulligan/testkit"
)

// write is a client in a process of its own.
func write(arg string) {
	var dsn string
	must(json.Unmarshal([]byte(arg), &dsn))
	opt, err := client.ParseURL(dsn)
	must(err)
	c, ctx := client.NewClient(opt), context.Background()
	must(snaptest.Write(func(n int64) error {
		_, err := c.TxPipelined(ctx, func(p client.Pipeliner) error {
			p.Incr(ctx, "n")
			p.RPush(ctx, "all", n)
			p.HSet(ctx, fmt.Sprint("h:", n%50), "last", n, "text", strings.Repeat("x", int(n%900)))
			p.ZAdd(ctx, "z", client.Z{Score: float64(n), Member: n % 300})
			return nil
		})
		return err
	}))
}

// writable is a subject that a client writes to.
type writable struct{ *subject }

func (s writable) Writer(t *testing.T) *exec.Cmd { return command(t, "writer", s.dsn()) }

// Written checks that the writer's keys agree with each other.
func (s writable) Written(t *testing.T) int64 {
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

// Wreck empties the database, or makes a list of the counter.
func (s writable) Wreck(t *testing.T, seed int64) {
	t.Helper()
	check(t, s.db.FlushAll(t.Context()).Err())
	if seed%2 == 0 {
		check(t, s.db.LPush(t.Context(), "n", "wrong").Err())
	}
}

func TestUnderLoad(t *testing.T) {
	snaptest.RunUnderLoad(t, writable{newSubject(t, "--appendonly", "yes")})
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
