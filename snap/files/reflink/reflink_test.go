package reflink

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/fiemap"
	"mulligan/snap/files/manifest"
	"mulligan/testkit"
)

// on runs a test on each filesystem whose files share blocks.
func on(t *testing.T, f func(t *testing.T, dir string)) {
	for name, mkfs := range map[string][]string{"xfs": {"mkfs.xfs", "-q", "-f"}, "btrfs": {"mkfs.btrfs", "-q", "-f"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testkit.Need(t, "root", name)
			f(t, testkit.Loop(t, 600, mkfs[0], mkfs[1:]...))
		})
	}
}

func noError(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// read reads a file as a capture does. It returns the hashes of its pieces, and how many were known.
func read(t *testing.T, c *Copies, path string) (hashes map[int64]snap.Hash, known int) {
	t.Helper()
	f, err := os.Open(path)
	noError(t, err)
	defer f.Close()
	info, err := f.Stat()
	noError(t, err)
	r := c.Begin(f, "the file", info.Size())
	defer r.Close()
	hashes = map[int64]snap.Hash{}
	buf := make([]byte, cas.ChunkSize)
	for i := range manifest.Pieces(info.Size()) {
		h, ok := r.Known(i)
		if ok {
			known++
		} else {
			h = hashAt(t, r.File, i, info.Size(), buf)
		}
		if !h.IsZero() {
			hashes[i] = h
		}
	}
	r.Done(hashes)
	return hashes, known
}

// hashAt returns the hash of a piece; that of zeros is zero.
func hashAt(t *testing.T, f *os.File, i, size int64, buf []byte) snap.Hash {
	t.Helper()
	p := buf[:min(cas.ChunkSize, size-i*cas.ChunkSize)]
	_, err := f.ReadAt(p, i*cas.ChunkSize)
	noError(t, err)
	if cas.AllZero(p) {
		return snap.Hash{}
	}
	return cas.BlobHash(p)
}

// TestAnyWrites changes a file in all ways that there are, at random, and compares what a reading that uses copies says of it with what it really holds.
func TestAnyWrites(t *testing.T) {
	on(t, func(t *testing.T, dir string) {
		random := testkit.Rand(t)
		path := filepath.Join(dir, "file")
		noError(t, os.WriteFile(path, testkit.Bytes(t, Least+3*cas.ChunkSize+77), 0o600))
		c := New(dir)
		steps, most := 60, int64(Least+8*cas.ChunkSize)
		known := 0
		for n := range steps {
			what := change(t, random, path, most)
			got, k := read(t, c, path)
			known += k
			f, err := os.Open(path)
			noError(t, err)
			info, err := f.Stat()
			noError(t, err)
			buf := make([]byte, cas.ChunkSize)
			for i := range manifest.Pieces(info.Size()) {
				if want := hashAt(t, f, i, info.Size(), buf); got[i] != want {
					t.Fatalf("step %d, %s: the piece %d of %d has another content than was read", n, what, i, manifest.Pieces(info.Size()))
				}
			}
			noError(t, f.Close())
		}
		if known < 5*steps {
			t.Errorf("only %d pieces of %d readings were known", known, steps)
		}
	})
}

// change changes the file in one way, and says in which.
func change(t *testing.T, random *rand.Rand, path string, most int64) string {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	noError(t, err)
	defer func() { noError(t, f.Close()) }()
	info, err := f.Stat()
	noError(t, err)
	size := info.Size()
	at, n := random.Int64N(size), 1+random.Int64N(200_000)
	switch random.IntN(10) {
	case 0:
		noError(t, f.Truncate(max(Least, size-n)))
		return "cut"
	case 1:
		noError(t, f.Truncate(min(most, size+n)))
		return "lengthened by a hole"
	case 2:
		noError(t, unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, at, n))
		return "a hole"
	case 3:
		noError(t, unix.Fallocate(int(f.Fd()), 0, size, min(n, max(most-size, 1))))
		return "allocated"
	case 4:
		p, err := unix.Mmap(int(f.Fd()), 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		noError(t, err)
		p[at] ^= 0xff
		noError(t, unix.Munmap(p))
		return "a store through a mapping"
	case 5: // a part of it takes the blocks of another part
		from := at / 4096 * 4096
		to := random.Int64N(size-cas.ChunkSize) / 4096 * 4096
		n := min(size-from, size-to, n) / 4096 * 4096
		if n > 0 && (from+n <= to || to+n <= from) {
			noError(t, unix.IoctlFileCloneRange(int(f.Fd()), &unix.FileCloneRange{Src_fd: int64(f.Fd()), Src_offset: uint64(from), Src_length: uint64(n), Dest_offset: uint64(to)}))
		}
		return "blocks shared with itself"
	case 6: // it is a new file, with the content of the old one
		content, err := os.ReadFile(path)
		noError(t, err)
		noError(t, os.Remove(path))
		noError(t, os.WriteFile(path, content, 0o600))
		return "written anew"
	case 7: // it is another file that shares most of its blocks
		other, err := os.Create(path + ".new")
		noError(t, err)
		noError(t, unix.IoctlFileClone(int(other.Fd()), int(f.Fd())))
		_, err = other.WriteAt([]byte("other"), at)
		noError(t, err)
		noError(t, other.Close())
		noError(t, os.Rename(path+".new", path))
		return "replaced by a changed copy"
	}
	_, err = f.WriteAt(bytes.Repeat([]byte{byte(random.Uint32())}, int(min(n, size-at))), at)
	noError(t, err)
	return fmt.Sprintf("%d bytes at %d", n, at)
}

// A file that is written anew is never copied; one that changes in some places is, from its third reading on.
func TestWhatIsCopied(t *testing.T) {
	on(t, func(t *testing.T, dir string) {
		path := filepath.Join(dir, "file")
		c := New(dir)
		for n := range 3 {
			noError(t, os.WriteFile(path, testkit.Bytes(t, Least), 0o600))
			if _, known := read(t, c, path); known != 0 || c.files["the file"] == nil || c.files["the file"].copy != nil {
				t.Fatalf("reading %d of a new content: %d pieces were known", n, known)
			}
		}
		for n, want := range []int{0, 0, 15, 15} {
			f, err := os.OpenFile(path, os.O_WRONLY, 0)
			noError(t, err)
			_, err = f.WriteAt([]byte("changed"), int64(n+3)*cas.ChunkSize+100)
			noError(t, err)
			noError(t, f.Close())
			if _, known := read(t, c, path); known != want || (c.files["the file"].copy != nil) != (n > 0) {
				t.Errorf("reading %d of a changed content: %d pieces were known, want %d", n, known, want)
			}
		}
		if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
			t.Errorf("the copies have names: %v, %v", entries, err)
		}
	})
}

// Copies are given up when they are old, when there are too many, and when the disk may need what they hold.
func TestCopiesGoAway(t *testing.T) {
	on(t, func(t *testing.T, dir string) {
		path := filepath.Join(dir, "file")
		noError(t, os.WriteFile(path, testkit.Bytes(t, Least), 0o600))
		c := New(dir)
		held := func() bool {
			c.mu.Lock()
			defer c.mu.Unlock()
			return c.files["the file"] != nil && c.files["the file"].copy != nil
		}
		again := func() {
			t.Helper()
			for range 3 {
				read(t, c, path)
			}
			if !held() || nameless(t, dir) != 1 {
				t.Fatalf("%d copies are open, want one", nameless(t, dir))
			}
		}
		again()
		c.mu.Lock()
		c.files["the file"].used = time.Now().Add(-2 * unused)
		c.tidy()
		c.mu.Unlock()
		if held() {
			t.Error("an old copy is kept")
		}
		again()
		for i := range mostFiles {
			c.put(fmt.Sprint(i), &file{used: time.Now()})
		}
		if held() || len(c.files) != mostFiles {
			t.Errorf("%d files are kept", len(c.files))
		}
		again()
		full, err := os.Create(filepath.Join(dir, "full"))
		noError(t, err)
		for size := int64(0); ; { // what is free is an estimate on btrfs
			var st unix.Statfs_t
			noError(t, unix.Statfs(dir, &st))
			more := int64(st.Bavail)*st.Bsize - Least
			if more <= 0 || unix.Fallocate(int(full.Fd()), 0, size, more) != nil {
				break
			}
			size += more
		}
		noError(t, full.Close())
		c.mu.Lock()
		c.tidy()
		c.mu.Unlock()
		if held() {
			t.Error("a copy is kept on a disk that is nearly full")
		}
		for range 3 {
			if read(t, c, path); held() {
				t.Error("a copy was made on a disk that is nearly full")
			}
		}
		if n := nameless(t, dir); n != 0 {
			t.Errorf("%d copies are still open", n)
		}
	})
}

// nameless returns how many files in dir, whose names are gone, this process has open.
func nameless(t *testing.T, dir string) (n int) {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	noError(t, err)
	for _, e := range all {
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && strings.HasPrefix(to, dir+"/") && strings.HasSuffix(to, " (deleted)") {
			n++
		}
	}
	return n
}

// What is not exactly known is never the same.
func TestEqualRanges(t *testing.T) {
	e := func(logical, physical, length uint64, flags uint32) fiemap.Extent {
		return fiemap.Extent{Logical: logical, Physical: physical, Length: length, Flags: flags}
	}
	for name, c := range map[string]struct {
		a, b []fiemap.Extent
		want string
	}{
		"the same":                    {[]fiemap.Extent{e(0, 100, 10, 0)}, []fiemap.Extent{e(0, 100, 10, fiemap.Last)}, "[{0 20}]"},
		"divided otherwise":           {[]fiemap.Extent{e(0, 100, 10, 0)}, []fiemap.Extent{e(0, 100, 4, 0), e(4, 104, 6, 0)}, "[{0 20}]"},
		"a changed part":              {[]fiemap.Extent{e(0, 100, 10, 0)}, []fiemap.Extent{e(0, 100, 4, 0), e(4, 300, 2, 0), e(6, 106, 4, 0)}, "[{0 4} {6 20}]"},
		"moved":                       {[]fiemap.Extent{e(0, 100, 10, 0)}, []fiemap.Extent{e(2, 100, 10, 0)}, "[{12 20}]"},
		"a hole filled":               {[]fiemap.Extent{e(0, 100, 4, 0)}, []fiemap.Extent{e(0, 100, 6, 0)}, "[{0 4} {6 20}]"},
		"written over what was empty": {[]fiemap.Extent{e(0, 100, 8, fiemap.Unwritten)}, []fiemap.Extent{e(0, 100, 8, 0)}, "[{8 20}]"},
		"compressed":                  {[]fiemap.Extent{e(0, 100, 8, fiemap.Inexact)}, []fiemap.Extent{e(0, 100, 8, fiemap.Inexact)}, "[{8 20}]"},
		"not yet on the disk":         {[]fiemap.Extent{e(0, 0, 8, fiemap.Placeless)}, []fiemap.Extent{e(0, 0, 8, fiemap.Placeless)}, "[{8 20}]"},
	} {
		if got := fmt.Sprint(equalRanges(c.a, c.b, 20)); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// TestWhileWritten reads a file that others write to all the time, also through a mapping: what is known of it is what the copy has, at the moment at which it was made.
func TestWhileWritten(t *testing.T) {
	on(t, func(t *testing.T, dir string) {
		path := filepath.Join(dir, "file")
		const size = Least + 4*cas.ChunkSize
		noError(t, os.WriteFile(path, testkit.Bytes(t, size), 0o600))
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		noError(t, err)
		defer f.Close()
		mapped, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		noError(t, err)
		stop := make(chan struct{})
		var writers sync.WaitGroup
		writes := testkit.Rand(t)
		stores := testkit.Rand(t)
		writers.Go(func() {
			for p := make([]byte, 4096); ; p[0]++ {
				select {
				case <-stop:
					return
				default:
				}
				if _, err := f.WriteAt(p, writes.Int64N(size/8)); err != nil {
					t.Error(err)
					return
				}
			}
		})
		writers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					mapped[size/8+stores.Int64N(size/8)]++
				}
			}
		})
		defer func() {
			close(stop)
			writers.Wait()
			noError(t, unix.Munmap(mapped))
		}()
		c := New(dir)
		buf := make([]byte, cas.ChunkSize)
		known := 0
		for range 12 {
			func() {
				r := c.Begin(f, "the file", size)
				defer r.Close()
				hashes := map[int64]snap.Hash{}
				for i := range manifest.Pieces(size) {
					hashes[i] = hashAt(t, r.File, i, size, buf)
					if h, ok := r.Known(i); ok {
						if known++; h != hashes[i] {
							t.Fatalf("the piece %d is not what was known of it", i)
						}
					}
				}
				r.Done(hashes)
			}()
		}
		if known == 0 {
			t.Error("nothing was known")
		}
	})
}
