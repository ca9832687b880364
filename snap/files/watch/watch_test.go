package watch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"mulligan/snap"
	"mulligan/testkit"
)

func TestBarrierIsNeverEarly(t *testing.T) {
	w, dir := follow(t, Options{})
	mkdir(t, filepath.Join(dir, "a/b"))
	barrier(t, w)
	w.Take()
	for i := range 2000 {
		path := fmt.Sprintf("a/b/f%d", i%7)
		write(t, filepath.Join(dir, path), fmt.Sprint(i))
		barrier(t, w)
		if s := w.Take(); s.All || !slices.Contains(s.Paths, path) {
			t.Fatalf("round %d: %q is not in %+v", i, path, s)
		}
	}
}

func TestBarrierSeesIntoNewTrees(t *testing.T) {
	w, dir := follow(t, Options{})
	for i := range 300 {
		top := fmt.Sprintf("n%d", i)
		mkdir(t, filepath.Join(dir, top, "s0/s1/s2"))
		barrier(t, w)
		first := w.Take()
		write(t, filepath.Join(dir, top, "s0/s1/s2/f"), "x")
		barrier(t, w)
		if s := w.Take(); !slices.Contains(first.Subtrees, top) || !slices.Contains(s.Paths, top+"/s0/s1/s2/f") {
			t.Fatalf("round %d: %+v, then %+v", i, first, s)
		}
	}
}

// A file that is written through a mapping is in the set once it is closed.
func TestMapping(t *testing.T) {
	w, dir := follow(t, Options{})
	mkdir(t, filepath.Join(dir, "d"))
	for i := range 20 {
		path := filepath.Join(dir, "d", fmt.Sprint(i))
		write(t, path, "before")
		barrier(t, w)
		w.Take()
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		p, err := unix.Mmap(int(f.Fd()), 0, 6, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err != nil {
			t.Fatal(err)
		}
		f.Close() // the mapping holds it open
		copy(p, "after!")
		if err := unix.Munmap(p); err != nil {
			t.Fatal(err)
		}
		barrier(t, w)
		if s := w.Take(); !slices.Contains(s.Paths, fmt.Sprint("d/", i)) {
			t.Fatalf("round %d: %+v", i, s)
		}
	}
}

// storm runs writers beside somebody who takes and looks, and compares at the end.
func storm(t *testing.T, queue int, writers ...func(dir string)) *model {
	w, dir := follow(t, Options{Queue: queue})
	m := newModel(dir)
	done := make(chan struct{})
	var looking, writing sync.WaitGroup
	looking.Go(func() {
		for {
			select {
			case <-w.Dirty():
				m.apply(w.Take())
			case <-done:
				return
			}
		}
	})
	for _, write := range writers {
		writing.Go(func() { write(dir) })
	}
	writing.Wait()
	barrier(t, w)
	close(done)
	looking.Wait()
	m.apply(w.Take())
	m.check(t)
	return m
}

func TestStorms(t *testing.T) {
	tarball := filepath.Join(t.TempDir(), "t.tar")
	src := filepath.Join(os.Getenv("GOROOT"), "src/net")
	if _, err := os.Stat(src); err != nil {
		out, err := exec.Command("go", "env", "GOROOT").Output()
		must(t, err)
		src = filepath.Join(string(out[:len(out)-1]), "src/net")
	}
	run(t, "/", "tar", "cf", tarball, "-C", src, ".")
	untar := func(name string) func(string) {
		return func(dir string) {
			for range 3 {
				must(t, os.MkdirAll(filepath.Join(dir, name), 0o755))
				run(t, filepath.Join(dir, name), "tar", "xf", tarball)
				run(t, dir, "rm", "-rf", name)
				must(t, os.MkdirAll(filepath.Join(dir, name), 0o755))
				run(t, filepath.Join(dir, name), "tar", "xf", tarball)
			}
		}
	}
	chains := func(dir string) {
		for i := range 100 {
			p := filepath.Join(dir, fmt.Sprintf("chain%d", i))
			for j := range 5 {
				p = filepath.Join(p, fmt.Sprint(j))
				_ = os.MkdirAll(p, 0o755)
				_ = os.WriteFile(filepath.Join(p, "f"), []byte("x"), 0o644)
			}
			if i%3 == 0 {
				_ = os.RemoveAll(filepath.Join(dir, fmt.Sprintf("chain%d", i/3)))
			}
		}
	}
	for _, queue := range []int{0, 16} {
		for name, writers := range map[string][]func(string){
			"tar and rm":           {untar("x")},
			"tar beside tar":       {untar("x"), untar("y")},
			"chains":               {chains},
			"renames":              {scramble(t, 1500), scramble(t, 1500)},
			"renames and chains":   {scramble(t, 1500), chains},
			"exchanges of folders": {exchange(t, 400), exchange(t, 400)},
		} {
			t.Run(fmt.Sprintf("%s, queue %d", name, queue), func(t *testing.T) {
				t.Parallel()
				m := storm(t, queue, writers...)
				t.Logf("%d entries, walked whole %d times", len(m.entries), m.alls)
			})
		}
	}
}

func run(t *testing.T, dir string, args ...string) {
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v: %v: %s", args, err, out)
	}
}

// scramble makes, writes, moves and removes files and folders at random among
// few names, so that several writers meet; what fails for that is no matter.
func scramble(t testing.TB, n int) func(dir string) {
	r := testkit.Rand(t)
	return func(dir string) {
		path := func() string {
			p := dir
			for range 1 + r.IntN(4) {
				p = filepath.Join(p, string(rune('a'+r.IntN(5))))
			}
			return p
		}
		for i := range n {
			switch r.IntN(10) {
			case 0, 1:
				_ = os.MkdirAll(path(), 0o755)
			case 2, 3, 4:
				_ = os.WriteFile(path(), []byte(fmt.Sprint(r.Uint32(), i)), 0o644)
			case 5, 6, 7:
				_ = os.Rename(path(), path())
			case 8:
				_ = os.RemoveAll(path())
			case 9:
				_ = os.Chmod(path(), os.FileMode(0o700+r.IntN(64)))
			}
		}
	}
}

func TestPathsAreRawBytes(t *testing.T) {
	w, dir := follow(t, Options{})
	for _, name := range []string{"line\nbreak", "\xff\xfe", " ", "fd", "...", "-rf", "*"} {
		mkdir(t, filepath.Join(dir, name))
		barrier(t, w)
		first := w.Take()
		write(t, filepath.Join(dir, name, name), "x")
		barrier(t, w)
		if s := w.Take(); !slices.Contains(first.Subtrees, name) || !slices.Contains(s.Paths, name+"/"+name) {
			t.Errorf("%q: %+v, then %+v", name, first, s)
		}
	}
}

func TestBarrierEndsWithItsContext(t *testing.T) {
	w, _ := follow(t, Options{})
	ctx, stop := context.WithCancel(context.Background())
	stop()
	w.turn <- struct{}{}
	if err := w.Barrier(ctx); err == nil {
		t.Error("a Barrier went through while another was under way")
	}
	<-w.turn
	barrier(t, w)
}

func TestCookiesAreTakenAway(t *testing.T) {
	w, dir := follow(t, Options{})
	err := os.RemoveAll(w.opt.CookieDir)
	for errors.Is(err, unix.ENOTEMPTY) { // the watcher put one there meanwhile
		err = os.RemoveAll(w.opt.CookieDir)
	}
	must(t, err)
	write(t, filepath.Join(dir, "f"), "x")
	barrier(t, w)
	if s := w.Take(); !s.All && !slices.Contains(s.Paths, "f") {
		t.Errorf("%+v lacks f", s)
	}
	until(t, w, snap.Watching)
	mkdir(t, filepath.Join(dir, "d"))
	write(t, filepath.Join(dir, "d/g"), "x")
	barrier(t, w)
	if s := w.Take(); !s.All && !slices.Contains(s.Subtrees, "d") {
		t.Errorf("%+v lacks d", s)
	}
}
