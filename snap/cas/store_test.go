package cas

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"mulligan/errs"
	"mulligan/testkit"
)

// small are options under which a few kilobytes fill several segments.
var small = Options{SegmentBytes: 8 << 10, PackBytes: 1}

func open(t testing.TB, dir string, o Options) *Store {
	t.Helper()
	s, err := Open(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func noErr(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantKind(t testing.TB, err error, kind errs.Kind) {
	t.Helper()
	if err == nil || errs.KindOf(err) != kind {
		t.Fatalf("error %v, want one of kind %q", err, kind)
	}
}

// noise is n bytes that do not compress.
func noise(t testing.TB, n int) []byte { return testkit.Bytes(t, n) }

// save commits blobs under one node under the root name.
func save(t testing.TB, s *Store, name string, blobs ...[]byte) Hash {
	t.Helper()
	b := s.Begin()
	defer b.Discard()
	var refs []Hash
	for i, p := range blobs {
		refs = append(refs, must(b.Series(fmt.Sprint("part ", i)).Blob(p)))
	}
	n := must(b.Node([]byte("node of "+name), refs))
	noErr(t, b.Commit(Root{Name: name, Hash: n, Meta: []byte(name + "'s own")}))
	return n
}

// expect checks that name reaches exactly blobs.
func expect(t testing.TB, s *Store, name string, blobs ...[]byte) {
	t.Helper()
	r, err := s.Root(name)
	noErr(t, err)
	if string(r.Meta) != name+"'s own" {
		t.Fatalf("root %q has meta %q", name, r.Meta)
	}
	data, refs, err := s.Node(r.Hash)
	noErr(t, err)
	if string(data) != "node of "+name || len(refs) != len(blobs) {
		t.Fatalf("root %q: node %q with %d refs", name, data, len(refs))
	}
	for i, ref := range refs {
		p, err := s.Get(ref)
		noErr(t, err)
		if !bytes.Equal(p, blobs[i]) {
			t.Fatalf("root %q: blob %d differs", name, i)
		}
	}
	noErr(t, s.Check(context.Background(), name, true))
}

func TestRoundTrip(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	s := open(t, dir, Options{})
	text := bytes.Repeat([]byte("compressible "), 5000)
	blobs := [][]byte{{}, []byte("x"), text, noise(t, MaxObject)}
	save(t, s, "a", blobs...)
	expect(t, s, "a", blobs...)
	if n := s.DiskUsage(); n > MaxObject+10<<10 {
		t.Errorf("%d bytes on disk: the text was not compressed", n)
	}
	noErr(t, s.Close())
	noErr(t, s.Close())
	_, err := s.Root("a")
	wantKind(t, err, errs.Unavailable)

	s = open(t, dir, Options{})
	expect(t, s, "a", blobs...)
	if fi := must(os.Stat(dir)); fi.Mode().Perm() != 0o700 {
		t.Errorf("the folder has mode %v", fi.Mode())
	}
}

// The index beside a sealed segment says what the segment does: refs that were let
// go of when they were durable are in it.
func TestIndexOfSealed(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	s := open(t, dir, Options{SegmentBytes: 64 << 10})
	for i := range 40 {
		save(t, s, fmt.Sprint(i), noise(t, 3000+i), noise(t, 100+i))
		for _, o := range s.active.objects {
			if len(o.refs) > 0 {
				t.Fatal("the refs of a durable node are still in memory")
			}
		}
	}
	sealed := 0
	for seq, g := range s.segs {
		if g == s.active {
			continue
		}
		sealed++
		have := must(decodeIndex(must(os.ReadFile(g.indexPath())), s.salt, seq, g.size.Load()))
		want := must(scanSegment(g.f, g.size.Load(), seq, s.salt, true)).objects
		if !reflect.DeepEqual(have, want) {
			t.Errorf("segment %d: the index has %d objects that differ from the %d in it", seq, len(have), len(want))
		}
	}
	if sealed == 0 {
		t.Fatal("no segment was sealed")
	}
}
