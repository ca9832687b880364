package files

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"testing"

	"github.com/zeebo/blake3"
	"golang.org/x/sys/unix"

	"mulligan/snap"
	"mulligan/testkit"
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
	testkit.Need(t, "perl")
	// In memory: on a disk that has much to write, the file could be read while a write waits for the disk.
	memory, err := os.MkdirTemp("/dev/shm", "mulligan-test")
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(memory) })
	s := newSite(t, func(c *Config) { c.Dir = memory })
	s.dir = memory
	write(t, s.dir+"/quiet", "q")
	must(t, os.WriteFile(s.dir+"/busy", testkit.Bytes(t, 32<<20), 0o644))
	// A process of its own on each processor: a goroutine could wait for those that read, and one processor can stand still while all is read on another.
	var mine unix.CPUSet
	must(t, unix.SchedGetaffinity(0, &mine))
	var writers []*exec.Cmd
	for cpu := 0; len(writers) < min(mine.Count(), 8); cpu++ {
		if !mine.IsSet(cpu) {
			continue
		}
		writer := exec.Command("perl", "-e", `open(F, "+<", $ARGV[0]) or die; $| = 1; for ($i = 0; ; $i++) { sysseek(F, int(rand(2**25)), 0); syswrite(F, "x"); print "writes\n" if $i == 0 }`, s.dir+"/busy")
		says, err := writer.StdoutPipe()
		must(t, err)
		must(t, testkit.Start(writer))
		var there unix.CPUSet
		there.Set(cpu)
		must(t, unix.SchedSetaffinity(writer.Process.Pid, &there))
		_, err = bufio.NewReader(says).ReadString('\n')
		must(t, err)
		writers = append(writers, writer)
	}
	_, err = s.Capture(t.Context(), snap.CaptureRequest{ID: "fs-busy"})
	for _, writer := range writers {
		must(t, writer.Process.Kill())
		_ = writer.Wait() // it was killed
	}
	if !errors.Is(err, snap.ErrChanged) {
		t.Fatalf("a capture of a file that keeps changing says: %v", err)
	}
	if _, err := s.cas.Root("files/app/fs-busy"); err == nil {
		t.Error("the failed capture left a snapshot")
	}
	s.capture(t)
}
