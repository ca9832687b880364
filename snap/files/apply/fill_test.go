package apply

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/files/diff"
	"mulligan/snap/files/manifest"
	"mulligan/snap/files/walk"
	"mulligan/testkit"
)

// TestFillDoubts takes from the store what is not in the file that is there, although it should be: a file that is mapped can change without a trace in its stat.
func TestFillDoubts(t *testing.T) {
	for name, top := range map[string]func(*testing.T) string{
		"a copy": func(t *testing.T) string { return t.TempDir() },
		"shared blocks": func(t *testing.T) string {
			testkit.Need(t, "root", "xfs")
			return testkit.Loop(t, 512, "mkfs.xfs", "-q", "-f")
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := top(t)
			s, err := cas.Open(filepath.Join(dir, "store"), cas.Options{})
			noError(t, err)
			t.Cleanup(func() { noError(t, s.Close()) })
			want := testkit.Bytes(t, 5*cas.ChunkSize+9)
			clear(want[3*cas.ChunkSize : 4*cas.ChunkSize])
			e := stored(t, s, want)
			old := bytes.Clone(want)
			copy(old[4*cas.ChunkSize:], "old")
			was := stored(t, s, old)
			copy(old[cas.ChunkSize+100:], "nobody knows of this")                                 // of a piece that both have
			copy(old[3*cas.ChunkSize:], "nor of this")                                            // of a hole that both have
			noError(t, os.WriteFile(filepath.Join(dir, "present"), old[:5*cas.ChunkSize], 0o600)) // and the end is missing
			from, err := os.Open(filepath.Join(dir, "present"))
			noError(t, err)
			defer from.Close()
			to, err := os.Create(filepath.Join(dir, "new"))
			noError(t, err)
			defer to.Close()
			d := &diff.Delta{Path: "x", Old: was, New: e}
			w := &filler{job: &job{p: &Applier{Store: s, Walker: &walk.Walker{}}, ctx: t.Context()}, to: to, from: from}
			w.both, err = inBoth(s, d)
			noError(t, err)
			if len(w.both) != 4 { // 0, 1, 2 and 5
				t.Fatalf("%d pieces are in both", len(w.both))
			}
			noError(t, w.write(e))
			if w.cloned != (name == "shared blocks") {
				t.Errorf("blocks are shared: %v", w.cloned)
			}
			if got, err := os.ReadFile(to.Name()); err != nil || !bytes.Equal(got, want) {
				t.Errorf("another content was written, %v", err)
			}
		})
	}
}

// stored puts a content into the store, and returns an entry that has it.
func stored(t *testing.T, s *cas.Store, p []byte) *manifest.Entry {
	t.Helper()
	b := s.Begin()
	pieces := map[int64]snap.Hash{}
	for i := range manifest.Pieces(int64(len(p))) {
		part := p[i*cas.ChunkSize : min((i+1)*cas.ChunkSize, int64(len(p)))]
		if cas.AllZero(part) {
			continue
		}
		h, err := b.Blob(part)
		noError(t, err)
		pieces[i] = h
	}
	h, err := b.Node(manifest.EncodeLarge(int64(len(p)), pieces))
	noError(t, err)
	noError(t, b.Commit(cas.Root{Name: h.String(), Hash: h}))
	return &manifest.Entry{Name: "x", Mode: unix.S_IFREG | 0o600, Size: int64(len(p)), Hash: h}
}

func noError(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
