package files

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"mulligan/snap"
	"mulligan/snap/files/watch"
	"mulligan/testkit"
)

// testStorms: whatever happened, however many events were lost, when it is over
// the journal has what is on disk.
func testStorms(t *testing.T) {
	n := 1000
	if long() {
		n = 3000
	}
	f := newFollowed(t, func(c *Config) { c.Watch = func(o *watch.Options) { o.Queue = 16 } })
	src := t.TempDir()
	for i := range n {
		write(t, fmt.Sprintf("%s/p%d/lib/%d.js", src, i/20, i), fmt.Sprint("module ", i))
	}
	tar := filepath.Join(t.TempDir(), "src.tar")
	sh(t, src, "tar cf "+tar+" .")
	storms := []string{
		"mkdir -p a && tar xf " + tar + " -C a",
		"cp -r a b & cp -r a c; wait",
		"rm -rf a",
		"for i in 1 2 3 4 5; do rm -rf out; mkdir out; cp -r c/p1 c/p2 out/; echo $i > out/stamp; done",
		"mv b e && mv c b && mv e c",
		"(rm -rf b; mkdir b; cp -r c/p3 b/) & (for i in 1 2 3 4 5 6 7 8 9; do echo $i >> log; done; mv c d); wait",
		"find d -name '*.js' | head -200 | xargs chmod 600; find d -name '1*.js' | xargs touch",
		"rm -rf d & tar xf " + tar + " -C b; wait",
	}
	for _, s := range storms {
		sh(t, f.dir, s)
		f.exact(t)
	}
	f.restart(t)
	f.exact(t)
}

func sh(t testing.TB, dir, script string) {
	t.Helper()
	c := exec.Command("sh", "-c", script)
	c.Dir = dir
	if out, err := c.CombinedOutput(); err != nil {
		t.Logf("%s: %v: %.300s", script, err, out) // what a storm tears apart itself is no failure
	}
}

// TestTwoWriters: each turn's checkpoint is what an independent copy, taken
// before the turn began, says; two writers are at work in every turn.
func TestTwoWriters(t *testing.T) {
	rounds := 20
	if long() {
		rounds = 60
	}
	f := newFollowed(t)
	must(t, os.Mkdir(f.dir+"/one", 0o755))
	must(t, os.Mkdir(f.dir+"/two", 0o755))
	type turn struct {
		id   snap.SnapshotID
		copy []string
	}
	var turns []turn
	for range rounds {
		before := listing(t, f.dir)
		start := f.flush(t)
		var wg sync.WaitGroup
		for k, name := range []string{"one", "two"} {
			r := testkit.Rand(t, "writer", k)
			wg.Go(func() {
				scramble(t, r, f.dir+"/"+name, 1+r.IntN(8))
			})
		}
		wg.Go(func() { turns = append(turns, turn{f.at(t, start), before}) })
		wg.Wait()
	}
	f.exact(t)
	r := testkit.Rand(t)
	for range 12 {
		x := turns[r.IntN(len(turns))]
		f.restore(t, x.id)
		same(t, string(x.id), listing(t, f.dir), x.copy)
	}
	f.exact(t)
}
