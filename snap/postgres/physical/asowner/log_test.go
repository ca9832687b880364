package asowner

import (
	"context"
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"mulligan/privsep"
	"mulligan/snap/postgres/physical/wal"
	"mulligan/testkit/sysfault"
)

const size = wal.Segments(1 << 20)

// segment is the beginning of a log file with a word behind its header.
func segment(t *testing.T, path string, number uint64, word string) {
	t.Helper()
	head := make([]byte, wal.FirstHead)
	binary.NativeEndian.PutUint64(head[8:], number*uint64(size))
	binary.NativeEndian.PutUint32(head[32:], uint32(size))
	if err := os.WriteFile(path, append(head, word...), 0o600); err != nil {
		t.Fatal(err)
	}
}

// wordOf is the word behind the header of the file that locate finds.
func wordOf(t *testing.T, h Home, name string) string {
	t.Helper()
	path := h.locate(name)
	if path == "" {
		return ""
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text[wal.FirstHead:])
}

// TestLinks keeps the log of the timelines before the live server's, whose files the server reuses without asking: neither a link that
// there is nor a saved part is replaced by a link to a file of the live server, and a file that only the live server has is copied.
func TestLinks(t *testing.T) {
	h := Home{Store: t.TempDir(), Data: t.TempDir()}
	for _, dir := range []string{h.Archive(), h.WAL()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	name := func(timeline wal.Timeline, n uint64) string { return size.Name(timeline, n) }
	linked, partial, only, own := name(5, 12), name(5, 13), name(5, 14), name(6, 14)
	segment(t, filepath.Join(h.Archive(), linked+Linked), 12, "linked")
	segment(t, filepath.Join(h.Archive(), partial+".partial"), 13, "partial")
	for i, n := range []string{linked, partial, only} {
		segment(t, filepath.Join(h.WAL(), n), uint64(12+i), "of the recovery")
	}
	segment(t, filepath.Join(h.WAL(), own), 14, "own")
	names := []string{linked, partial, only, own}
	for range 2 {
		if err := h.present(names, size); err != nil {
			t.Fatal(err)
		}
		if missing, err := h.link(names, size, false); err != nil || missing != nil {
			t.Fatal(missing, err)
		}
	}
	// The live server reuses its files of timeline 5 for its own log, and ends.
	for i, n := range []string{linked, partial, only} {
		path, next := filepath.Join(h.WAL(), n), filepath.Join(h.WAL(), name(6, uint64(20+i)))
		if err := os.Rename(path, next); err != nil {
			t.Fatal(err)
		}
		segment(t, next, uint64(20+i), "reused") // the same inode
	}
	if err := os.Rename(h.WAL(), h.WAL()+"-gone"); err != nil {
		t.Fatal(err)
	}
	if err := h.present(names, size); err != nil {
		t.Fatal(err)
	}
	for n, want := range map[string]string{linked: "linked", partial: "partial", only: "of the recovery", own: "own"} {
		if got := wordOf(t, h, n); got != want {
			t.Errorf("%s has %q, want %q", n, got, want)
		}
	}
	// A link that an older mulligan made to such a file gives way to the saved part.
	segment(t, filepath.Join(h.Archive(), partial+Linked), 21, "reused")
	if err := h.present(names, size); err != nil {
		t.Fatal(err)
	}
	if got := wordOf(t, h, partial); got != "partial" {
		t.Errorf("beside a link with other log, %s has %q", partial, got)
	}
}

// TestCopyIsSynced: a file of the log is in the archive whole, or not at all.
func TestCopyIsSynced(t *testing.T) {
	for name, replace := range map[string]bool{"new": false, "replaced": true} {
		t.Run(name, func(t *testing.T) {
			calls := sysfault.Trace(t, func(dir string) { segment(t, dir+"/live", 1, "one") }, func(dir string) error {
				return copyDurably(dir+"/live", dir+"/kept", replace)
			})
			if i := slices.Index(calls, "sync .copy.kept"); i < 0 || !slices.Contains(calls[i:], "rename kept") {
				t.Errorf("it did %q", calls)
			}
			for _, lost := range sysfault.Unsynced(calls) {
				t.Error(lost)
			}
		})
	}
}

// TestClusterIsSynced: a copy of a cluster's files is on the disk before anything relies on it.
func TestClusterIsSynced(t *testing.T) {
	calls := sysfault.Trace(t, func(dir string) {
		if err := os.Mkdir(dir+"/live", 0o700); err != nil {
			t.Fatal(err)
		}
		segment(t, dir+"/live/f", 1, "one")
	}, func(dir string) error {
		_, err := CopyRaw.Call(context.Background(), privsep.Self, Pair{A: dir + "/live", B: dir + "/copy"})
		return err
	})
	if len(calls) == 0 || !slices.ContainsFunc(calls, func(c string) bool { return strings.HasPrefix(c, "syncfs ") }) {
		t.Errorf("nothing was synced: %q", calls)
	}
	for _, lost := range sysfault.Unsynced(calls) {
		t.Error(lost)
	}
}
