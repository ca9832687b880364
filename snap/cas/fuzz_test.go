package cas

import (
	"bytes"
	"testing"
)

// segmentBytes makes a segment of two commits with its second copies.
func segmentBytes(t testing.TB) (salt, []byte) {
	s := open(t, t.TempDir(), Options{})
	save(t, s, "a", []byte("one"), bytes.Repeat([]byte("two"), 100))
	save(t, s, "b", []byte("three"))
	noErr(t, s.Delete("a"))
	p := make([]byte, s.active.size.Load())
	must(s.active.f.ReadAt(p, 0))
	return s.salt, p
}

// Whatever a segment holds, reading it ends, stays within it, and finds only
// whole records; what precedes the harm is found.
func FuzzScanSegment(f *testing.F) {
	sl, whole := segmentBytes(f)
	good := must(scanSegment(bytes.NewReader(whole), int64(len(whole)), 1, sl, false))
	f.Add(0, []byte{}, len(whole), false)
	f.Add(100, []byte("harm"), len(whole), true)
	f.Add(300, whole[32:200], len(whole)-3, false)
	f.Add(0, []byte{}, 7, true)
	f.Fuzz(func(t *testing.T, at int, harm []byte, size int, sealed bool) {
		if at < 0 || size < 0 || size > len(whole)+1000 || at > size {
			t.Skip()
		}
		p := append(bytes.Clone(whole), make([]byte, 1000)...)[:size]
		changed := copy(p[at:], harm)
		sc, err := scanSegment(bytes.NewReader(p), int64(len(p)), 1, sl, sealed)
		if err != nil {
			t.Fatal(err)
		}
		if sc.end < segHeaderSize || sc.end > max(int64(len(p)), segHeaderSize) {
			t.Fatalf("the scan ends at %d of %d", sc.end, len(p))
		}
		for _, o := range sc.objects {
			if int64(o.off)+o.size() > int64(len(p)) {
				t.Fatalf("an object at %d with %d bytes lies outside", o.off, o.size())
			}
		}
		for _, o := range good.objects {
			end := int64(o.off) + o.size()
			if end > int64(size) || (changed > 0 && end > int64(at)) {
				continue
			}
			found := false
			for _, have := range sc.objects {
				found = found || have.hash == o.hash && have.off == o.off && !have.bad
			}
			if !found {
				t.Fatalf("the object at %d, before the harm at %d, is not found", o.off, at)
			}
		}
	})
}

func FuzzDecodeIndex(f *testing.F) {
	sl, whole := segmentBytes(f)
	sc := must(scanSegment(bytes.NewReader(whole), int64(len(whole)), 1, sl, true))
	index := encodeIndex(sl, 1, int64(len(whole)), sc.objects)
	back, err := decodeIndex(index, sl, 1, int64(len(whole)))
	if err != nil || len(back) != len(sc.objects) {
		f.Fatal("an index does not read back", err)
	}
	f.Add(index)
	f.Add(index[:50])
	f.Fuzz(func(t *testing.T, p []byte) {
		objects, err := decodeIndex(p, sl, 1, int64(len(whole)))
		if err == nil && !bytes.Equal(encodeIndex(sl, 1, int64(len(whole)), objects), p) {
			t.Fatal("a file that is not what encodeIndex writes was taken")
		}
	})
}

func FuzzParseChange(f *testing.F) {
	c := change{durable: 7, id: 3, set: []Root{{Name: "n", Hash: Hash{1}, Meta: []byte("m")}}, drop: []string{"x"}}
	f.Add(c.record().payload())
	f.Fuzz(func(t *testing.T, p []byte) {
		c, ok := parseChange(kindChange, p)
		if !ok {
			return
		}
		again, ok := parseChange(kindChange, c.record().payload())
		if !ok || len(again.set) != len(c.set) || len(again.drop) != len(c.drop) || again.id != c.id {
			t.Fatalf("%+v reads back as %+v", c, again)
		}
	})
}
