package files

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/testkit"
)

// TestMain lets the test binary play a daemon that gets killed.
func TestMain(m *testing.M) {
	if what := os.Getenv("MULLIGAN_FILES_CHILD"); what != "" {
		if err := child(what); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(3)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// child does one thing in the site that the environment names, and kills
// itself at the n-th failpoint.
func child(what string) error {
	top, n := os.Getenv("MULLIGAN_FILES_TOP"), 0
	stop, err := strconv.Atoi(os.Getenv("MULLIGAN_FILES_FAILPOINT"))
	if err != nil {
		return err
	}
	switch what {
	case "user":
		return asUser(top)
	case "deep":
		return deepErrand(top, os.Args[1] == "yes")
	case "errand":
		return errand(top, os.Args[1:])
	}
	store, err := cas.Open(top+"/store", cas.Options{})
	if err != nil {
		return err
	}
	d, err := New(Config{App: "app", Dir: top + "/ws", StateDir: top + "/state", Store: store, Owner: -1, Failpoint: func(string) error {
		if n++; n == stop {
			syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {} // the signal comes at its own time
		}
		return nil
	}})
	if err != nil {
		return err
	}
	return childDoes(d, what)
}

func childDoes(d *Driver, what string) error {
	bg := context.Background()
	switch what {
	case "capture":
		_, err := d.Capture(bg, snap.CaptureRequest{ID: "fs-child"})
		return err
	case "follow":
		return childFollows(d, bg)
	case "prepare":
		_, err := d.Prepare(bg, snap.RestoreRequest{ID: "op-child", Target: "fs-1", Base: "fs-2"})
		return err
	}
	sw, err := d.Resume(bg, "op-child")
	if err != nil {
		return err
	}
	switch what {
	case "commit":
		return sw.Commit(bg)
	case "undo":
		return sw.Undo(bg)
	}
	return errors.New("no such part")
}

// play runs a child that is killed at the n-th failpoint, or after the delay, and
// reports whether it was.
func (s *site) play(t *testing.T, what string, nth int, after time.Duration) (killed bool) {
	t.Helper()
	s.cas.Close()
	defer s.open(t)
	c := exec.Command(os.Args[0])
	c.Env = append(os.Environ(), "MULLIGAN_FILES_CHILD="+what, "MULLIGAN_FILES_TOP="+filepath.Dir(s.dir), "MULLIGAN_FILES_FAILPOINT="+strconv.Itoa(nth),
		fmt.Sprint("MULLIGAN_FILES_SEED=", testkit.Rand(t, "child").Uint64()))
	c.Stderr = os.Stderr
	must(t, c.Start())
	if after > 0 {
		timer := time.AfterFunc(after, func() { c.Process.Kill() })
		defer timer.Stop()
	}
	err := c.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL {
		return true
	}
	must(t, err)
	return false
}

// torn is a site between two states that differ in every way, on the way back.
type torn struct {
	*site
	target, base []string
}

func newTorn(t *testing.T) *torn {
	s := newSite(t)
	r := testkit.Rand(t)
	for i := range 60 {
		write(t, fmt.Sprintf("%s/d%d/f%d", s.dir, i%6, i), fmt.Sprint("first ", i))
	}
	must(t, os.Link(s.dir+"/d1/f1", s.dir+"/d2/linked"))
	x := &torn{site: s}
	x.target = listing(t, s.dir)
	s.capture(t)
	for i := range 60 {
		switch i % 4 {
		case 0:
			write(t, fmt.Sprintf("%s/d%d/f%d", s.dir, i%6, i), fmt.Sprint("second ", i))
		case 1:
			must(t, os.Chmod(fmt.Sprintf("%s/d%d/f%d", s.dir, i%6, i), 0o600))
		}
	}
	must(t, os.RemoveAll(s.dir+"/d3"))
	write(t, s.dir+"/d3", "a file")
	must(t, os.Remove(s.dir+"/d4/f4"))
	write(t, s.dir+"/d4/f4/deep/er", "a folder")
	if os.Geteuid() == 0 {
		changeHands(t, s.dir)
	}
	scramble(t, r, s.dir, 10)
	x.base = listing(t, s.dir)
	s.capture(t)
	return x
}

// changeHands gives folders and a program to somebody else: one of the folders holds the first
// name of a file that has another outside.
func changeHands(t *testing.T, dir string) {
	t.Helper()
	for _, p := range []string{"d0", "d1"} {
		must(t, os.Chown(dir+"/"+p, 5, 5))
		must(t, os.Chmod(dir+"/"+p, 0o700))
	}
	write(t, dir+"/d0/program", "runs as another")
	must(t, os.Chown(dir+"/d0/program", 5, 5))
	must(t, unix.Chmod(dir+"/d0/program", 0o4755))
}

// recover goes on after a crash, one way or the other, and looks.
func (x *torn) recover(t *testing.T, what string, forward bool) {
	t.Helper()
	sw, err := x.Resume(t.Context(), "op-child")
	must(t, err)
	want, to := x.base, "undone"
	if forward {
		want, to = x.target, "committed"
		must(t, sw.Commit(t.Context()))
	} else {
		must(t, sw.Undo(t.Context()))
	}
	same(t, what+", "+to, listing(t, x.dir), want)
	p, err := sw.Check(t.Context())
	must(t, err)
	if !p.Match || len(p.Notes) > 0 {
		t.Fatalf("%s, %s: %+v", what, to, p)
	}
	must(t, sw.Undo(t.Context()))
	same(t, what+", at the end", listing(t, x.dir), x.base)
	must(t, sw.Finish(t.Context()))
}

func (x *torn) prepare(t *testing.T) {
	t.Helper()
	_, err := x.Prepare(t.Context(), snap.RestoreRequest{ID: "op-child", Target: "fs-1", Base: "fs-2"})
	must(t, err)
}

// testKilledAtSeams kills Commit at one in five of its steps, which rotate, and then Undo as well.
func testKilledAtSeams(t *testing.T) {
	x := newTorn(t)
	part, parts := testkit.Part(t, 5)
	for n, kills := 1+part, 0; ; n += parts {
		x.prepare(t)
		if !x.play(t, "commit", n, 0) {
			x.recover(t, "never killed", true)
			if kills == 0 {
				t.Errorf("Commit has no %d steps", n)
			}
			testkit.Tally(t, "kills", kills)
			break
		}
		kills++
		if n%3 == 0 && x.play(t, "undo", n, 0) {
			x.recover(t, fmt.Sprintf("commit and undo killed at step %d", n), n%2 == 0)
			continue
		}
		x.recover(t, fmt.Sprintf("commit killed at step %d", n), n%2 == 0)
	}
}

// TestKilledAnyTime kills Commit at random moments.
func TestKilledAnyTime(t *testing.T) {
	x := newTorn(t)
	x.prepare(t)
	start := time.Now()
	x.play(t, "commit", -1, 0)
	took := time.Since(start)
	x.recover(t, "not killed", true)
	rounds := 5
	if long() {
		rounds = 100
	}
	m := testkit.NewMoments(t, took, rounds)
	for i := 0; m.Next(); i++ {
		x.prepare(t)
		after := m.After()
		m.Hit(x.play(t, "commit", -1, after))
		x.recover(t, fmt.Sprintf("commit killed after %v of %v", after, took), i%2 == 0)
	}
}

// TestKilledCapture: a capture is there whole or not at all, and the next one works.
func TestKilledCapture(t *testing.T) {
	x := newTorn(t)
	for n := 1; ; n++ {
		write(t, x.dir+"/round", fmt.Sprint(n))
		killed := x.play(t, "capture", n, 0)
		err := x.Verify(t.Context(), "fs-child", snap.Full)
		if err != nil && errs.KindOf(err) != errs.NotFound {
			t.Fatal(err)
		}
		if !killed {
			must(t, err)
			break
		}
		must(t, x.Sweep(t.Context(), snap.Gone{Snapshots: []snap.SnapshotID{"fs-child"}}))
	}
}

// TestKilledPrepare: until Prepare returns there is either no switch or a whole one.
func TestKilledPrepare(t *testing.T) {
	x := newTorn(t)
	for n := 1; ; n++ {
		killed := x.play(t, "prepare", n, 0)
		sw, err := x.Resume(t.Context(), "op-child")
		if err == nil {
			must(t, sw.Commit(t.Context()))
			same(t, "committed", listing(t, x.dir), x.target)
			must(t, sw.Undo(t.Context()))
			must(t, sw.Finish(t.Context()))
		} else if errs.KindOf(err) != errs.NotFound {
			t.Fatal(err)
		}
		if !killed {
			must(t, err)
			return
		}
		must(t, x.Sweep(t.Context(), snap.Gone{Restores: []snap.RestoreID{"op-child"}}))
		if roots := x.cas.Roots("files/app/switch/"); len(roots) > 0 {
			t.Fatalf("Sweep left %v", roots)
		}
	}
}
