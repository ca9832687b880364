package redis

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	client "github.com/redis/go-redis/v9"

	"mulligan/privsep"
	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/cas/chunked"
	"mulligan/snap/snaptest"
	"mulligan/testkit"
)

func TestConformance(t *testing.T) {
	args := map[string][]string{
		"AppendOnly": {"--appendonly", "yes", "--save", "3600 1"},
		"Plain":      {"--save", ""},
	}
	for _, variant := range snaptest.Variants(t, "ways to persist", "AppendOnly", "Plain") {
		t.Run(variant, func(t *testing.T) {
			snaptest.RunSlow(t, func(t *testing.T) snaptest.Subject { return newSubject(t, args[variant]...) })
		})
	}
}

// Slow has the suite take fewer of its steps.
func (s *subject) Slow() bool { return !snaptest.Long() }

// subject is a server with a driver over it.
type subject struct {
	*server
	cfg    Config
	driver *Driver
}

func newSubject(t testing.TB, args ...string) *subject {
	t.Helper()
	dir := testkit.TempDir(t)
	store, err := cas.Open(filepath.Join(dir, "store"), cas.Options{SegmentBytes: 64 << 10})
	check(t, err)
	s := &subject{server: startServer(t, args...), cfg: config(dir)}
	s.cfg.DSN, s.cfg.Store = s.dsn(), store
	t.Cleanup(func() { check(t, s.cfg.Store.Close()) })
	s.reopen(t)
	s.mutate(t, 1000)
	return s
}

func config(dir string) Config {
	return Config{App: "app-1", Name: "cache", StateDir: filepath.Join(dir, "state"), Owner: privsep.Self, Timeout: 20 * time.Second}
}

func (s *subject) reopen(t testing.TB) {
	t.Helper()
	d, err := New(s.cfg)
	check(t, err)
	s.driver = d
}

func (s *subject) Driver() snap.Driver             { return s.driver }
func (s *subject) Reopen(t *testing.T)             { s.reopen(t) }
func (s *subject) Mutate(t *testing.T, seed int64) { s.mutate(t, seed) }
func (s *subject) Fingerprint(t *testing.T) string { return s.digest(t) }
func sortedStrings(list []string) []string         { slices.Sort(list); return list }
func noise(r *rand.Rand, n int) string {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return string(b)
}

// mutate writes values of every type in every encoding, small and large, in
// several databases, with and without an end.
func (s *subject) mutate(t testing.TB, seed int64) {
	t.Helper()
	ctx, r := context.Background(), testkit.Rand(t)
	name := func(kind string) string { return fmt.Sprintf("%s:%d", kind, r.IntN(6)) }
	for _, db := range []int{0, r.IntN(3)} {
		c := s.client(db)
		_, err := c.Pipelined(ctx, func(p client.Pipeliner) error {
			if seed%7 == 0 {
				p.FlushDB(ctx)
			}
			p.Set(ctx, "seed", seed, 0)
			p.Set(ctx, "noise:"+fmt.Sprint(r.IntN(4)), noise(r, 40<<10), 0)
			p.Set(ctx, name("text"), bytes.Repeat([]byte("abc"), r.IntN(2000)), 0)
			p.Set(ctx, name("ends"), "x", 1000*time.Hour+time.Duration(seed)*time.Second)
			p.Append(ctx, name("text"), "tail")
			for i, n := range []int{3, 150} { // packed, and not
				list, set, zset, hash := name(fmt.Sprint("list", i)), name(fmt.Sprint("set", i)), name(fmt.Sprint("zset", i)), name(fmt.Sprint("hash", i))
				for j := range n {
					p.RPush(ctx, list, r.IntN(1<<(1+j%40)), noise(r, j%90))
					p.SAdd(ctx, set, r.IntN(1<<(1+j%40)), fmt.Sprint("m", j))
					p.SAdd(ctx, set+"-int", r.IntN(1<<(1+j%60)))
					p.ZAdd(ctx, zset, client.Z{Score: float64(r.IntN(100000)) / 7, Member: fmt.Sprint("z", r.IntN(n))}, client.Z{Score: float64(j), Member: j})
					p.HSet(ctx, hash, fmt.Sprint("f", r.IntN(n)), -r.IntN(1<<(1+j%40)), "text", noise(r, j%70))
				}
				p.LTrim(ctx, list, -400, -1)
			}
			p.RPush(ctx, "big", noise(r, 10<<10))
			p.XAdd(ctx, &client.XAddArgs{Stream: "log", Values: []any{"seed", seed, "more", noise(r, 20)}})
			p.XGroupDestroy(ctx, "log", fmt.Sprint("group", seed))
			p.XGroupCreate(ctx, "log", fmt.Sprint("group", seed), "0")
			p.XReadGroup(ctx, &client.XReadGroupArgs{Group: fmt.Sprint("group", seed), Consumer: "one", Streams: []string{"log", ">"}, Count: 2})
			p.FunctionLoadReplace(ctx, fmt.Sprintf("#!lua name=lib\nredis.register_function('f%d', function() return 1 end)", seed))
			p.Del(ctx, name("text"), name("set0"))
			return nil
		})
		check(t, err)
		check(t, c.Close())
	}
}

// Damage flips a byte of the snapshot's last chunk, where a segment of the
// store has it: behind the header that holds its hash (cas/DESIGN.md).
func (s *subject) Damage(t *testing.T, id snap.SnapshotID) {
	t.Helper()
	root, err := s.cfg.Store.Root(s.driver.records.SnapshotRoot(id))
	check(t, err)
	_, lists, err := s.cfg.Store.Node(root.Hash)
	check(t, err)
	chunks, err := chunked.NewReader(t.Context(), s.cfg.Store, lists).Hashes()
	check(t, err)
	hash := chunks[len(chunks)-1]
	files, err := filepath.Glob(filepath.Join(filepath.Dir(s.cfg.StateDir), "store", "*.seg"))
	check(t, err)
	for _, path := range files {
		data, err := os.ReadFile(path)
		check(t, err)
		at := bytes.Index(data, hash[:])
		if at < 24 || data[at-16] != 1 || at+100 >= len(data) {
			continue
		}
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		check(t, err)
		_, err = f.WriteAt([]byte{data[at+100] ^ 1}, int64(at+100))
		check(t, err)
		check(t, f.Close())
		return
	}
	t.Fatalf("chunk %s is in no segment", hex.EncodeToString(hash[:]))
}

func (s *subject) Stored(t *testing.T) int64 {
	t.Helper()
	_, err := s.cfg.Store.Collect(context.Background())
	check(t, err)
	return s.cfg.Store.DiskUsage()
}
