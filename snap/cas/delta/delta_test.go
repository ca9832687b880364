package delta

import (
	"bytes"
	"errors"
	"testing"
)

// Apply returns what Append encoded, and refuses damaged deltas without reading outside of the base.
func FuzzDelta(f *testing.F) {
	f.Add([]byte("the first version of a file, long enough"), []byte("the second version of a file, long enough"), []byte{1, 2})
	f.Add(bytes.Repeat([]byte("0123456789abcdef"), 20), bytes.Repeat([]byte("0123456789abcdef"), 30), []byte{0xff, 0xff, 1})
	f.Fuzz(func(t *testing.T, base, p, damaged []byte) {
		var d Differ
		enc := d.Append([]byte{}, base, p, 2*len(p)+64)
		if enc == nil {
			t.Fatal("no delta")
		}
		if back, err := Apply(nil, base, enc, len(p)); err != nil || !bytes.Equal(back, p) {
			t.Fatalf("%q instead of %q: %v", back, p, err)
		}
		if _, err := Apply(nil, base, enc, len(p)+1); !errors.Is(err, ErrMismatch) {
			t.Fatalf("another size: %v", err)
		}
		if back, err := Apply(nil, base, damaged, 100); err == nil && len(back) != 100 {
			t.Fatalf("%d bytes instead of 100", len(back))
		}
	})
}
