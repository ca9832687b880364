package watch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/testkit"
)

// A folder is swapped for a link to a foreign one over and over, while things
// happen in both. Not one foreign name may come through.
func TestNoWatchFollowsALink(t *testing.T) {
	w, dir := follow(t, Options{})
	foreign := t.TempDir()
	mkdir(t, filepath.Join(foreign, "deep"))
	done := make(chan struct{})
	var busy sync.WaitGroup
	loop := func(f func(i int)) {
		busy.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-done:
					return
				default:
					f(i)
				}
			}
		})
	}
	loop(func(i int) {
		_ = os.WriteFile(filepath.Join(foreign, "deep", fmt.Sprintf("secret%d", i%50)), []byte("x"), 0o600)
		_ = os.WriteFile(filepath.Join(foreign, fmt.Sprintf("secret%d", i%50)), []byte("x"), 0o600)
	})
	at := filepath.Join(dir, "a")
	loop(func(int) {
		_ = os.MkdirAll(filepath.Join(at, "deep"), 0o755)
		_ = os.WriteFile(filepath.Join(at, "deep", "own"), nil, 0o644)
		_ = os.RemoveAll(at)
		_ = os.Symlink(foreign, at)
		_ = os.Remove(at)
		_ = os.Mkdir(at, 0o755)
		_ = os.Symlink(foreign, filepath.Join(at, "deep"))
		_ = os.RemoveAll(at)
	})
	own := 0
	for range 300 {
		barrier(t, w)
		s := w.Take()
		for _, p := range slices.Concat(s.Paths, s.Subtrees) {
			if strings.Contains(p, "secret") {
				t.Fatalf("a foreign name came through: %q", p)
			}
			own++
		}
	}
	close(done)
	busy.Wait()
	if own == 0 {
		t.Error("nothing was reported at all")
	}
}

func TestFolderReplacedByALink(t *testing.T) {
	w, dir := follow(t, Options{})
	foreign := t.TempDir()
	mkdir(t, filepath.Join(dir, "a/b"))
	barrier(t, w)
	w.Take()
	must(t, os.Rename(filepath.Join(dir, "a"), filepath.Join(foreign, "a")))
	must(t, os.Symlink(foreign, filepath.Join(dir, "a")))
	barrier(t, w)
	if s := w.Take(); !slices.Contains(s.Paths, "a") {
		t.Errorf("the replaced folder is not in %+v", s)
	}
	write(t, filepath.Join(foreign, "a/b/f"), "x") // it was watched while it was here
	write(t, filepath.Join(foreign, "f"), "x")
	barrier(t, w)
	if s := w.Take(); !s.Empty() {
		t.Errorf("writes elsewhere were reported: %+v", s)
	}
}

func TestMovesInAndOut(t *testing.T) {
	w, dir := follow(t, Options{})
	m := newModel(dir)
	outside := t.TempDir()
	mkdir(t, filepath.Join(outside, "in/x/y"))
	write(t, filepath.Join(outside, "in/x/y/f"), "1")
	must(t, os.Rename(filepath.Join(outside, "in"), filepath.Join(dir, "in")))
	barrier(t, w)
	s := w.Take()
	if !slices.Contains(s.Subtrees, "in") {
		t.Errorf("a tree moved in is not to be walked: %+v", s)
	}
	m.apply(s)
	write(t, filepath.Join(dir, "in/x/y/g"), "2")
	must(t, os.Rename(filepath.Join(dir, "in/x"), filepath.Join(dir, "x")))
	write(t, filepath.Join(dir, "x/y/h"), "3")
	barrier(t, w)
	m.apply(w.Take())
	m.check(t)
	must(t, os.Rename(filepath.Join(dir, "x"), filepath.Join(outside, "x")))
	barrier(t, w)
	m.apply(w.Take())
	m.check(t)
	write(t, filepath.Join(outside, "x/y/later"), "4")
	barrier(t, w)
	if s := w.Take(); !s.Empty() {
		t.Errorf("what was moved out is still watched: %+v", s)
	}
}

func TestExcludedIsNeitherWatchedNorReported(t *testing.T) {
	w, dir := follow(t, Options{Exclude: func(rel string, isDir bool) bool {
		return strings.HasSuffix(rel, ".log") || isDir && filepath.Base(rel) == "build"
	}})
	mkdir(t, filepath.Join(dir, "build/deep"))
	mkdir(t, filepath.Join(dir, "src/build"))
	write(t, filepath.Join(dir, "build/deep/o"), "x")
	write(t, filepath.Join(dir, "a.log"), "x")
	write(t, filepath.Join(dir, "src/build/o"), "x")
	mkdir(t, filepath.Join(dir, "lib"))
	write(t, filepath.Join(dir, "lib/build"), "a file of that name")
	barrier(t, w)
	s := w.Take()
	if want := []string{"."}; !slices.Equal(s.Paths, want) {
		t.Errorf("paths %q, want %q", s.Paths, want)
	}
	if want := []string{"lib", "src"}; !slices.Equal(s.Subtrees, want) {
		t.Errorf("subtrees %q, want %q", s.Subtrees, want)
	}
	write(t, filepath.Join(dir, "build/deep/o"), "y")
	write(t, filepath.Join(dir, "lib/build"), "z")
	barrier(t, w)
	if s := w.Take(); !slices.Equal(s.Paths, []string{"lib/build"}) || s.Subtrees != nil {
		t.Errorf("then %+v", s)
	}
}

func TestRootMovedAndBack(t *testing.T) {
	parent := t.TempDir()
	dir := filepath.Join(parent, "p/ws")
	mkdir(t, filepath.Join(dir, "a/b"))
	w, _ := follow(t, Options{Dir: dir})
	m := newModel(dir)
	for _, move := range [][2]string{
		{dir, filepath.Join(parent, "elsewhere")},
		{filepath.Dir(dir), filepath.Join(parent, "q")}, // no event says so
	} {
		must(t, os.Rename(move[0], move[1]))
		if err := w.Barrier(t.Context()); errs.KindOf(err) != errs.Unavailable || errs.HintOf(err) == "" {
			t.Fatalf("a Barrier without a workspace: %v", err)
		}
		until(t, w, snap.Degraded)
		if f := w.State(); f.Detail == "" || f.Remedy == "" {
			t.Errorf("no reason and no remedy: %+v", f)
		}
		if s := w.Take(); len(s.Paths)+len(s.Subtrees) > 0 {
			t.Errorf("a moved root is reported as %+v", s)
		}
		must(t, os.Rename(move[1], move[0]))
		write(t, filepath.Join(dir, "a/b/f"), move[1])
		barrier(t, w)
		s := w.Take()
		if !s.All {
			t.Errorf("back again: %+v, want All", s)
		}
		m.apply(s)
		m.check(t)
		until(t, w, snap.Watching)
		write(t, filepath.Join(dir, "a/b/g"), move[1])
		barrier(t, w)
		if s := w.Take(); !slices.Contains(s.Paths, "a/b/g") {
			t.Errorf("not watched again: %+v", s)
		}
	}
}

func TestRootMadeAnew(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "ws")
	mkdir(t, dir)
	w, _ := follow(t, Options{Dir: dir})
	must(t, os.Rename(dir, dir+".old"))
	mkdir(t, filepath.Join(dir, "new"))
	barrier(t, w)
	if s := w.Take(); !s.All {
		t.Errorf("%+v, want All", s)
	}
	until(t, w, snap.Watching)
	write(t, filepath.Join(dir, "new/f"), "x")
	barrier(t, w)
	if s := w.Take(); !slices.Contains(s.Paths, "new/f") {
		t.Errorf("the new folder is not watched: %+v", s)
	}
}

func TestRootMountedOver(t *testing.T) {
	testkit.Need(t, "root")
	dir := t.TempDir()
	write(t, filepath.Join(dir, "f"), "x")
	w, _ := follow(t, Options{Dir: dir})
	if err := unix.Mount("none", dir, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	mounted := true
	unmount := func() {
		if mounted {
			must(t, unix.Unmount(dir, unix.MNT_DETACH))
			mounted = false
		}
	}
	t.Cleanup(unmount)
	if err := w.Barrier(t.Context()); errs.KindOf(err) != errs.Unavailable {
		t.Fatalf("a Barrier on another filesystem: %v", err)
	}
	until(t, w, snap.Degraded)
	unmount()
	barrier(t, w)
	if s := w.Take(); !s.All {
		t.Errorf("%+v, want All", s)
	}
	until(t, w, snap.Watching)
}

func TestMountsAreLeftOut(t *testing.T) {
	testkit.Need(t, "root")
	dir, other := t.TempDir(), t.TempDir()
	for _, m := range []string{"tmp", "bind"} {
		mkdir(t, filepath.Join(dir, m))
	}
	must(t, unix.Mount("none", filepath.Join(dir, "tmp"), "tmpfs", 0, ""))
	t.Cleanup(func() { must(t, unix.Unmount(filepath.Join(dir, "tmp"), unix.MNT_DETACH)) })
	must(t, unix.Mount(other, filepath.Join(dir, "bind"), "", unix.MS_BIND, ""))
	t.Cleanup(func() { must(t, unix.Unmount(filepath.Join(dir, "bind"), unix.MNT_DETACH)) })
	w, _ := follow(t, Options{Dir: dir})
	write(t, filepath.Join(dir, "tmp/f"), "x")
	write(t, filepath.Join(dir, "bind/f"), "x")
	barrier(t, w)
	if s := w.Take(); !s.Empty() {
		t.Errorf("what is mounted was reported: %+v", s)
	}
}

// TestMountsComeAndGo: what a mount covers, and what appears at its end, is reported like any change, and watched from then on.
func TestMountsComeAndGo(t *testing.T) {
	testkit.Need(t, "root")
	dir, other := t.TempDir(), t.TempDir()
	write(t, filepath.Join(other, "f"), "x")
	mkdir(t, filepath.Join(other, "inner"))
	mkdir(t, filepath.Join(dir, "old/sub"))
	write(t, filepath.Join(dir, "old/sub/f"), "x")
	mkdir(t, filepath.Join(dir, "new"))
	write(t, filepath.Join(dir, "file"), "x")
	mkdir(t, filepath.Join(dir, "out/sub"))
	mount := func(from, to string) {
		t.Helper()
		must(t, unix.Mount(filepath.Join(other, from), filepath.Join(dir, to), "", unix.MS_BIND, ""))
		t.Cleanup(func() { _ = unix.Unmount(filepath.Join(dir, to), unix.MNT_DETACH) })
	}
	mount(".", "old") // before it is watched
	w, _ := follow(t, Options{Dir: dir, Exclude: func(rel string, _ bool) bool { return rel == "out" }})
	says := func(what string, want ...string) {
		t.Helper()
		barrier(t, w)
		s := w.Take()
		if got := append(s.Paths, s.Subtrees...); s.All || !slices.Equal(slices.Sorted(slices.Values(got)), want) {
			t.Errorf("%s: %+v, want %q", what, s, want)
		}
	}
	mount(".", "new")
	mount("f", "file")
	mount(".", "out/sub")
	says("mounted", "file", "new")
	mount("inner", "new/inner") // in another mount
	says("mounted in a mount")
	write(t, filepath.Join(dir, "new/g"), "x")
	says("written in a mount")
	for _, name := range []string{"new/inner", "new", "file", "old", "out/sub"} {
		must(t, unix.Unmount(filepath.Join(dir, name), 0))
	}
	says("unmounted", "file", "new", "old")
	write(t, filepath.Join(dir, "old/sub/f"), "y")
	write(t, filepath.Join(dir, "new/f"), "y")
	says("written to what was covered", "new", "new/f", "old/sub/f")
}

// fewWatches is the environment of a test process that may have so many watches.
const fewWatches = "MULLIGAN_TEST_FEW_WATCHES"

// The limit of watches counts per user namespace: the test runs itself in one of its own.
func TestNotEnoughWatches(t *testing.T) {
	if os.Getenv(fewWatches) == "" {
		cmd := exec.Command("/proc/self/exe", "-test.run=^TestNotEnoughWatches$", "-test.v")
		cmd.Env = append(os.Environ(), fewWatches+"=1")
		me := func(id int) []syscall.SysProcIDMap { return []syscall.SysProcIDMap{{HostID: id, Size: 1}} }
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: me(os.Getuid()), GidMappings: me(os.Getgid())}
		out, err := cmd.CombinedOutput()
		if errors.Is(err, syscall.EPERM) {
			testkit.Lack(t, "this user may not make a user namespace")
		}
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	limit := func(n int) {
		must(t, os.WriteFile("/proc/sys/user/max_inotify_watches", []byte(fmt.Sprint(n)), 0))
	}
	limit(20)
	dir := t.TempDir()
	for i := range 10 {
		mkdir(t, filepath.Join(dir, fmt.Sprint(i)))
	}
	w, _ := follow(t, Options{Dir: dir})
	for i := range 30 {
		mkdir(t, filepath.Join(dir, fmt.Sprintf("more%d", i), "below"))
	}
	barrier(t, w)
	m := newModel(dir)
	until(t, w, snap.Degraded)
	if f := w.State(); !strings.Contains(f.Remedy, "sysctl fs.inotify.max_user_watches") {
		t.Errorf("no remedy: %+v", f)
	}
	write(t, filepath.Join(dir, "more29/below/f"), "x")
	write(t, filepath.Join(dir, "0/f"), "x")
	barrier(t, w)
	s := w.Take()
	if !s.All {
		t.Errorf("%+v: a Barrier that cannot know must say All", s)
	}
	m.apply(s)
	m.check(t)

	write(t, filepath.Join(dir, "0/g"), "x")
	ctx, stop := context.WithTimeout(t.Context(), testkit.Patience)
	defer stop()
	for seen := false; !seen; { // what can be watched is watched
		select {
		case <-w.Dirty():
			seen = slices.Contains(w.Take().Paths, "0/g")
		case <-ctx.Done():
			t.Fatal("0/g was never reported")
		}
	}
	limit(1000)
	until(t, w, snap.Watching)
	write(t, filepath.Join(dir, "more29/below/g"), "x")
	barrier(t, w)
	if s := w.Take(); !slices.Contains(s.Paths, "more29/below/g") {
		t.Errorf("with watches enough: %+v", s)
	}
}

// TestManyLongPaths: paths that would fill the memory, although there are few, become All.
func TestManyLongPaths(t *testing.T) {
	dir := t.TempDir()
	at, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	must(t, err)
	for range 120 {
		name := strings.Repeat("n", 255)
		must(t, unix.Mkdirat(at, name, 0o755))
		next, err := unix.Openat(at, name, unix.O_PATH|unix.O_DIRECTORY, 0)
		must(t, err)
		must(t, unix.Close(at))
		at = next
	}
	defer unix.Close(at)
	w, _ := follow(t, Options{Dir: dir})
	for i := range 1500 {
		fd, err := unix.Openat(at, fmt.Sprint(i), unix.O_CREAT|unix.O_WRONLY, 0o644)
		must(t, err)
		must(t, unix.Close(fd))
	}
	barrier(t, w)
	if f, s := w.State(), w.Take(); f.State != snap.Watching || !s.All {
		t.Errorf("%+v with %d paths", f, len(s.Paths))
	}
}
