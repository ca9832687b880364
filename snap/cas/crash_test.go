package cas

import (
	"bufio"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"mulligan/errs"
	"mulligan/testkit"
)

// copyDir makes an image of a store's folder, as a process killed now leaves it.
func copyDir(t testing.TB, from string) string {
	t.Helper()
	to := testkit.TempDir(t)
	for _, e := range must(os.ReadDir(from)) {
		p, err := os.ReadFile(filepath.Join(from, e.Name()))
		noErr(t, err)
		noErr(t, os.WriteFile(filepath.Join(to, e.Name()), p, 0o600))
	}
	return to
}

// names lists a store's roots.
func names(s *Store) (list []string) {
	for _, r := range s.Roots("") {
		list = append(list, r.Name)
	}
	return list
}

// history runs commits, deletions and collections, and takes images of the
// folder on the way.
type history struct {
	t      *testing.T
	dir    string
	s      *Store
	blobs  map[string][][]byte
	before []string // roots that the images must have: these, or
	after  []string // these
	images []image
	step   map[string]int
	full   bool // the disk has no room for objects
}

type image struct {
	step, dir     string
	before, after []string
}

func newHistory(t *testing.T) *history {
	h := &history{t: t, dir: testkit.TempDir(t), blobs: map[string][][]byte{}, step: map[string]int{}}
	h.s = open(t, h.dir, Options{SegmentBytes: 8 << 10, PackBytes: 1, Failpoint: h.failpoint})
	return h
}

func (h *history) failpoint(step string) error {
	if h.s == nil {
		return nil // the store is being made
	}
	if h.step[step]++; step == "append-object" || step == "pack-group" {
		if h.full {
			return unix.ENOSPC
		}
		if h.step[step]%5 != 0 {
			return nil // they are many and alike
		}
	}
	h.take(step, func(string) {})
	h.take(step+", power cut", func(dir string) {
		g := h.s.active
		noErr(h.t, os.Truncate(segPath(dir, g.seq), g.durable))
	})
	h.take(step+", power cut, pages written out of order", func(dir string) {
		g := h.s.active
		p := must(os.ReadFile(segPath(dir, g.seq)))
		clear(p[g.durable:min(int64(len(p)), g.durable+600)])
		noErr(h.t, os.WriteFile(segPath(dir, g.seq), p, 0o600))
		for _, idx := range must(filepath.Glob(dir + "/*.idx")) {
			noErr(h.t, os.Truncate(idx, 30))
		}
	})
	return nil
}

func (h *history) take(step string, harm func(dir string)) {
	dir := copyDir(h.t, h.dir)
	harm(dir)
	h.images = append(h.images, image{step, dir, h.before, h.after})
}

// do runs one operation that takes the roots from before to after.
func (h *history) do(change func(roots map[string]bool), run func()) {
	h.before = names(h.s)
	roots := map[string]bool{}
	for _, n := range h.before {
		roots[n] = true
	}
	change(roots)
	h.after = slices.Sorted(maps.Keys(roots))
	run()
	h.before = h.after
	h.take("returned", func(string) {})
}

func (h *history) save(name string, blobs ...[]byte) {
	h.blobs[name] = blobs
	h.do(func(r map[string]bool) { r[name] = true }, func() { save(h.t, h.s, name, blobs...) })
}

func (h *history) delete(name string) {
	h.do(func(r map[string]bool) { delete(r, name) }, func() { noErr(h.t, h.s.Delete(name)) })
}

func (h *history) collect() {
	h.do(func(map[string]bool) {}, func() { must(h.s.Collect(context.Background())) })
}

func (h *history) pack() {
	h.do(func(map[string]bool) {}, func() { must(h.s.Pack(context.Background())) })
}

// text is the i-th version of something.
func text(i int) []byte {
	var p []byte
	for n := range 60 {
		p = fmt.Appendf(p, "line %d of it, which is %x\n", n, n*n*7919)
		if n%20 == i {
			p = fmt.Appendf(p, "changed in %d\n", i)
		}
	}
	return p
}

// A process may die before any durable step: what was committed is there, what
// was not is there wholly or not at all, and the store works on. A third of the images that
// this leaves are looked at, and the next run takes the next third.
func TestCrashAtEveryStep(t *testing.T) {
	t.Parallel() // it waits for the disk
	h := newHistory(t)
	shared := noise(t, 3<<10)
	for i := range 6 {
		h.save(fmt.Sprint(i), shared, noise(t, 2<<10), noise(t, 1<<10))
	}
	for _, name := range []string{"0", "2", "3"} {
		h.delete(name)
	}
	h.collect()
	h.pack()
	for i := range 4 {
		h.save(fmt.Sprint("later ", i), shared, text(i))
	}
	h.pack()
	h.delete("later 1")
	h.collect()
	for i := range 6 {
		h.save(fmt.Sprint("loose ", i), noise(t, 3<<10))
	}
	h.full = true
	for _, name := range []string{"1", "5", "loose 0", "loose 1", "loose 3", "loose 4"} {
		h.delete(name) // of packs, and of loose segments
	}
	h.collect()
	h.full = false
	h.save("7", shared, noise(t, 5<<10))
	h.pack()
	h.delete("7")
	h.delete("later 2")
	h.collect()
	h.pack()
	for _, step := range []string{"append-object", "append-change", "sync", "append-again", "create-segment",
		"sync-segment", "name-segment", "sync-copies", "remove-segment", "punch-segment",
		"pack-group", "sync-pack", "name-pack", "publish-pack"} {
		if h.step[step] == 0 {
			t.Errorf("step %q never came", step)
		}
	}
	for _, i := range testkit.Sample(t, "images", len(h.images), len(h.images)/3) {
		img := h.images[i]
		t.Run(fmt.Sprintf("%d %s", i, img.step), func(t *testing.T) { h.verify(t, img) })
	}
}

func (h *history) verify(t *testing.T, img image) {
	s, err := Open(img.dir, small)
	noErr(t, err)
	defer s.Close()
	have := names(s)
	if !slices.Equal(have, img.before) && !slices.Equal(have, img.after) {
		t.Fatalf("roots are %v, want %v or %v", have, img.before, img.after)
	}
	for range 2 {
		for _, name := range have {
			expect(t, s, name, h.blobs[name]...)
		}
		save(t, s, "new", []byte("new"))
		expect(t, s, "new", []byte("new"))
		must(s.Collect(context.Background()))
		must(s.Pack(context.Background()))
		onDisk(t, s)
	}
}

// Every step may fail and the store goes on; a sync that failed takes back what
// it was for.
func TestEveryStepMayFail(t *testing.T) {
	t.Parallel() // it waits for the disk
	steps := map[string]bool{}
	for n := 1; ; n++ {
		count, failed := 0, ""
		o := small
		armed := false
		o.Failpoint = func(step string) error {
			if !armed {
				return nil
			}
			if count++; count == n {
				failed = step
				return errors.New("made to fail")
			}
			return nil
		}
		dir := testkit.TempDir(t)
		s := open(t, dir, o)
		old := [][]byte{noise(t, 3<<10), noise(t, 3<<10)}
		save(t, s, "keep", old[1], []byte("k"))
		oldest := [][]byte{noise(t, 9<<10)}
		save(t, s, "oldest", oldest...)
		must(s.Pack(context.Background()))
		save(t, s, "old", old...)
		armed = true
		refused := 0
		try := func(err error) {
			if err != nil {
				wantKind(t, err, errs.Failed)
				refused++
			}
		}
		b := s.Begin()
		blob := noise(t, 5<<10)
		h, err := b.Blob(blob)
		if try(err); err == nil {
			node, err := b.Node([]byte("node of new"), []Hash{h})
			if try(err); err == nil {
				try(b.Commit(Root{Name: "new", Hash: node, Meta: []byte("new's own")}))
			}
		}
		b.Discard()
		try(s.Delete("old"))
		_, err = s.Pack(context.Background())
		try(err)
		try(s.Delete("oldest"))
		_, err = s.Collect(context.Background())
		try(err)
		armed = false
		if failed == "" {
			break
		}
		steps[failed] = true
		if refused == 0 && failed != "append-again" {
			t.Errorf("step %d, %s: nobody was told", n, failed)
		}
		for range 2 {
			expect(t, s, "keep", old[1], []byte("k"))
			if _, err := s.Root("new"); err == nil {
				expect(t, s, "new", blob)
			}
			if _, err := s.Root("oldest"); err == nil {
				expect(t, s, "oldest", oldest...)
			}
			if _, err := s.Root("old"); err == nil {
				expect(t, s, "old", old...)
			}
			save(t, s, "later", old[0])
			expect(t, s, "later", old[0])
			must(s.Collect(context.Background()))
			must(s.Pack(context.Background()))
			recount(t, s)
			noErr(t, s.Close())
			s = open(t, dir, small)
		}
	}
	if len(steps) < 12 {
		t.Errorf("only these steps failed: %v", slices.Sorted(maps.Keys(steps)))
	}
}

// recount compares the reference counts with those of the store opened anew.
func recount(t testing.TB, s *Store) {
	t.Helper()
	fresh, err := Open(copyDir(t, s.dir), small)
	noErr(t, err)
	defer fresh.Close()
	for h, e := range s.index {
		if e.refs != fresh.index[h].refs {
			t.Fatalf("object %v has %d references, and %d after opening anew", h, e.refs, fresh.index[h].refs)
		}
	}
}

// The end of the log may be torn anywhere: exactly what was committed stays.
func TestTornTailAtEveryByte(t *testing.T) {
	t.Parallel() // it waits for the disk
	dir := testkit.TempDir(t)
	s := open(t, dir, Options{})
	save(t, s, "first", []byte("one"), noise(t, 200))
	b := s.Begin()
	blob := noise(t, 150)
	n := must(b.Node([]byte("node of second"), []Hash{must(b.Blob(blob))}))
	start := s.active.size.Load()
	commitEnd := int64(0)
	s.opt.Failpoint = func(step string) error {
		if step == "sync" && commitEnd == 0 {
			commitEnd = s.active.size.Load()
		}
		return nil
	}
	noErr(t, b.Commit(Root{Name: "second", Hash: n, Meta: []byte("second's own")}))
	end := s.active.size.Load()
	objects := s.active.objects
	noErr(t, s.Close())
	from := int64(objects[len(objects)-2].off) // the blob of the second commit
	if from >= start {
		t.Fatal("the second commit's objects are not where they should be")
	}
	whole := must(os.ReadFile(segPath(dir, 1)))
	for cut := from; cut <= end; cut++ {
		img := testkit.TempDir(t)
		noErr(t, os.WriteFile(img+"/format", must(os.ReadFile(dir+"/format")), 0o600))
		noErr(t, os.WriteFile(segPath(img, 1), whole[:cut], 0o600))
		s := must(Open(img, Options{}))
		if got, want := len(s.Roots("")), 1; cut < commitEnd && got != want || cut >= commitEnd && got != 2 {
			t.Fatalf("cut at %d of %d (commit ends at %d): roots %v", cut, end, commitEnd, names(s))
		}
		if cut >= commitEnd {
			expect(t, s, "second", blob)
		}
		noErr(t, s.Check(context.Background(), "first", true))
		save(t, s, "third", blob)
		expect(t, s, "third", blob)
		noErr(t, s.Close())
		s = must(Open(img, Options{}))
		expect(t, s, "third", blob)
		noErr(t, s.Close())
	}
}

// A process is killed with SIGKILL while it commits and collects.
func TestKilledProcess(t *testing.T) {
	if dir := os.Getenv("CAS_TEST_VICTIM"); dir != "" {
		victim(dir)
	}
	dir := testkit.TempDir(t)
	for range 5 {
		cmd := exec.Command(os.Args[0], "-test.run=^TestKilledProcess$")
		cmd.Env = append(os.Environ(), "CAS_TEST_VICTIM="+dir)
		out := must(cmd.StdoutPipe())
		noErr(t, cmd.Start())
		said := map[string]bool{}
		lines := bufio.NewScanner(out)
		for n := 0; n < 60 && lines.Scan(); n++ {
			said[lines.Text()] = true
		}
		noErr(t, cmd.Process.Kill())
		for lines.Scan() { // what it had said by then
			said[lines.Text()] = true
		}
		_ = cmd.Wait() // it was killed
		s := must(Open(dir, small))
		for line := range said {
			if name, ok := strings.CutPrefix(line, "saved "); ok && !said["deleting "+name] {
				noErr(t, s.Check(context.Background(), name, true))
			}
			if name, ok := strings.CutPrefix(line, "deleted "); ok {
				if _, err := s.Root(name); err == nil {
					t.Errorf("%q was deleted and is back", name)
				}
			}
		}
		for _, name := range names(s) {
			noErr(t, s.Check(context.Background(), name, true))
		}
		must(s.Collect(context.Background()))
		noErr(t, s.Close())
		if len(said) < 60 {
			t.Fatalf("the victim said only %d lines", len(said))
		}
	}
}

// victim works until it is killed, and says what it has done.
func victim(dir string) {
	s := must(Open(dir, small))
	go func() {
		for {
			must(s.Collect(context.Background()))
			must(s.Pack(context.Background()))
		}
	}()
	for i := 0; ; i++ {
		name := fmt.Sprintf("%d-%d", os.Getpid(), i)
		b := s.Begin()
		content := make([]byte, 1000)
		must(rand.NewChaCha8(sha256.Sum256([]byte(name))).Read(content))
		n := must(b.Node(nil, []Hash{must(b.Blob(content)), must(b.Series("text").Blob(append(text(i%9), name...)))}))
		if err := b.Commit(Root{Name: name, Hash: n}); err != nil {
			panic(err)
		}
		fmt.Println("saved", name)
		if i >= 3 {
			old := fmt.Sprintf("%d-%d", os.Getpid(), i-3)
			fmt.Println("deleting", old)
			if err := s.Delete(old); err != nil {
				panic(err)
			}
			fmt.Println("deleted", old)
		}
	}
}
