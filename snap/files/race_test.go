package files

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"testing"

	"github.com/zeebo/blake3"
	"golang.org/x/sys/unix"

	"mulligan/snap"
)

// swapper exchanges pairs of names as fast as it can until stopped.
func swapper(pairs ...[2]string) (stop func()) {
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			for _, p := range pairs {
				select {
				case <-done:
					return
				default:
					unix.Renameat2(unix.AT_FDCWD, p[0], unix.AT_FDCWD, p[1], unix.RENAME_EXCHANGE)
				}
			}
		}
	})
	return func() { close(done); wg.Wait() }
}

// testSwappedForLinks runs captures and restores while folders and files take
// turns with symbolic links to the outside: nothing out there may be read or
// changed.
func testSwappedForLinks(t *testing.T) {
	s := newSite(t)
	outside := s.dir + "-outside"
	secret := "nobody may know this"
	for i := range 20 {
		for _, top := range []string{s.dir + "/a", s.dir + "/x/a", outside} {
			text := fmt.Sprint("mine ", i)
			if top == outside {
				text = secret
			}
			write(t, fmt.Sprintf("%s/sub/f%d", top, i), text)
		}
	}
	write(t, s.dir+"/plain", "plain")
	write(t, outside+"/secret", secret)
	for from, to := range map[string]string{"b": "", "x/b": "/sub", "other": "/secret"} {
		must(t, os.Symlink(outside+to, s.dir+"/"+from))
	}
	before := listing(t, outside)
	target := s.capture(t)
	rounds := 60
	if testing.Short() {
		rounds = 15
	}
	for i := range rounds {
		for j := range 10 {
			write(t, fmt.Sprintf("%s/a/sub/f%d", s.dir, j), fmt.Sprint("changed ", i))
		}
		must(t, os.RemoveAll(s.dir+"/x/a/sub"))
		base := s.capture(t)
		id := snap.RestoreID(fmt.Sprint("op-", i))
		sw, err := s.Prepare(t.Context(), snap.RestoreRequest{ID: id, Target: target.ID, Base: base.ID})
		must(t, err)
		stop := swapper([2]string{s.dir + "/a", s.dir + "/b"}, [2]string{s.dir + "/x/a", s.dir + "/x/b"}, [2]string{s.dir + "/plain", s.dir + "/other"})
		s.Capture(t.Context(), snap.CaptureRequest{ID: "fs-race"})
		raced(t, s, sw)
		stop()
		s.restore(t, target.ID)
		same(t, "outside", listing(t, outside), before)
	}
	if s.cas.Has(blake3.Sum256([]byte(secret))) {
		t.Error("what is outside of the workspace was captured")
	}
}

// raced applies without the walk that would notice the race beforehand.
func raced(t *testing.T, s *site, sw snap.Switch) {
	c := sw.(*change)
	b := s.cas.Begin()
	defer b.Discard()
	a, err := s.applier.Begin(t.Context(), "race", c.id, b, c.deltas, nil, false)
	must(t, err)
	defer a.Close()
	_ = a.Run() // it fails, as it should, more often than not
	sw.Commit(t.Context())
	sw.Undo(t.Context())
}

// TestKeepsChanging: a file that is written to all the time fails the capture,
// and says which it is.
func TestKeepsChanging(t *testing.T) {
	s := newSite(t)
	write(t, s.dir+"/quiet", "q")
	write(t, s.dir+"/busy", string(make([]byte, 1)))
	f, err := os.OpenFile(s.dir+"/busy", os.O_WRONLY, 0)
	must(t, err)
	defer f.Close()
	for i := range int64(32) {
		_, err := f.WriteAt([]byte("data"), i<<20)
		must(t, err)
	}
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		// On a busy machine the capture could read all of the file while this thread waits for a processor.
		runtime.LockOSThread()                                      // never unlocked: the thread ends with its priority
		_ = unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), -20) // only root may
		for i := int64(0); ; i++ {
			select {
			case <-done:
				return
			default:
				f.WriteAt([]byte{byte(i)}, i%(32<<20))
			}
		}
	})
	_, err = s.Capture(t.Context(), snap.CaptureRequest{ID: "fs-busy"})
	close(done)
	wg.Wait()
	if !errors.Is(err, snap.ErrChanged) {
		t.Fatalf("a capture of a file that keeps changing says: %v", err)
	}
	if _, err := s.cas.Root("files/app/fs-busy"); err == nil {
		t.Error("the failed capture left a snapshot")
	}
	s.capture(t)
}
