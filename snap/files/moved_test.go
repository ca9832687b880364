package files

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"mulligan/snap/files/manifest"
)

// testMovedFolderIsNotReadAgain: what lies in a folder that was moved keeps its
// inode and its times, so its content is known, even where the two ends of the
// move come in two batches.
func testMovedFolderIsNotReadAgain(t *testing.T) {
	t.Run("at once", func(t *testing.T) { moveAFolder(t, func(*followed) {}) })
	t.Run("gone first", func(t *testing.T) {
		moveAFolder(t, func(f *followed) {
			away := filepath.Join(t.TempDir(), "away")
			must(t, os.Rename(f.dir+"/big", away))
			f.flush(t)
			must(t, os.Rename(away, f.dir+"/big"))
		})
	})
}

func moveAFolder(t *testing.T, first func(*followed)) {
	const files, size = 40, 1 << 20
	f := newFollowed(t)
	content := bytes.Repeat([]byte("0123456789abcde\n"), size/16)
	for i := range files {
		write(t, fmt.Sprintf("%s/big/d%d/f%d", f.dir, i%3, i), fmt.Sprint(i, string(content[:size-16])))
	}
	old := time.Now().Add(-time.Hour)
	must(t, filepath.WalkDir(f.dir+"/big", func(p string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			err = os.Chtimes(p, old, old)
		}
		return err
	}))
	f.flush(t)
	for f.unsure(t) { // until a write could not hide in the clock's tick
		f.flush(t)
		must(t, f.follower.Session().Do(t.Context(), func() error { return f.follower.Session().ReadAgain(t.Context()) }))
	}
	before := bytesRead(t)
	first(f)
	must(t, os.Rename(f.dir+"/big", f.dir+"/other"))
	f.flush(t)
	if n := bytesRead(t) - before; n > files*size/4 {
		t.Errorf("%d bytes were read of the %d that were moved", n, files*size)
	}
	want := listing(t, f.dir)
	moved := f.capture(t)
	must(t, os.RemoveAll(f.dir+"/other"))
	f.restore(t, moved.ID)
	same(t, "restored", listing(t, f.dir), want)
}

// unsure reports whether some file must be read again to be known.
func (f *followed) unsure(t *testing.T) (yes bool) {
	j := f.follower.Session()
	must(t, j.Do(t.Context(), func() error {
		j.Each(func(_ string, n *manifest.Node) { yes = yes || n.IsFile() && !n.Sure })
		return nil
	}))
	return yes
}

// bytesRead is what this process has read so far, from files and pipes.
func bytesRead(t *testing.T) (n int) {
	t.Helper()
	p, err := os.ReadFile("/proc/self/io")
	must(t, err)
	_, err = fmt.Sscanf(string(p), "rchar: %d", &n)
	must(t, err)
	return n
}
