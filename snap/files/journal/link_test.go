package journal

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mulligan/snap"
	"mulligan/snap/files/manifest"
)

// FuzzLink: whatever is decoded encodes to the same bytes.
func FuzzLink(f *testing.F) {
	h := snap.Hash{1, 2, 3}
	l := &link{prev: h, start: true, seq: 7, seen: time.Unix(1, 2), records: []Record{
		{Path: "a", After: &manifest.Entry{Mode: unix.S_IFREG | 0o644, Size: 3, Hash: h}},
		{Path: "d/b", Before: h}, {Path: "d", Before: h, After: &manifest.Entry{Mode: unix.S_IFDIR | 0o755}},
	}}
	data, refs := l.encode()
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
