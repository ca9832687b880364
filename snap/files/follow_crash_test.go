package files

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mulligan/snap"
	"mulligan/testkit"
)

// childFollows writes, makes a marker, and notes what it is of, over and over.
func childFollows(d *Driver, ctx context.Context) error {
	go d.Follow(ctx, func(snap.Batch) {})
	for d.follower.Session() == nil {
	}
	seed, err := strconv.ParseUint(os.Getenv("MULLIGAN_FILES_SEED"), 10, 64)
	if err != nil {
		return err
	}
	dir, notes := d.cfg.Dir, filepath.Join(filepath.Dir(d.cfg.Dir), "notes")
	r := rand.New(rand.NewPCG(seed, 3))
	var t testing.T
	for i := range 25 {
		scramble(&t, r, dir, 4)
		state := strings.Join(listing(&t, dir), "\n")
		m, err := d.Flush(ctx)
		if err != nil {
			return err
		}
		id := fmt.Sprintf("fs-%d-%d", os.Getpid(), i)
		if _, err := d.Capture(ctx, snap.CaptureRequest{ID: snap.SnapshotID(id), At: m}); err != nil {
			return err
		}
		tmp := filepath.Join(notes, "."+id)
		if err := os.WriteFile(tmp, []byte(state), 0o600); err != nil {
			return err
		}
		if err := os.Rename(tmp, filepath.Join(notes, id)); err != nil {
			return err
		}
		if i%6 == 5 {
			j := d.follower.Session()
			if err := newEpoch(ctx, j); err != nil {
				return err
			}
		}
	}
	return nil
}

// testKilledFollowing kills a daemon that follows, at steps and at any time:
// every marker that it had is there, and the next one goes on where it was.
func testKilledFollowing(t *testing.T) {
	s := newSite(t)
	notes := filepath.Dir(s.dir) + "/notes"
	must(t, os.Mkdir(notes, 0o755))
	write(t, s.dir+"/a/b", "from the start")
	rounds := 8
	if testing.Short() {
		rounds = 3
	}
	r, kills := testkit.Rand(t), 0
	for i := range rounds {
		step, after := 2+r.IntN(60), time.Duration(0)
		if i%2 == 1 {
			step, after = -1, time.Duration(1+r.Int64N(int64(time.Second)))
		}
		if s.play(t, "follow", step, after) {
			kills++
		} else if i%2 == 0 {
			t.Errorf("the daemon that follows never came to step %d", step)
		}
	}
	testkit.Tally(t, "kills", kills)
	f := &followed{site: s}
	f.follow(t)
	f.exact(t)
	list, err := os.ReadDir(notes)
	must(t, err)
	for _, e := range list {
		if e.Name()[0] == '.' {
			continue
		}
		want, err := os.ReadFile(notes + "/" + e.Name())
		must(t, err)
		must(t, f.Verify(t.Context(), snap.SnapshotID(e.Name()), snap.Full))
		if r.IntN(4) == 0 {
			f.restore(t, snap.SnapshotID(e.Name()))
			same(t, e.Name(), listing(t, f.dir), strings.Split(string(want), "\n"))
		}
	}
	f.exact(t)
}

// TestJournalFullDisk: while nothing can be stored a Flush fails; afterwards
// nothing is missing, and what was there is there.
func TestJournalFullDisk(t *testing.T) {
	var full atomic.Bool
	s := newSite(t)
	s.casOptions.Failpoint = func(step string) error {
		if full.Load() && (step == "append-object" || step == "append-change") {
			return unix.ENOSPC
		}
		return nil
	}
	s.open(t)
	f := &followed{site: s}
	f.follow(t)
	r := testkit.Rand(t)
	for range 6 {
		scramble(t, r, f.dir, 10)
		id, state := f.at(t, f.flush(t)), listing(t, f.dir)
		full.Store(true)
		scramble(t, r, f.dir, 10)
		write(t, f.dir+"/new", fmt.Sprint(r.Uint64()))
		if _, err := f.Flush(t.Context()); !errors.Is(err, unix.ENOSPC) {
			t.Fatalf("Flush with a full disk: %v", err)
		}
		if f.Following().State != snap.Degraded {
			t.Errorf("with a full disk: %+v", f.Following())
		}
		full.Store(false)
		f.exact(t)
		if f.Following().State != snap.Watching {
			t.Errorf("afterwards: %+v", f.Following())
		}
		f.restore(t, id)
		same(t, "before the disk was full", listing(t, f.dir), state)
	}
}

// TestJournalBrokenDisk: if the disk that the journal is on is damaged, a Flush does not say that only what cannot be read is missing.
func TestJournalBrokenDisk(t *testing.T) {
	var broken atomic.Bool
	s := newSite(t)
	s.casOptions.Failpoint = func(step string) error {
		if broken.Load() && step == "append-change" {
			return unix.EIO
		}
		return nil
	}
	s.open(t)
	f := &followed{site: s}
	f.follow(t)
	f.flush(t)
	broken.Store(true)
	write(t, f.dir+"/new", "new")
	if _, err := f.Flush(t.Context()); !errors.Is(err, unix.EIO) || errors.As(err, &snap.UnreadableError{}) {
		t.Errorf("Flush: %v", err)
	}
	broken.Store(false)
	f.exact(t)
}

// TestAppender: a file that is appended to without end keeps nobody waiting.
func TestAppender(t *testing.T) {
	f := newFollowed(t)
	log, err := os.OpenFile(f.dir+"/log", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	must(t, err)
	var stop atomic.Bool
	done := make(chan int)
	go func() {
		n := 0
		for ; !stop.Load(); n++ {
			fmt.Fprintln(log, "line", n)
		}
		done <- n
	}()
	write(t, f.dir+"/code", "one")
	m := f.flush(t)
	id := f.at(t, m)
	stop.Store(true)
	<-done
	must(t, log.Close())
	f.exact(t)
	f.restore(t, id)
	b, err := os.ReadFile(f.dir + "/log")
	must(t, err)
	for i, line := range strings.Split(strings.TrimSuffix(string(b), "\n"), "\n") {
		if line != fmt.Sprint("line ", i) && line != "" {
			t.Fatalf("line %d is %q", i, line)
		}
	}
}

// TestReplacedRoot: another folder in the workspace's place is a new
// beginning, not the deletion of everything.
func TestReplacedRoot(t *testing.T) {
	f := newFollowed(t)
	write(t, f.dir+"/a", "one")
	start := f.flush(t)
	old, state := f.at(t, start), listing(t, f.dir)
	must(t, os.Rename(f.dir, f.dir+".old"))
	if _, err := f.Flush(t.Context()); err == nil {
		t.Error("Flush of a workspace that is away")
	}
	must(t, os.Mkdir(f.dir, 0o755))
	write(t, f.dir+"/b", "two")
	f.exact(t)
	end := f.flush(t)
	if w, err := f.Writes(t.Context(), start, end); err == nil {
		for _, x := range w {
			if x.After.IsZero() {
				t.Errorf("taken for a deletion: %+v", x)
			}
		}
	}
	f.restore(t, old)
	same(t, "the old folder's state", listing(t, f.dir), state)
}
