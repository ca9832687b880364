package cas

import (
	"bufio"
	"bytes"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"mulligan/durable"
	"mulligan/errs"
	"mulligan/testkit"
	"mulligan/testkit/sysfault"
)

// unreadStore names the store to the process of TestUnreadable whose system calls fail.
const unreadStore = "MULLIGAN_TEST_UNREAD_STORE"

// TestUnreadable has the disk refuse to open a file of the store, or to read it. What is in the file is damaged, and everything else can be used. Nothing is
// deleted, so that all is there again once the disk reads the file. If it reads nothing of the active segment, the store is not opened.
func TestUnreadable(t *testing.T) {
	if dir := os.Getenv(unreadStore); dir != "" {
		useUnread(t, dir)
		return
	}
	t.Parallel() // it waits for the disk
	dir := testkit.TempDir(t)
	o := Options{SegmentBytes: 8 << 10, PackBytes: 4 << 10}
	s := open(t, dir, o)
	blobs := map[string][][]byte{}
	add := func(names ...string) {
		for _, name := range names {
			blobs[name] = [][]byte{noise(t, 3<<10), noise(t, 3<<10)}
			save(t, s, name, blobs[name]...)
		}
	}
	add("a", "b")
	must(s.Pack(t.Context()))
	add("c", "d", "e", "garbage", "f")
	noErr(t, s.Delete("garbage"))
	delete(blobs, "garbage")
	noErr(t, s.Close())
	removeIndexes(dir)
	before := segmentsIn(t, dir)
	paths := slices.Sorted(maps.Keys(before))
	if len(paths) < 6 || !strings.HasSuffix(paths[0], ".pack") {
		t.Fatalf("the store has %q", paths)
	}
	active := paths[len(paths)-1]
	var lost atomic.Int64
	try := func(t *testing.T, what, path string, nth int, errno unix.Errno) {
		t.Run(fmt.Sprintf("%s %s %d", what, filepath.Base(path), nth), func(t *testing.T) {
			t.Parallel()
			img := copyDir(t, dir)
			at := filepath.Join(img, filepath.Base(path))
			said := failing(t, img, sysfault.Fault{Call: what + " " + at, Nth: nth, Errno: errno})
			if path == active && nth == 0 {
				if !strings.Contains(said, "open: corrupt: ") || !strings.Contains(said, "nothing in "+at+" can be read") {
					t.Errorf("it says %q", said)
				}
			} else {
				if !strings.Contains(said, "collect: corrupt: ") || !strings.Contains(said, "pack: corrupt: ") || !strings.Contains(said, "cannot read all of "+at+":") {
					t.Errorf("it says %q", said)
				}
				lost.Add(int64(strings.Count(said, "is damaged")))
			}
			for old, content := range before {
				if now := string(must(os.ReadFile(filepath.Join(img, filepath.Base(old))))); !strings.HasPrefix(now, content) {
					t.Errorf("%s is changed", old)
				}
			}
			s := open(t, img, o)
			must(s.Collect(t.Context()))
			for name, list := range blobs {
				expect(t, s, name, list...)
			}
		})
	}
	t.Run("files", func(t *testing.T) {
		for _, path := range paths {
			try(t, "open", path, 0, unix.EUCLEAN)
			try(t, "read", path, 0, unix.EIO)
		}
		for nth := 2; nth < 6; nth++ { // the first one reads the header
			try(t, "read", active, nth, unix.EIO)
		}
	})
	if lost.Load() == 0 {
		t.Error("no root was damaged")
	}
}

// failing runs useUnread in a process of which a system call fails, and returns what it says.
func failing(t *testing.T, dir string, f sysfault.Fault) string {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestUnreadable$", "-test.v")
	cmd.Env = append(os.Environ(), unreadStore+"="+dir)
	begin := must(cmd.StdinPipe())
	out := must(os.Create(filepath.Join(t.TempDir(), "out")))
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, out
	p, err := sysfault.Start(cmd, sysfault.Options{})
	noErr(t, err)
	t.Cleanup(func() { _ = p.Process.Kill() })
	p.Arm(f)
	must(begin.Write([]byte("begin\n")))
	err = p.Wait()
	said := string(must(os.ReadFile(out.Name())))
	if seen := p.Disarm(); err != nil || !seen.Hit {
		t.Fatalf("%v; the fault happened: %v; it did %q\n%s", err, seen.Hit, seen.Calls, said)
	}
	return said
}

// useUnread opens a store, of which something cannot be read, says what is damaged, and uses it.
func useUnread(t *testing.T, dir string) {
	must(bufio.NewReader(os.Stdin).ReadString('\n'))
	s, err := Open(dir, small)
	if err != nil {
		fmt.Printf("open: %s: %v\n", errs.KindOf(err), err)
		return
	}
	defer s.Close()
	if names := fmt.Sprint(names(s)); names != "[a b c d e f]" {
		t.Errorf("the roots are %s", names)
	}
	for _, r := range s.Roots("") {
		if err := s.Check(t.Context(), r.Name, true); err != nil {
			wantKind(t, err, errs.Corrupt)
			fmt.Printf("%s is damaged\n", r.Name)
		}
	}
	for range 2 {
		_, err = s.Collect(t.Context())
		fmt.Printf("collect: %s: %v\n", errs.KindOf(err), err)
		_, err = s.Pack(t.Context())
		fmt.Printf("pack: %s: %v\n", errs.KindOf(err), err)
	}
	blob := noise(t, 20<<10)
	save(t, s, "new", blob)
	expect(t, s, "new", blob)
}

// TestPatchy reads a segment of which the kernel cannot read some pages: these are zeros, and nothing else is. The segment is the memory of this process, with holes.
func TestPatchy(t *testing.T) {
	page := os.Getpagesize()
	base := must(unix.MmapPtr(-1, 0, nil, uintptr(7*page), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON))
	defer func() { noErr(t, unix.MunmapPtr(base, uintptr(7*page))) }()
	all := unsafe.Slice((*byte)(base), 7*page)
	copy(all, noise(t, len(all)))
	want := bytes.Clone(all)
	empty := must(unix.MemfdCreate("empty", unix.MFD_CLOEXEC))
	defer unix.Close(empty)
	for _, i := range []int{1, 2, 5} {
		must(unix.MmapPtr(empty, 0, unsafe.Pointer(&all[i*page]), uintptr(page), unix.PROT_READ, unix.MAP_SHARED|unix.MAP_FIXED))
		clear(want[i*page : (i+1)*page])
	}
	g := &segment{f: must(os.Open("/proc/self/mem"))}
	defer g.f.Close()
	for from := 0; from < len(want); from += page / 2 {
		for to := from + 1; to <= len(want); to += page/2 + 1 {
			got := bytes.Repeat([]byte{1}, to-from)
			g.patchy = false
			whole, err := g.ReadAt(got, int64(uintptr(base))+int64(from))
			if err != nil && !durable.Unreadable(err) {
				t.Fatal(err)
			}
			g.patchy = true
			n := must(g.ReadAt(got, int64(uintptr(base))+int64(from)))
			if n != len(got) || !bytes.Equal(got, want[from:to]) {
				t.Fatalf("bytes %d to %d: %d were read, %d of them without holes, and they are others", from, to, n, whole)
			}
		}
	}
}
