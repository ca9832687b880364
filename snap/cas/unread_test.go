package cas

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
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

// TestUnreadable has the disk refuse to open a file of the store, to read it, or to read one of its pages. What is in the file is damaged, and everything else can be
// used. Nothing is deleted, so that all is there again once the disk reads the file. If it reads nothing of the active segment, the store is not opened.
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
	set := func(name string, list ...[]byte) {
		save(t, s, name, list...)
		blobs[name] = list
	}
	add := func(names ...string) {
		for _, name := range names {
			set(name, noise(t, 3<<10), noise(t, 3<<10))
		}
	}
	add("a", "b")
	must(s.Pack(t.Context()))
	add("c", "d", "e", "garbage")
	set("f", blobs["a"]...) // a new root, and after it one that is replaced: on a page without objects of others
	set("e", blobs["b"]...)
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
	torn := tornEnd(t, dir, filepath.Base(active))
	var lost, unknown atomic.Int64
	try := func(t *testing.T, what, path string, f sysfault.Fault) {
		t.Run(fmt.Sprintf("%s %s %d %d", what, filepath.Base(path), f.Nth, f.From), func(t *testing.T) {
			t.Parallel()
			img := copyDir(t, dir)
			at := filepath.Join(img, filepath.Base(path))
			f.Call = what + " " + at
			page := f.To > 0
			if page {
				noErr(t, os.WriteFile(at, []byte(torn), 0o600))
			}
			said := failing(t, img, f)
			if path == active && f.Nth == 0 && !page {
				if !strings.Contains(said, "open: corrupt: ") || !strings.Contains(said, "nothing in "+at+" can be read") {
					t.Errorf("it says %q", said)
				}
			} else {
				if !strings.Contains(said, "collect: corrupt: ") || !strings.Contains(said, "pack: corrupt: ") || !strings.Contains(said, "cannot read all of "+at+":") {
					t.Errorf("it says %q", said)
				}
				if !page && !strings.Contains(said, "the roots are [a b c d e f]\n") {
					t.Errorf("it says %q", said)
				}
				lost.Add(int64(strings.Count(said, "is damaged")))
				unknown.Add(int64(strings.Count(said, "the roots are [a b c d e]\n")))
			}
			if page { // other starts, when it is not the active segment any more
				failing(t, img, f)
				failing(t, img, sysfault.Fault{Call: "open " + at, Errno: unix.EUCLEAN})
			}
			for old, content := range before {
				if now := string(must(os.ReadFile(filepath.Join(img, filepath.Base(old))))); !strings.HasPrefix(now, content) {
					t.Errorf("%s is changed", old)
				}
			}
			for range 2 { // when the disk reads it, and again after it was collected
				s := open(t, img, o)
				must(s.Collect(t.Context()))
				for name, list := range blobs {
					expect(t, s, name, list...)
				}
				noErr(t, s.Close())
			}
			if _, err := os.Stat(at); page && !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s was not collected: %v", at, err)
			}
		})
	}
	t.Run("files", func(t *testing.T) {
		for _, path := range paths {
			try(t, "open", path, sysfault.Fault{Errno: unix.EUCLEAN})
			try(t, "read", path, sysfault.Fault{Errno: unix.EIO})
		}
		for nth := 2; nth < 6; nth++ { // the first one reads the header
			try(t, "read", active, sysfault.Fault{Nth: nth, Errno: unix.EIO})
		}
		for from := int64(0); from < int64(len(before[active])); from += 4 << 10 {
			try(t, "read", active, sysfault.Fault{Errno: unix.EIO, From: from, To: from + 4<<10})
		}
	})
	if lost.Load() == 0 {
		t.Error("no root was damaged")
	}
	if unknown.Load() == 0 {
		t.Error("no root was unknown")
	}
}

// tornEnd returns what a power cut leaves of the store's active segment in a commit that gives the root e another object: the change of the roots is whole, and an
// object before it is not.
func tornEnd(t *testing.T, dir, active string) (content string) {
	t.Helper()
	img := copyDir(t, dir)
	s := open(t, img, Options{Failpoint: func(step string) error {
		if step == "sync" {
			content = string(must(os.ReadFile(filepath.Join(img, active))))
		}
		return nil
	}})
	whole := int(s.active.size.Load())
	save(t, s, "e", noise(t, 500))
	b := []byte(content)
	clear(b[whole+headerSize : whole+headerSize+500])
	return string(b)
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
	fmt.Printf("the roots are %v\n", names(s))
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
