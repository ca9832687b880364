package journal

import (
	"encoding/binary"
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mulligan/snap"
	"mulligan/snap/files/manifest"
)

// sampleLink returns a link of all kinds of records, whose hashes are h.
func sampleLink(h snap.Hash) *link {
	return &link{prev: h, start: true, seq: 7, seen: time.Unix(1, 2), records: []Record{
		{Path: "a", After: &manifest.Entry{Mode: unix.S_IFREG | 0o644, Size: 3, Hash: h}},
		{Path: "d/b", Before: h}, {Path: "d", Before: h, After: &manifest.Entry{Mode: unix.S_IFDIR | 0o755}},
		{Path: ".", Before: h, After: &manifest.Entry{Mode: unix.S_IFDIR | 0o755}},
	}}
}

// FuzzLink: whatever is decoded encodes to the same bytes.
func FuzzLink(f *testing.F) {
	data, refs := sampleLink(snap.Hash{1, 2, 3}).encode()
	f.Add(data, len(refs))
	f.Fuzz(func(t *testing.T, data []byte, n int) {
		refs := make([]snap.Hash, max(0, min(n, 64)))
		for i := range refs {
			refs[i] = snap.Hash{byte(i + 1)}
		}
		l, err := decodeLink(data, refs)
		if err != nil {
			return
		}
		again, refs2 := l.encode()
		if string(again) != string(data) || len(refs2) != len(refs) {
			t.Fatalf("%x is encoded as %x", data, again)
		}
	})
}

// TestLinkRefuses: a link is decoded as it was, and bytes that no journal writes are refused.
func TestLinkRefuses(t *testing.T) {
	h := snap.Hash{1, 2, 3}
	was := sampleLink(h)
	data, refs := was.encode()
	l, err := decodeLink(data, refs)
	if err != nil || !reflect.DeepEqual(l, was) {
		t.Fatalf("%+v became %+v (%v)", was, l, err)
	}
	refused := func(what string, data []byte, refs []snap.Hash) {
		t.Helper()
		if l, err := decodeLink(data, refs); err == nil {
			t.Errorf("%s: accepted: %+v", what, l)
		}
	}
	for i := range data {
		refused(fmt.Sprintf("cut after %d bytes", i), data[:i], refs)
	}
	refused("a byte more", append(slices.Clone(data), 0), refs)
	refused("a reference more", data, append(slices.Clone(refs), h))
	refused("no references", data, nil)
	refused("no content", data, refs[:1])
	refused("no link before it", data, append([]snap.Hash{{}}, refs[1:]...))
	for i, what := range []string{"another version", "another sort"} {
		other := slices.Clone(data)
		other[i]++
		refused(what, other, refs)
	}
	raw := func(start, count uint64, record ...byte) []byte {
		b := []byte{manifest.Version, sortLink, 7, 2} // seq and seen
		b = binary.AppendUvarint(binary.AppendUvarint(b, start), count)
		return append(b, record...)
	}
	gone := append([]byte{1, 'a', wasThere}, h[:]...)
	if _, err := decodeLink(raw(0, 1, gone...), refs[:1]); err != nil {
		t.Fatalf("a valid link: %v", err)
	}
	refused("a start that is neither", raw(2, 1, gone...), refs[:1])
	refused("more records than bytes", raw(0, 1<<40, gone...), refs[:1])
	refused("a path that leads up", raw(0, 1, append([]byte{2, '.', '.', wasThere}, h[:]...)...), refs[:1])
	refused("no path", raw(0, 1, append([]byte{0, wasThere}, h[:]...)...), refs[:1])
	refused("what was there has no digest", raw(0, 1, append([]byte{1, 'a', wasThere}, make([]byte, len(h))...)...), refs[:1])
	refused("bits that mean nothing", raw(0, 1, append([]byte{1, 'a', wasThere | 4}, h[:]...)...), refs[:1])
}
