package cas

import (
	"context"
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"mulligan/errs"
	"mulligan/testkit"
)

// tmpfs mounts a file system of size bytes.
func tmpfs(t *testing.T, size int) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d", size)); err != nil {
		testkit.Lack(t, "cannot mount a small file system: ", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// On a full disk, batches fail with advice; reads and deletions work, and a
// collection makes room again.
func TestFullDisk(t *testing.T) {
	t.Parallel() // it waits for the disk
	for _, segment := range []int64{256 << 10, 128 << 20} {
		t.Run(fmt.Sprintf("segments of %d", segment), func(t *testing.T) {
			mount := tmpfs(t, 6<<20)
			dir := mount + "/store"
			s := open(t, dir, Options{SegmentBytes: segment})
			var saved [][]byte
			for round := range 3 {
				saved = append(saved, fillUp(t, s, len(saved))...)
				if len(saved) < 10 {
					t.Fatalf("round %d: only %d blobs fit", round, len(saved))
				}
				// Somebody else takes what is left.
				hog := must(os.Create(mount + "/hog"))
				for _, n := range []int{4096, 512, 1} {
					for {
						if _, err := hog.Write(make([]byte, n)); err != nil {
							break
						}
					}
				}
				noErr(t, hog.Close())
				_, err := s.Begin().Blob(noise(t, 900<<10))
				wantKind(t, err, errs.Failed)
				if errs.HintOf(err) == "" {
					t.Errorf("no hint: %v", err)
				}
				if round == 1 {
					noErr(t, s.Close())
					s = open(t, dir, Options{SegmentBytes: segment})
				}
				for i, p := range saved {
					expect(t, s, fmt.Sprint(i), p)
				}
				for i := len(saved) / 4; i < len(saved); i++ {
					noErr(t, s.Delete(fmt.Sprint(i)))
				}
				saved = saved[:len(saved)/4]
				if round == 2 { // all is dead: nothing need be copied, and there is no room to
					for i := range saved {
						noErr(t, s.Delete(fmt.Sprint(i)))
					}
					saved = nil
				} else {
					noErr(t, os.Remove(mount+"/hog"))
				}
				if n := must(s.Collect(context.Background())); n < 1<<20 {
					t.Fatalf("round %d: the collection freed %d bytes", round, n)
				}
				os.Remove(mount + "/hog")
				onDisk(t, s)
				for i, p := range saved {
					expect(t, s, fmt.Sprint(i), p)
				}
			}
			noErr(t, s.Close())
			s = open(t, dir, Options{})
			save(t, s, "after", noise(t, 500<<10))
		})
	}
}

// What is to be left free is left free, and a store that is out of room for that reason takes objects again when there is.
func TestLeaves(t *testing.T) {
	t.Parallel() // it waits for the disk
	const leave = 2 << 20
	mount := tmpfs(t, 8<<20)
	s := open(t, mount+"/store", Options{Leave: leave})
	saved := fillUp(t, s, 0)
	if len(saved) < 10 {
		t.Fatalf("only %d blobs fit", len(saved))
	}
	var fs unix.Statfs_t
	noErr(t, unix.Statfs(mount, &fs))
	if free := int64(fs.Bavail) * fs.Bsize; free < leave-growth || free > leave+growth {
		t.Errorf("%d bytes are free, and %d were to be left", free, leave)
	}
	for i, p := range saved {
		expect(t, s, fmt.Sprint(i), p)
		noErr(t, s.Delete(fmt.Sprint(i)))
	}
	must(s.Collect(context.Background()))
	p := noise(t, 500<<10)
	save(t, s, "after", p)
	expect(t, s, "after", p)
}

// fillUp commits blobs until the disk is full.
func fillUp(t *testing.T, s *Store, from int) (saved [][]byte) {
	t.Helper()
	for {
		p := noise(t, 100<<10)
		b := s.Begin()
		h, err := b.Blob(p)
		var n Hash
		name := fmt.Sprint(from + len(saved))
		if err == nil {
			n, err = b.Node([]byte("node of "+name), []Hash{h})
		}
		if err == nil {
			err = b.Commit(Root{Name: name, Hash: n, Meta: []byte(name + "'s own")})
		}
		b.Discard()
		if err != nil {
			wantKind(t, err, errs.Failed)
			return saved
		}
		saved = append(saved, p)
	}
}
