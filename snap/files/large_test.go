package files

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/testkit"
)

// TestLargeFileByPieces goes back and forward between two states of a large file, which differ in some pieces, in holes and in size. What both have is copied from
// the file that is there: it is damaged in the store, and that stops nothing. Where the filesystem can share blocks, it is shared.
func TestLargeFileByPieces(t *testing.T) {
	for name, mkfs := range map[string][]string{"ext4": {"mkfs.ext4", "-q", "-F"}, "xfs": {"mkfs.xfs", "-q", "-f"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testkit.Need(t, "root", "xfs")
			top := testkit.Loop(t, 512, mkfs[0], mkfs[1:]...)
			s := newSite(t, func(c *Config) {
				c.Dir = filepath.Join(top, "ws")
				must(t, os.Mkdir(c.Dir, 0o755))
			})
			s.dir = s.cfg.Dir
			path := filepath.Join(s.dir, "image")
			const piece = cas.ChunkSize
			noise := testkit.Bytes(t, 13*piece)
			content := func(hole, changed int, size int) []byte {
				p := bytes.Clone(noise[:size])
				clear(p[hole*piece : (hole+1)*piece])
				copy(p[changed*piece:], []byte("changed"))
				return p
			}
			one, two := content(2, 4, 12*piece+123), content(7, 5, 10*piece+7)
			write := func(p []byte, hole int) {
				t.Helper()
				f, err := os.Create(path)
				must(t, err)
				_, err = f.WriteAt(p[:hole*piece], 0)
				must(t, err)
				_, err = f.WriteAt(p[(hole+1)*piece:], int64((hole+1)*piece))
				must(t, err)
				must(t, f.Close())
			}
			write(one, 2)
			first := s.capture(t)
			write(two, 7)
			shared := extents(t, path)
			for _, i := range []int{0, 1, 3, 6, 8, 9} { // of both
				s.overwrite(t, one[i*piece:i*piece+64], 100, make([]byte, 64))
			}
			second := s.restore(t, first.ID)
			is := func(want []byte, hole int) {
				t.Helper()
				got, err := os.ReadFile(path)
				must(t, err)
				if !bytes.Equal(got, want) {
					t.Fatal("the file has another content")
				}
				f, err := os.Open(path)
				must(t, err)
				defer f.Close() // it is only read
				if at, err := unix.Seek(int(f.Fd()), int64(hole*piece), unix.SEEK_DATA); err != nil || at < int64((hole+1)*piece) {
					t.Errorf("piece %d is no hole: data at %d, %v", hole, at, err)
				}
			}
			is(one, 2)
			if name == "xfs" {
				common := 0
				for start := range extents(t, path) {
					if shared[start] {
						common++
					}
				}
				if common == 0 {
					t.Error("no blocks are those of the file before")
				}
			}
			s.restore(t, second.ID)
			is(two, 7)
		})
	}
}

// testLargeFileReadInPart makes small changes to a large file on a filesystem whose files share blocks. Captures, restores and their proofs then read little of it.
func testLargeFileReadInPart(t *testing.T) {
	for name, mkfs := range map[string][]string{"xfs": {"mkfs.xfs", "-q", "-f"}, "btrfs": {"mkfs.btrfs", "-q", "-f"}} {
		t.Run(name, func(t *testing.T) { // not beside other tests, which read too
			testkit.Need(t, "root", name)
			top := testkit.Loop(t, 800, mkfs[0], mkfs[1:]...)
			s := newSite(t, func(c *Config) {
				c.Dir, c.StateDir = filepath.Join(top, "ws"), filepath.Join(top, "state")
				must(t, os.Mkdir(c.Dir, 0o755))
			})
			s.dir = s.cfg.Dir
			path := filepath.Join(s.dir, "image")
			const size = 64 << 20
			content := testkit.Bytes(t, size)
			must(t, os.WriteFile(path, content, 0o600))
			s.capture(t)
			change := func(at int) {
				t.Helper()
				f, err := os.OpenFile(path, os.O_WRONLY, 0)
				must(t, err)
				_, err = f.WriteAt([]byte("changed"), int64(at))
				must(t, err)
				must(t, f.Close())
				copy(content[at:], "changed")
			}
			for i := range 2 {
				change((10 + i) << 20)
				if read := readBy(t, func() { s.capture(t) }); read < size {
					t.Errorf("a capture read %d bytes before there was a copy", read)
				}
			}
			change(20 << 20)
			before := bytes.Clone(content)
			var first, second snap.Snapshot
			if read := readBy(t, func() { first = s.capture(t) }); read > size/8 {
				t.Errorf("a capture of a small change read %d bytes", read)
			}
			change(30 << 20)
			if read := readBy(t, func() { second = s.capture(t) }); read > size/8 {
				t.Errorf("a capture of a small change read %d bytes", read)
			}
			for _, to := range []struct {
				id   snap.SnapshotID
				want []byte
			}{{first.ID, before}, {second.ID, content}} {
				if read := readBy(t, func() { s.restore(t, to.id) }); read > size/4 {
					t.Errorf("a restore of a small change read %d bytes", read)
				}
				if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, to.want) {
					t.Fatalf("the file has another content, %v", err)
				}
			}
		})
	}
}

// readBy returns how many bytes this process reads while do runs.
func readBy(t *testing.T, do func()) int {
	t.Helper()
	before := bytesRead(t)
	do()
	return bytesRead(t) - before
}

// extents lists where on the disk the file's parts begin.
func extents(t *testing.T, path string) map[string]bool {
	t.Helper()
	out := run(t, filepath.Dir(path), "sync; filefrag -v "+filepath.Base(path)+" | awk '$1 ~ /^[0-9]+:$/ {print $4}'")
	list := map[string]bool{}
	for _, start := range bytes.Fields([]byte(out)) {
		list[string(start)] = true
	}
	if len(list) == 0 {
		t.Fatalf("filefrag says %q", out)
	}
	return list
}
