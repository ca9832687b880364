package files

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/cas"
)

// deepErrand goes back and forth between two states of a deep folder, each step of which ends.
func deepErrand(top string, follow bool) error {
	store, err := cas.Open(top+"/store", cas.Options{})
	if err != nil {
		return err
	}
	defer store.Close()
	d, err := New(Config{App: "app", Dir: top + "/ws", StateDir: top + "/state", Store: store, Owner: -1})
	if err != nil {
		return err
	}
	ctx := context.Background()
	if follow {
		following, end := context.WithCancel(ctx)
		done := make(chan error, 1)
		go func() { done <- d.Follow(following, func(snap.Batch) {}) }()
		defer func() { end(); <-done }()
		for d.follower.Session() == nil {
			select {
			case err := <-done:
				return err
			default:
			}
		}
	}
	if _, err := d.FindGaps(ctx); err != nil {
		return err
	}
	if _, err := d.Capture(ctx, snap.CaptureRequest{ID: "fs-1"}); err != nil {
		return err
	}
	if out, err := exec.Command("rm", "-r", top+"/ws/d").CombinedOutput(); err != nil { // os.RemoveAll opens every folder on the way
		return fmt.Errorf("%w: %s", err, out)
	}
	if err := restoreErrand(ctx, d, "fs-1", "fs-2", nil); err != nil {
		return err
	}
	if err := restoreErrand(ctx, d, "fs-2", "fs-3", nil); err != nil {
		return err
	}
	return restoreErrand(ctx, d, "fs-1", "fs-4", nil)
}

// TestFewOpenFiles: how deep a folder is does not cost open files.
func TestFewOpenFiles(t *testing.T) {
	for _, follow := range []string{"no", "yes"} {
		top, err := filepath.EvalSymlinks(t.TempDir())
		must(t, err)
		deep := top + "/ws" + strings.Repeat("/d", 80)
		must(t, os.MkdirAll(deep, 0o755))
		write(t, deep+"/leaf", "one")
		before := listing(t, top+"/ws")
		c := exec.Command("sh", "-c", `ulimit -n 64 && exec "$0" "$1"`, os.Args[0], follow)
		c.Env = append(os.Environ(), "MULLIGAN_FILES_CHILD=deep", "MULLIGAN_FILES_TOP="+top, "MULLIGAN_FILES_FAILPOINT=-1")
		if out, err := c.CombinedOutput(); err != nil {
			t.Fatalf("follow=%s: %v\n%s", follow, err, out)
		}
		same(t, fmt.Sprintf("follow=%s", follow), listing(t, top+"/ws"), before)
	}
}

// testEndlessFiles: a file of nothing but a hole costs no memory, however large it is; one that is
// too large is refused.
func testEndlessFiles(t *testing.T) {
	s, _ := small(t, "8m")
	path := s.cfg.Dir + "/sparse"
	write(t, path, "begin")
	must(t, os.Truncate(path, 60<<40))
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	must(t, err)
	_, err = f.WriteAt([]byte("far"), 40<<40+5)
	must(t, err)
	must(t, f.Close())
	before := listing(t, s.cfg.Dir)
	one := s.capture(t)
	must(t, os.Remove(path))
	s.restore(t, one.ID)
	same(t, "back", listing(t, s.cfg.Dir), before)

	must(t, os.Truncate(path, 1<<62))
	_, err = s.Capture(t.Context(), snap.CaptureRequest{ID: "fs-endless"})
	if errs.KindOf(err) != errs.Invalid || !strings.Contains(err.Error(), path) || errs.HintOf(err) == "" {
		t.Errorf("a file of 4 EiB: %v (%s)", err, errs.HintOf(err))
	}
	gaps, err := s.FindGaps(t.Context())
	must(t, err)
	if len(gaps) != 1 || !gaps[0].Blocks || !strings.Contains(gaps[0].What, path) {
		t.Errorf("the survey says %+v", gaps)
	}
}

// TestPathTooLong: a chain of folders is captured and restored while its path is within the bound, and refused beyond it with the way out, however long it is.
func TestPathTooLong(t *testing.T) {
	for _, follow := range []bool{false, true} {
		f := &followed{site: newSite(t, func(c *Config) { c.Exclude = []string{"excluded/"} })}
		if follow {
			f.follow(t)
		}
		name := strings.Repeat("n", 255)
		chain(t, f.dir, 128, name) // a path of 32,767 bytes
		one := f.capture(t)
		must(t, os.RemoveAll(f.dir+"/"+name))
		f.restore(t, one.ID)
		if two := f.capture(t); two.Hash != one.Hash {
			t.Errorf("follow=%v: the longest path did not come back as it was", follow)
		}
		chain(t, f.dir, 500, "excluded", name)
		f.capture(t)
		chain(t, f.dir, 500, name)
		_, err := f.Capture(t.Context(), snap.CaptureRequest{ID: "fs-endless"})
		if errs.KindOf(err) != errs.Invalid || !strings.Contains(err.Error(), f.dir+"/"+name) || len(err.Error()) > 1000 || errs.HintOf(err) == "" {
			t.Errorf("follow=%v: a path of 128,000 bytes: %v (%s)", follow, err, errs.HintOf(err))
		}
		gaps, err := f.FindGaps(t.Context())
		must(t, err)
		if len(gaps) != 1 || !gaps[0].Blocks || !strings.Contains(gaps[0].What, f.dir+"/"+name) || len(gaps[0].What) > 1000 {
			t.Errorf("follow=%v: the survey says %+v", follow, gaps)
		}
	}
}

// testManyLongPaths: a workspace whose paths would fill the memory, although no single one is too long, is refused with the way out.
func testManyLongPaths(t *testing.T) {
	for _, follow := range []bool{false, true} {
		f := &followed{site: newSite(t)}
		in := chain(t, f.dir, 120, strings.Repeat("n", 255))
		if follow {
			f.follow(t)
		}
		fill := func(from, to int) {
			for i := range to - from {
				fd, err := unix.Openat(in, fmt.Sprint(from+i), unix.O_CREAT|unix.O_WRONLY, 0o644)
				must(t, err)
				must(t, unix.Close(fd))
			}
		}
		fill(0, 300)
		f.capture(t)
		fill(300, 1500)
		_, err := f.Capture(t.Context(), snap.CaptureRequest{ID: "fs-long"})
		if errs.KindOf(err) != errs.Invalid || !strings.Contains(err.Error(), "too many long paths") || len(err.Error()) > 1000 || errs.HintOf(err) == "" {
			t.Errorf("follow=%v: %v (%s)", follow, err, errs.HintOf(err))
		}
	}
}

// chain makes n folders in dir, each in the one before, and returns the innermost, open until the test ends. The last one of names is that of all that have none
// of their own.
func chain(t *testing.T, dir string, n int, names ...string) int {
	t.Helper()
	at, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	must(t, err)
	for i := range n {
		name := names[min(i, len(names)-1)]
		if err := unix.Mkdirat(at, name, 0o755); err != nil && err != unix.EEXIST {
			t.Fatal(err)
		}
		next, err := unix.Openat(at, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
		must(t, err)
		must(t, unix.Close(at))
		at = next
	}
	t.Cleanup(func() { must(t, unix.Close(at)) })
	return at
}
