package cas

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"mulligan/errs"
	"mulligan/testkit"
)

// essay gives versions of something that is edited again and again.
type essay struct {
	r *rand.Rand
	p []byte
}

func newEssay(t testing.TB, size int) *essay {
	e := &essay{r: testkit.Rand(t)}
	for len(e.p) < size {
		e.p = fmt.Appendf(e.p, "%x is what was found at %d\n", e.r.Uint64(), len(e.p))
	}
	return e
}

func (e *essay) edit() []byte {
	at := e.r.IntN(len(e.p))
	cut := min(e.r.IntN(40), len(e.p)-at)
	e.p = append(append(bytes.Clone(e.p[:at]), fmt.Sprintf("<%x>", e.r.Uint64())...), e.p[at+cut:]...)
	return e.p
}

// Versions of a node so large that few of them fit into a group are read as they were, also by a store that is opened anew.
func TestPackLargeNodes(t *testing.T) {
	const size, versions = 33 << 20, 2 // together over what a group may have
	dir := testkit.TempDir(t)
	s := open(t, dir, Options{PackBytes: 1})
	rnd := testkit.Rand(t)
	var all []Hash
	for i := range versions {
		noise := make([]byte, size)
		for at := 0; at < len(noise); at += 8 {
			binary.LittleEndian.PutUint64(noise[at:], rnd.Uint64())
		}
		b := s.Begin()
		n := must(b.Series("folder").Node(noise, nil))
		noErr(t, b.Commit(Root{Name: fmt.Sprint(i), Hash: n}))
		all = append(all, n)
	}
	must(s.Pack(t.Context()))
	for _, g := range s.segs {
		if !g.isPack() && g.live > 0 {
			t.Errorf("%d bytes of segment %d were not packed", g.live, g.seq)
		}
	}
	for i, n := range all {
		if _, err := s.Get(n); err != nil {
			t.Errorf("version %d: %v", i, err)
		}
	}
	noErr(t, s.Close())
	s = open(t, dir, Options{PackBytes: 1})
	for i := range all {
		noErr(t, s.Check(t.Context(), fmt.Sprint(i), true))
	}
}

// Versions of the same thing take little more than what is different in them,
// whenever they were packed; each reads back.
func TestPackVersions(t *testing.T) {
	dir := testkit.TempDir(t)
	s := open(t, dir, Options{PackBytes: 1})
	var things []*essay
	for range 20 {
		things = append(things, newEssay(t, 8<<10))
	}
	want := map[Hash][]byte{}
	for round := range 5 {
		for range 30 {
			b := s.Begin()
			var refs []Hash
			for i, e := range things {
				p := e.p
				if i%3 == round%3 {
					p = e.edit()
				}
				h := must(b.Series(fmt.Sprint(i)).Blob(p))
				refs = append(refs, h)
				want[h] = p
			}
			n := must(b.Series("list").Node(nil, refs))
			noErr(t, b.Commit(Root{Name: fmt.Sprint(len(want)), Hash: n}))
		}
		loose := onDisk(t, s)
		must(s.Pack(context.Background()))
		t.Logf("round %d: %d objects, from %d to %d bytes", round, len(want), loose, onDisk(t, s))
		if round%2 == 1 {
			noErr(t, s.Close())
			s = open(t, dir, Options{PackBytes: 1})
		}
	}
	for h, p := range want {
		if have, err := s.Get(h); err != nil || !bytes.Equal(have, p) {
			t.Fatal(err)
		}
	}
	whole := int64(20 * 8 << 10)
	if n := onDisk(t, s); n > 2*whole {
		t.Errorf("%d versions of %d bytes take %d", len(want), whole, n)
	}
	for _, r := range s.Roots("")[1:] {
		noErr(t, s.Delete(r.Name))
	}
	must(s.Collect(context.Background()))
	if n := onDisk(t, s); n > whole {
		t.Errorf("one version of each, %d bytes, takes %d", whole, n)
	}
	noErr(t, s.Check(context.Background(), s.Roots("")[0].Name, true))
}

// One byte may go wrong anywhere in a pack: no root is lost, what it harms is
// named, all else can be read, and bringing the contents again heals it.
func TestFlippedByteInPack(t *testing.T) {
	t.Parallel()
	dir := testkit.TempDir(t)
	s := open(t, dir, small)
	var blobs [][]byte
	for i := range 4 {
		blobs = append(blobs, text(i))
	}
	save(t, s, "a", blobs...)
	for i := range 4 {
		save(t, s, fmt.Sprint(i), blobs[i])
	}
	must(s.Pack(context.Background()))
	noErr(t, s.Close())
	packs := must(filepath.Glob(dir + "/*.pack"))
	if len(packs) != 1 {
		t.Fatalf("packs: %v", packs)
	}
	size := must(os.Stat(packs[0])).Size()
	for off := int64(0); off < size; off += 3 {
		img := copyDir(t, dir)
		flip(t, filepath.Join(img, filepath.Base(packs[0])), off)
		testPackDamage(t, img, off, blobs)
	}
}

func testPackDamage(t *testing.T, dir string, off int64, blobs [][]byte) {
	t.Helper()
	s := must(Open(dir, small))
	defer s.Close()
	ctx := context.Background()
	if len(s.Roots("")) != 5 {
		t.Fatalf("byte %d: roots are %v", off, names(s))
	}
	hurt, failed := 0, 0
	for h := range s.index {
		if _, err := s.Get(h); err != nil {
			wantKind(t, err, errs.Corrupt)
			hurt++
		}
	}
	for _, r := range s.Roots("") {
		if err := s.Check(ctx, r.Name, true); err != nil {
			wantKind(t, err, errs.Corrupt)
			failed++
		}
	}
	if (hurt > 0) != (failed > 0) || off >= segHeaderSize && hurt == 0 {
		t.Fatalf("byte %d: %d objects are damaged, %d roots fail their check", off, hurt, failed)
	}
	if off%5 != 0 {
		return
	}
	for range 2 {
		save(t, s, "a", blobs...)
		expect(t, s, "a", blobs...)
		for i := range blobs {
			save(t, s, fmt.Sprint(i), blobs[i])
			expect(t, s, fmt.Sprint(i), blobs[i])
		}
		must(s.Pack(ctx))
		must(s.Collect(ctx))
	}
}

// A store of format 1 opens, has what it had, and can be packed.
func TestFormat1(t *testing.T) {
	dir := copyDir(t, "testdata/format1")
	s := open(t, dir, small)
	want := [][]byte{bytes.Repeat([]byte("one line\n"), 50), []byte("small")}
	for range 2 {
		expect(t, s, "a", want...)
		for _, name := range []string{"b0", "b2", "b3"} {
			noErr(t, s.Check(context.Background(), name, true))
		}
		if len(s.Roots("")) != 4 {
			t.Fatalf("roots are %v", names(s))
		}
		save(t, s, "new", []byte("new"))
		must(s.Pack(context.Background()))
		noErr(t, s.Delete("new"))
		noErr(t, s.Close())
		s = open(t, dir, small)
	}
	if p := must(os.ReadFile(dir + "/format")); !bytes.HasPrefix(p, []byte("mulligan-cas 2 ")) {
		t.Errorf("the format file says %q", p)
	}
}

// On a disk with no room for it, packing fails with advice and leaves everything.
func TestPackOnFullDisk(t *testing.T) {
	t.Parallel()
	mount := tmpfs(t, 8<<20)
	s := open(t, mount+"/store", Options{PackBytes: 1})
	p := noise(t, 100<<10)
	for i := range 30 {
		save(t, s, fmt.Sprint(i), append(p[:len(p)-8:len(p)-8], fmt.Sprintf("%08d", i)...), noise(t, 50<<10))
	}
	hog := must(os.Create(mount + "/hog"))
	var fs unix.Statfs_t
	noErr(t, unix.Statfs(mount, &fs))
	must(hog.Write(make([]byte, int64(fs.Bavail)*fs.Bsize-300<<10)))
	_, err := s.Pack(context.Background())
	wantKind(t, err, errs.Failed)
	if errs.HintOf(err) == "" {
		t.Errorf("no hint: %v", err)
	}
	for i := range 30 {
		noErr(t, s.Check(context.Background(), fmt.Sprint(i), true))
	}
	if left := must(filepath.Glob(mount + "/store/*.tmp")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	noErr(t, hog.Close())
	noErr(t, os.Remove(mount+"/hog"))
	before := onDisk(t, s)
	if saved := must(s.Pack(context.Background())); saved < 1<<20 || before-onDisk(t, s) != saved {
		t.Errorf("packing saved %d of %d bytes", saved, before)
	}
	for i := range 30 {
		noErr(t, s.Check(context.Background(), fmt.Sprint(i), true))
	}
}

// Whatever stands where a group should, reading it ends and stays within it.
func FuzzGroup(f *testing.F) {
	s := open(f, f.TempDir(), small)
	save(f, s, "a", text(0), text(1), text(2))
	must(s.Pack(context.Background()))
	for _, g := range s.segs {
		if g.isPack() {
			for _, sp := range must(s.scanPack(g, true)) {
				r := must(s.groupRecord(g, sp.off))
				f.Add(r.kind, r.codec, r.raw, r.refs, r.payload())
			}
		}
	}
	f.Fuzz(func(t *testing.T, kind, codec byte, raw, refs uint32, payload []byte) {
		if kind != kindBlobs && kind != kindNodes || raw > 1<<20 {
			return
		}
		r := &record{header: header{kind: kind, codec: codec, raw: raw, refs: refs}, buf: append(make([]byte, headerSize), payload...)}
		r.finish()
		for size := range min(len(payload), 300) { // where the table may end
			tableHeader(r, payload[:size])
			g, err := parseGroup(r)
			if err != nil {
				continue
			}
			g.each(func(i int, p []byte, err error) {
				again, err2 := g.bytes(i)
				if (err == nil) != (err2 == nil) || err == nil && !bytes.Equal(p, again) {
					t.Fatalf("member %d reads as %x (%v) and %x (%v)", i, p, err, again, err2)
				}
				if err == nil {
					g.table[i].split(p)
				}
			})
		}
	})
}
