package files

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"mulligan/snap"
	"mulligan/snap/files/follow"
	"mulligan/testkit"
)

// TestNoting: where changes are only noted, nothing is stored between two captures, however much is written, and each capture, comparison and
// proof sees all of it, also what causes no event.
func TestNoting(t *testing.T) {
	f := &followed{site: newSite(t), noting: true}
	for i := range 300 {
		write(t, fmt.Sprintf("%s/d%d/f%d", f.dir, i%7, i), fmt.Sprint("content ", i))
	}
	f.follow(t)
	first := f.capture(t)
	rest(t, f)
	stored := f.cas.DiskUsage()
	mark := f.flush(t)
	for i := range 50 {
		write(t, f.dir+"/d1/busy", fmt.Sprint("version ", i, testkit.Rand(t).Uint64()))
		write(t, fmt.Sprintf("%s/new/deep/f%d", f.dir, i), "a new file")
	}
	must(t, os.RemoveAll(f.dir+"/d2"))
	testkit.Eventually(t, "changes are noted", func() bool { return f.Following().Pending > 0 })
	rest(t, f)
	if now := f.cas.DiskUsage(); now != stored {
		t.Errorf("%d bytes were stored without a capture", now-stored)
	}
	if head, _, _, err := f.history.Head(); err != nil || head != mark {
		t.Errorf("the journal moved from %s to %s, %v", mark, head, err)
	}
	f.exact(t)

	f.restore(t, first.ID)
	f.exact(t)
	if _, err := os.Stat(f.dir + "/new"); !os.IsNotExist(err) {
		t.Errorf("a new folder is there after the restore: %v", err)
	}
	base := f.capture(t)
	write(t, f.dir+"/d4/f4", "another state")
	target := f.capture(t)
	sw, err := f.Prepare(t.Context(), snap.RestoreRequest{ID: "op-stale", Target: base.ID, Base: target.ID})
	must(t, err)
	stale(t, sw, false)
	outside := filepath.Join(t.TempDir(), "outside")
	must(t, os.Link(f.dir+"/d3/f3", outside)) // no event comes of what is written through it
	must(t, os.WriteFile(outside, []byte("written from outside"), 0o600))
	stale(t, sw, true)
	must(t, sw.Undo(t.Context()))
	f.exact(t)
}

// TestNotingLetsGo: what only a deleted snapshot held is freed, also if the journal cannot be written at that moment.
func TestNotingLetsGo(t *testing.T) {
	for _, broken := range []bool{false, true} {
		var fail atomic.Bool
		var failed atomic.Int32
		f := &followed{site: newSite(t, func(c *Config) {
			c.Failpoint = func(step string) error {
				if step == "keyframe" && fail.Load() {
					failed.Add(1)
					return errors.New("the disk is full")
				}
				return nil
			}
		}), noting: true}
		write(t, f.dir+"/stays", "as it is")
		write(t, f.dir+"/goes", string(testkit.Bytes(t, 1<<20)))
		f.follow(t)
		first := f.capture(t)
		must(t, os.Remove(f.dir+"/goes"))
		f.capture(t)
		fail.Store(broken)
		must(t, f.Delete(t.Context(), first.ID))
		fail.Store(false)
		if (failed.Load() > 0) != broken {
			t.Errorf("broken %v: the journal could not be written %d times", broken, failed.Load())
		}
		freed, err := f.cas.Collect(t.Context())
		if must(t, err); freed < 1<<20 {
			t.Errorf("broken %v: %d bytes were freed", broken, freed)
		}
		f.exact(t)
		third := f.capture(t)
		must(t, f.Verify(t.Context(), third.ID, snap.Full))
		f.stop()
		if roots := f.cas.Roots(f.prefix() + "journal/"); len(roots) > 0 {
			t.Errorf("broken %v: the journal is left: %+v", broken, roots)
		}
	}
}

func stale(t *testing.T, sw snap.Switch, want bool) {
	t.Helper()
	if got, err := sw.Stale(t.Context()); err != nil || got != want {
		t.Errorf("stale: %v, %v, want %v", got, err, want)
	}
}

// rest waits until the work that is not urgent was done.
func rest(t *testing.T, f *followed) {
	t.Helper()
	j := f.follower.Session()
	must(t, j.Do(t.Context(), func() error {
		j.Rest(context.Background())
		j.Patrol(context.Background(), time.Now().Add(2*follow.PatrolPause))
		return nil
	}))
}
