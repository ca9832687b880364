package daemon_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"mulligan/daemon"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/testkit"
)

// crowd is a daemon on a socket with many apps.
type crowd struct {
	d      *daemon.Daemon
	socket string
	client *ipc.Client
	slugs  []string
	spaces []string
}

func newCrowd(t testing.TB, apps int) *crowd {
	t.Helper()
	dir, err := os.MkdirTemp("/var/tmp", "crowd")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	d, err := daemon.Open(t.Context(), daemon.Options{StateDir: filepath.Join(dir, "state")})
	if err != nil {
		t.Fatal(err)
	}
	c := &crowd{d: d, socket: filepath.Join(dir, "s")}
	c.client = ipc.NewClient(c.socket)
	l, err := ipc.Listen(c.socket, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	conns := ipc.NewConns(1000, 500)
	srv := ipc.NewHTTPServer(d.Handler(), conns)
	go srv.Serve(conns.Listen(l))
	t.Cleanup(func() {
		if err := d.Close(context.Background()); err != nil {
			t.Error(err)
		}
		srv.Close()
	})
	for i := range apps {
		slug := fmt.Sprintf("app-%d", i)
		ws := filepath.Join(dir, slug)
		if err := errors.Join(os.Mkdir(ws, 0o755), os.WriteFile(filepath.Join(ws, "file"), []byte(slug), 0o644)); err != nil {
			t.Fatal(err)
		}
		about := ipc.App{Slug: slug, Workspace: ws, Retention: ipc.Retention{KeepLast: 5, ExpireAfter: "0"}}
		if _, err := d.AddApp(t.Context(), root, about); err != nil {
			t.Fatal(err)
		}
		c.slugs, c.spaces = append(c.slugs, slug), append(c.spaces, ws)
	}
	return c
}

// testLoad has 100 clients create, list and watch the events of 200 apps, while
// others hold connections and say nothing: for a few seconds, or for five minutes
// in a long run, and until something of each kind was done. Nothing fails but with busy, and memory
// stays flat.
func testLoad(t *testing.T) {
	testkit.Need(t, "root")
	long, clients := 4*time.Second, 100
	if testkit.Long() {
		long = 5 * time.Minute
	}
	c := newCrowd(t, 200)
	for range 400 { // half-open: none of them shuts anybody out
		conn, err := net.Dial("unix", c.socket)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := io.WriteString(conn, "GET /api/apps HTTP/1.1\r\n"); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var wg sync.WaitGroup
	var creates, lists, busy, events atomic.Int64
	var mu sync.Mutex
	var took []time.Duration
	for n := range clients {
		wg.Go(func() { c.watch(ctx, t, n, &events) })
		rnd := testkit.Rand(t, "client", n)
		wg.Go(func() {
			for ctx.Err() == nil {
				i := rnd.IntN(len(c.slugs))
				if rnd.IntN(4) == 0 {
					_ = os.WriteFile(filepath.Join(c.spaces[i], fmt.Sprint(n)), fmt.Append(nil, rnd.Int64()), 0o644)
					_, err := c.client.CreateCheckpoint(t.Context(), c.slugs[i], ipc.CreateRequest{})
					switch errs.KindOf(err) {
					case "":
						creates.Add(1)
					case errs.Busy:
						busy.Add(1)
					default:
						t.Errorf("create: %v", err)
						return
					}
					continue
				}
				began := time.Now()
				if _, err := c.client.Checkpoints(t.Context(), c.slugs[i], ipc.CheckpointQuery{}); err != nil {
					t.Errorf("list: %v", err)
					return
				}
				lists.Add(1)
				mu.Lock()
				took = append(took, time.Since(began))
				mu.Unlock()
			}
		})
	}
	early := c.heapAfter(long / 2)
	time.AfterFunc(long/2, func() {
		defer cancel()
		for deadline := time.Now().Add(5 * time.Minute); time.Now().Before(deadline) && !t.Failed(); time.Sleep(10 * time.Millisecond) {
			if creates.Load() > 0 && lists.Load() > 0 && events.Load() > 0 {
				return
			}
		}
	})
	wg.Wait()
	late := heap()
	slices.Sort(took)
	t.Logf("%v: %d creates, %d busy, %d lists (p50 %v, p99 %v), %d events; heap %d MiB halfway, %d MiB at the end", long, creates.Load(), busy.Load(),
		lists.Load(), took[len(took)/2], took[len(took)*99/100], events.Load(), early>>20, late>>20)
	if creates.Load() == 0 || events.Load() == 0 {
		t.Error("nothing was done")
	}
	if late > early*3/2+64<<20 {
		t.Errorf("memory grew from %d to %d bytes", early, late)
	}
}

// watch follows an app's events until ctx ends.
func (c *crowd) watch(ctx context.Context, t *testing.T, n int, events *atomic.Int64) {
	conn, err := net.Dial("unix", c.socket)
	if err != nil {
		t.Error(err)
		return
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	fmt.Fprintf(conn, "GET /api/apps/%s/events HTTP/1.1\r\nHost: x\r\nAccept: text/event-stream\r\n\r\n", c.slugs[n%len(c.slugs)])
	buf := make([]byte, 64<<10)
	for ctx.Err() == nil {
		k, err := conn.Read(buf)
		if err != nil && ctx.Err() == nil {
			t.Errorf("the events of %s ended: %v", c.slugs[n%len(c.slugs)], err)
			return
		}
		for _, b := range buf[:k] {
			if b == '{' {
				events.Add(1)
				break
			}
		}
	}
}

func (c *crowd) heapAfter(d time.Duration) uint64 {
	time.Sleep(d) // what is measured is how things are by then
	return heap()
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// BenchmarkList lists the checkpoints of one of 200 apps over the socket, with five
// in each of ten, and reports the 99th percentile in milliseconds.
func BenchmarkList(b *testing.B) {
	c := newCrowd(b, 200)
	for i := range 10 {
		for range 5 {
			if _, err := c.client.CreateCheckpoint(b.Context(), c.slugs[i], ipc.CreateRequest{Pinned: true}); err != nil {
				b.Fatal(err)
			}
		}
	}
	var took []time.Duration
	for i := 0; b.Loop(); i++ {
		began := time.Now()
		if _, err := c.client.Checkpoints(b.Context(), c.slugs[i%10], ipc.CheckpointQuery{}); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
}
