package cas

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"mulligan/testkit"
)

type fataler interface{ Fatalf(string, ...any) }

// onDisk compares DiskUsage with the sizes of the files.
func onDisk(t fataler, s *Store) int64 {
	var sum int64
	for _, pattern := range []string{"*.seg", "*.idx", "*.pack"} {
		for _, path := range must(filepath.Glob(filepath.Join(s.dir, pattern))) {
			var st unix.Stat_t
			if err := unix.Stat(path, &st); err != nil {
				t.Fatalf("%v", err)
			}
			sum += min(st.Size, st.Blocks*512) // there may be holes
		}
	}
	if n := s.DiskUsage(); n != sum {
		t.Fatalf("DiskUsage says %d bytes, the files have %d", n, sum)
	}
	return sum
}

func removeIndexes(dir string) {
	for _, path := range must(filepath.Glob(filepath.Join(dir, "*.idx"))) {
		os.Remove(path)
	}
}

// TestLiveAgainWhileReleased: a node whose last root goes, and that is stored again before its references are removed, keeps them.
func TestLiveAgainWhileReleased(t *testing.T) {
	s := open(t, testkit.TempDir(t), small)
	blobs := [][]byte{noise(t, 4<<10), noise(t, 4<<10)}
	n := save(t, s, "a", blobs...)
	gone, err := s.append(func(c *change) error { // the first half of a Delete
		c.drop = []string{"a"}
		return nil
	})
	noErr(t, err)
	if len(gone) != 1 || !s.decref(gone[0]) {
		t.Fatalf("the node is not dead: %v", gone)
	}
	if again := save(t, s, "a", blobs...); again != n {
		t.Fatalf("it is another node: %v and %v", n, again)
	}
	s.uncount(n) // the second half
	recount(t, s)
	must(s.Collect(t.Context()))
	expect(t, s, "a", blobs...)
	noErr(t, s.Delete("a"))
	recount(t, s)
}

func TestDeleteFreesWhatUniqueSaid(t *testing.T) {
	s := open(t, testkit.TempDir(t), small)
	shared := noise(t, 6<<10)
	var own [4][][]byte
	for i := range own {
		for range 8 {
			own[i] = append(own[i], noise(t, 4<<10))
		}
		save(t, s, fmt.Sprint(i), append([][]byte{shared}, own[i]...)...)
	}
	before := onDisk(t, s)
	unique := must(s.Unique("1", "2", "1", "no such root"))
	if want := int64(2 * 8 * 4 << 10); unique < want || unique > want+4<<10 {
		t.Fatalf("two roots are said to hold %d bytes of their own, want about %d", unique, want)
	}
	noErr(t, s.Delete("1", "2"))
	freed := must(s.Collect(context.Background()))
	after := onDisk(t, s)
	// Segment headers, indexes and the copies of roots make the difference.
	if freed < unique-8<<10 || freed > unique+8<<10 || before-after < unique-8<<10 {
		t.Fatalf("%d bytes were to be freed; Collect freed %d, the files shrank by %d", unique, freed, before-after)
	}
	expect(t, s, "0", append([][]byte{shared}, own[0]...)...)
	expect(t, s, "3", append([][]byte{shared}, own[3]...)...)

	all := must(s.Unique("0", "3"))
	if all < before-unique-24<<10 {
		t.Fatalf("all that is left is said to be %d bytes of %d", all, after)
	}
	noErr(t, s.Delete("0", "3"))
	must(s.Collect(context.Background()))
	if n := onDisk(t, s); n > 3<<10 {
		t.Fatalf("an empty store has %d bytes", n)
	}
	if n := must(s.Collect(context.Background())); n != 0 {
		t.Fatalf("a second collection freed %d bytes", n)
	}
}

// TestCollectGoesOn: a segment that cannot be collected is an error, and keeps no other one from being collected.
func TestCollectGoesOn(t *testing.T) {
	o, trouble, met := small, errors.New("the disk fails"), 0
	o.Failpoint = func(step string) error {
		if step != "remove-segment" {
			return nil
		}
		if met++; met == 1 {
			return trouble
		}
		return nil
	}
	s := open(t, testkit.TempDir(t), o)
	keep := noise(t, 4<<10)
	save(t, s, "kept", keep)
	for i := range 6 {
		save(t, s, fmt.Sprint(i), noise(t, 48<<10))
	}
	noErr(t, s.Delete("0", "1", "2", "3", "4", "5"))
	before, gone := must(filepath.Glob(filepath.Join(s.dir, "*.seg"))), 0
	freed, err := s.Collect(t.Context())
	for _, path := range before {
		if _, err := os.Stat(path); err != nil {
			gone++
		}
	}
	if !errors.Is(err, trouble) || met < 4 || freed < 4*48<<10 || gone != met-1 {
		t.Fatalf("%d bytes and %d of %d segments are freed, %d were to be: %v", freed, gone, len(before), met, err)
	}
	expect(t, s, "kept", keep)
}

func TestReplacedRootFreesTheOldOne(t *testing.T) {
	s := open(t, testkit.TempDir(t), small)
	for range 20 {
		save(t, s, "r", noise(t, 16<<10))
	}
	must(s.Collect(context.Background()))
	if n := onDisk(t, s); n > 20<<10 {
		t.Fatalf("%d bytes are left of one root with 16 KiB", n)
	}
}

// Captures with much in common, deletions and collections, all at once.
func TestConcurrentBatchesAndCollect(t *testing.T) {
	dir := testkit.TempDir(t)
	s := open(t, dir, Options{SegmentBytes: 32 << 10, PackBytes: 1})
	contents := make([][]byte, 40)
	for i := range contents {
		contents[i] = noise(t, 2<<10)
	}
	var writers, collector sync.WaitGroup
	stop := make(chan struct{})
	collector.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				_, err := s.Pack(context.Background())
				if _, err2 := s.Collect(context.Background()); err != nil || err2 != nil {
					t.Error(err, err2)
					return
				}
			}
		}
	})
	pick := func(w, i int) (blobs [][]byte) {
		for k := range 10 {
			blobs = append(blobs, contents[(w*7+i*3+k)%len(contents)])
		}
		return blobs
	}
	for w := range 4 {
		writers.Go(func() {
			for i := range 40 {
				name := fmt.Sprintf("w%d/%d", w, i%3)
				save(t, s, name, pick(w, i)...)
				expect(t, s, name, pick(w, i)...)
				if i%5 == 4 {
					if err := s.Delete(name); err != nil {
						t.Error(err)
					}
				}
				if _, err := s.Unique(name); err != nil {
					t.Error(err)
				}
			}
		})
	}
	writers.Wait()
	close(stop)
	collector.Wait()
	onDisk(t, s)
	noErr(t, s.Close())
	s = open(t, dir, small)
	for w := range 4 {
		for _, i := range []int{37, 38} {
			expect(t, s, fmt.Sprintf("w%d/%d", w, i%3), pick(w, i)...)
		}
	}
}

func TestParallelBlobsAreStoredOnce(t *testing.T) {
	s := open(t, testkit.TempDir(t), Options{})
	b := s.Begin()
	defer b.Discard()
	p := noise(t, 64<<10)
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			if _, err := b.Blob(p); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := s.DiskUsage(); n > 70<<10 {
		t.Fatalf("one blob of 64 KiB takes %d bytes", n)
	}
}
