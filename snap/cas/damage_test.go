package cas

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/klauspost/compress/s2"

	"mulligan/errs"
	"mulligan/testkit"
)

// flip changes one byte of a file.
func flip(t testing.TB, path string, off int64) {
	t.Helper()
	p, err := os.ReadFile(path)
	noErr(t, err)
	p[off] ^= 0x40
	noErr(t, os.WriteFile(path, p, 0o600))
}

// One byte may go wrong anywhere: no root is lost, the damaged object is named,
// all others can be read, and storing its content again heals it.
func TestFlippedByteAnywhere(t *testing.T) {
	t.Parallel() // it waits for the disk
	for _, sealed := range []bool{false, true} {
		t.Run(fmt.Sprintf("sealed=%v", sealed), func(t *testing.T) {
			t.Parallel()
			dir := testkit.TempDir(t)
			s := open(t, dir, Options{})
			blobs := [][]byte{noise(t, 40), bytes.Repeat([]byte("z"), 300), []byte("k")}
			save(t, s, "a", blobs...)
			save(t, s, "b", blobs[2])
			size := s.active.size.Load()
			if sealed {
				s.wmu.Lock()
				noErr(t, s.roll())
				s.wmu.Unlock()
			}
			noErr(t, s.Close())
			step := int64(1)
			if sealed {
				step = 5
			}
			for off := int64(0); off < size; off += step {
				img := copyDir(t, dir)
				flip(t, segPath(img, 1), off)
				testDamage(t, img, off, blobs)
				if sealed { // again, with no index to say what was there
					img := copyDir(t, dir)
					removeIndexes(img)
					flip(t, segPath(img, 1), off)
					testDamage(t, img, off, blobs)
				}
			}
		})
	}
}

func testDamage(t *testing.T, dir string, off int64, blobs [][]byte) {
	t.Helper()
	s := must(Open(dir, Options{}))
	defer s.Close()
	ctx := context.Background()
	if len(s.Roots("")) != 2 {
		t.Fatalf("byte %d: roots are %v", off, names(s))
	}
	hurt := 0
	for h := range s.index {
		switch _, err := s.Get(h); errs.KindOf(err) {
		case "":
		case errs.Corrupt:
			if hurt++; s.Has(h) {
				t.Fatalf("byte %d: the store says it has %v, which is damaged", off, h)
			}
		default:
			t.Fatalf("byte %d: %v", off, err)
		}
	}
	failed := 0
	for _, name := range []string{"a", "b"} {
		if err := s.Check(ctx, name, true); err != nil {
			wantKind(t, err, errs.Corrupt)
			failed++
		}
	}
	if hurt > 1 || (hurt > 0) != (failed > 0) {
		t.Fatalf("byte %d: %d objects are damaged, %d roots fail their check", off, hurt, failed)
	}
	if off%10 != 0 {
		return
	}
	must(s.Collect(ctx))
	save(t, s, "a", blobs...)
	save(t, s, "b", blobs[2])
	expect(t, s, "a", blobs...)
	expect(t, s, "b", blobs[2])
	must(s.Collect(ctx))
	expect(t, s, "a", blobs...)
}

// Damage that comes while the store is open is found by Get and both checks.
func TestDamageWhileOpen(t *testing.T) {
	dir := testkit.TempDir(t)
	s := open(t, dir, Options{})
	p := noise(t, 1000)
	save(t, s, "a", p)
	h := blobHash(p)
	flipOpen := func(off int64) {
		var c [1]byte
		must(s.active.f.ReadAt(c[:], off))
		c[0] ^= 1
		must(s.active.f.WriteAt(c[:], off))
	}
	at := int64(s.index[h].off)
	flipOpen(at + headerSize + 500)
	noErr(t, s.Check(context.Background(), "a", false)) // it reads no blobs
	wantKind(t, s.Check(context.Background(), "a", true), errs.Corrupt)
	_, err := s.Get(h)
	wantKind(t, err, errs.Corrupt)
	wantKind(t, s.Check(context.Background(), "a", false), errs.Corrupt)
	b := s.Begin()
	_, err = b.Node(nil, []Hash{h})
	wantKind(t, err, errs.Corrupt)
	b.Discard()
	save(t, s, "b", p)
	expect(t, s, "a", p)

	flipOpen(int64(s.index[h].off) + 20) // in its header
	wantKind(t, s.Check(context.Background(), "a", false), errs.Corrupt)
}

// Some changes of compressed data leave the content as it was. They are damage too, for the store finds them when it is opened.
func TestDamageThatDecompressesTheSame(t *testing.T) {
	s := open(t, testkit.TempDir(t), Options{})
	var p []byte
	for i := range 50 {
		p = fmt.Appendf(p, "row %d of a table\n", i*i)
	}
	save(t, s, "a", p)
	e := s.index[blobHash(p)]
	stored := make([]byte, e.stored)
	at := int64(e.off) + headerSize
	must(s.active.f.ReadAt(stored, at))
	same := 0
	for i := range stored {
		for change := 1; change < 256; change++ {
			damaged := bytes.Clone(stored)
			damaged[i] ^= byte(change)
			if got, err := s2.Decode(nil, damaged); err != nil || !bytes.Equal(got, p) {
				continue
			}
			same++
			must(s.active.f.WriteAt(damaged, at))
			wantKind(t, s.Check(context.Background(), "a", true), errs.Corrupt)
			must(s.active.f.WriteAt(stored, at))
			noErr(t, s.Check(context.Background(), "a", true))
		}
	}
	if same == 0 {
		t.Fatal("every change of the compressed data changes the content")
	}
	t.Logf("%d changes leave the content as it was", same)
}

// What refers to damage that was found is not kept, however far below it the damage is. Putting the contents again mends it.
func TestKeepBesideDamage(t *testing.T) {
	s := open(t, testkit.TempDir(t), Options{})
	good, bad := noise(t, 1000), noise(t, 1000)
	tree := func(b *Batch) (top, other Hash) {
		t.Helper()
		leaf := must(b.Node([]byte("leaf"), []Hash{must(b.Blob(bad))}))
		top = must(b.Node([]byte("top"), []Hash{leaf}))
		return top, must(b.Node([]byte("other"), []Hash{must(b.Blob(good))}))
	}
	b := s.Begin()
	top, other := tree(b)
	noErr(t, b.Commit(Root{Name: "top", Hash: top}, Root{Name: "other", Hash: other}))
	must(s.active.f.WriteAt([]byte("damage"), int64(s.index[blobHash(bad)].off)+headerSize+100))
	keeps := func(want bool) {
		t.Helper()
		b := s.Begin()
		defer b.Discard()
		if got := b.Keep(top); got != want || !b.Keep(other) {
			t.Errorf("kept is %v, want %v, and the other %v", got, want, b.Keep(other))
		}
	}
	keeps(true) // nobody has read it
	wantKind(t, s.Check(context.Background(), "top", true), errs.Corrupt)
	keeps(false)
	b = s.Begin()
	tree(b)
	b.Discard()
	keeps(true)
	noErr(t, s.Check(context.Background(), "top", true))
}

// A collection copies nothing twice that it can't copy whole.
func TestCollectBesideDamage(t *testing.T) {
	s := open(t, testkit.TempDir(t), Options{})
	good, bad := noise(t, 1000), noise(t, 1000)
	save(t, s, "a", good, bad)
	save(t, s, "b", noise(t, 20000))
	at := int64(s.index[blobHash(bad)].off)
	must(s.active.f.WriteAt([]byte("damage"), at+headerSize+100))
	noErr(t, s.Delete("b"))
	must(s.Collect(context.Background()))
	size := s.DiskUsage()
	for range 3 {
		must(s.Collect(context.Background()))
	}
	if n := s.DiskUsage(); n > size {
		t.Fatalf("collecting made the store grow from %d to %d bytes", size, n)
	}
	if p, err := s.Get(blobHash(good)); err != nil || !bytes.Equal(p, good) {
		t.Fatal("a good neighbour was lost", err)
	}
	save(t, s, "a", good, bad)
	must(s.Collect(context.Background()))
	if n := s.DiskUsage(); n > 6000 {
		t.Fatalf("healed, the store still has %d bytes", n)
	}
	expect(t, s, "a", good, bad)
}

// A segment that is gone takes only its own objects with it.
func TestMissingSegment(t *testing.T) {
	dir := testkit.TempDir(t)
	s := open(t, dir, small)
	a, b := noise(t, 9<<10), noise(t, 9<<10)
	save(t, s, "a", a)
	save(t, s, "b", b)
	noErr(t, s.Close())
	noErr(t, os.Remove(segPath(dir, s.index[blobHash(a)].seg)))
	s = open(t, dir, small)
	wantKind(t, s.Check(context.Background(), "a", false), errs.Corrupt)
	expect(t, s, "b", b)
	save(t, s, "c", a)
	_, err := s.Get(blobHash(a))
	noErr(t, err)
}

// TestDamagedFormat: whatever bit of the file format is wrong, and if the file is missing or empty, the store has what it had, or it is not
// opened and not changed. Without a salt that fits, all segments would look like garbage.
func TestDamagedFormat(t *testing.T) {
	dir := testkit.TempDir(t)
	s := open(t, dir, Options{SegmentBytes: 8 << 10, PackBytes: 4 << 10})
	blob := noise(t, 6<<10)
	for i := range 4 {
		save(t, s, fmt.Sprint(i), blob, noise(t, 4<<10))
	}
	must(s.Pack(t.Context()))
	roots := s.Roots("")
	noErr(t, s.Close())
	format := must(os.ReadFile(dir + "/format"))
	before := segmentsIn(t, dir)
	if len(before) < 3 {
		t.Fatalf("the store has %d segments", len(before))
	}
	cases := map[string][]byte{"missing": nil, "empty": {}, "another text": []byte("garbage")}
	for bit := range 8 * len(format) {
		p := slices.Clone(format)
		p[bit/8] ^= 1 << (bit % 8)
		cases[fmt.Sprintf("bit %d of %d", bit, 8*len(format))] = p
	}
	healed := 0
	for what, p := range cases {
		if p == nil {
			noErr(t, os.Remove(dir+"/format"))
		} else {
			noErr(t, os.WriteFile(dir+"/format", p, 0o600))
		}
		s, err := Open(dir, small)
		if err != nil {
			if errs.KindOf(err) != errs.Unsupported || !maps.Equal(before, segmentsIn(t, dir)) {
				t.Errorf("%s: %v; changed: %v", what, err, !maps.Equal(before, segmentsIn(t, dir)))
			}
			noErr(t, os.WriteFile(dir+"/format", format, 0o600))
			continue
		}
		healed++
		if !slices.EqualFunc(s.Roots(""), roots, func(a, b Root) bool { return a.Name == b.Name && a.Hash == b.Hash }) {
			t.Errorf("%s: the roots are others", what)
		}
		for _, r := range roots {
			if err := s.Check(t.Context(), r.Name, true); err != nil {
				t.Errorf("%s: %v", what, err)
			}
		}
		noErr(t, s.Close())
		if now := must(os.ReadFile(dir + "/format")); !bytes.EqualFold(now, format) {
			t.Errorf("%s: the file says %q afterwards", what, now)
		}
	}
	if healed < 7*len(cases)/8 {
		t.Errorf("%d of %d damaged files were made anew", healed, len(cases))
	}
}

// TestForeignSegment: a segment of another store is not taken for garbage.
func TestForeignSegment(t *testing.T) {
	dir, other := testkit.TempDir(t), testkit.TempDir(t)
	for _, d := range []string{dir, other} {
		s := open(t, d, small)
		for i := range 4 {
			save(t, s, fmt.Sprint(i), noise(t, 6<<10))
		}
		noErr(t, s.Close())
	}
	foreign, mine := must(os.ReadFile(segPath(other, 2))), must(os.ReadFile(segPath(dir, 2)))
	for _, seq := range []uint32{2, 9000} { // with its own number, and as the newest
		noErr(t, os.WriteFile(segPath(dir, seq), foreign, 0o600))
		before := segmentsIn(t, dir)
		_, err := Open(dir, small)
		wantKind(t, err, errs.Corrupt)
		if !maps.Equal(before, segmentsIn(t, dir)) {
			t.Errorf("with a foreign segment %d, the store was changed", seq)
		}
		noErr(t, os.WriteFile(segPath(dir, 2), mine, 0o600))
	}
	noErr(t, os.Remove(segPath(dir, 9000)))
	s := open(t, dir, small)
	for i := range 4 {
		noErr(t, s.Check(t.Context(), fmt.Sprint(i), true))
	}
	noErr(t, s.Close())
}

// segmentsIn returns the contents of segments and packs, by path.
func segmentsIn(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, pattern := range []string{"*.seg", "*.pack"} {
		for _, path := range must(filepath.Glob(filepath.Join(dir, pattern))) {
			all[path] = string(must(os.ReadFile(path)))
		}
	}
	return all
}
