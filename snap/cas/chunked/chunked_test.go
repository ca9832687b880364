package chunked

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"

	"mulligan/errs"
	"mulligan/snap/cas"
	"mulligan/testkit"
)

// TestChunks: what is stored in chunks of any sizes, over several lists, is read back; a
// chunk that is gone is an error, and so is a context that ended.
func TestChunks(t *testing.T) {
	s, err := cas.Open(t.TempDir(), cas.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	rng := testkit.Rand(t)
	b := s.Begin()
	defer b.Discard()
	w := NewWriter(b)
	var all bytes.Buffer
	n := 2*perList + rng.IntN(perList)
	var last cas.Hash
	for range n {
		p := make([]byte, 1+rng.IntN(40))
		for i := range p {
			p[i] = byte(rng.Uint32())
		}
		all.Write(p)
		if err := w.Put(p); err != nil {
			t.Fatal(err)
		}
		last = cas.BlobHash(p)
	}
	node, err := w.End([]byte("data"))
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Commit(cas.Root{Name: "content", Hash: node}); err != nil {
		t.Fatal(err)
	}
	data, lists, err := s.Node(node)
	if err != nil || string(data) != "data" || len(lists) != 3 {
		t.Fatalf("the node holds %q and %d lists, %v", data, len(lists), err)
	}
	got, err := io.ReadAll(NewReader(t.Context(), s, lists))
	if err != nil || !bytes.Equal(got, all.Bytes()) {
		t.Fatalf("%d bytes come back of %d, %v", len(got), all.Len(), err)
	}
	hashes, err := NewReader(t.Context(), s, lists).Hashes()
	if err != nil || len(hashes) != n || hashes[n-1] != last {
		t.Fatalf("%d hashes come back of %d, %v", len(hashes), n, err)
	}
	if _, err := io.ReadAll(NewReader(t.Context(), s, append(lists, cas.Hash{1}))); errs.KindOf(err) != errs.NotFound {
		t.Errorf("a list that is not there: %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := NewReader(ended, s, lists).Next(); !errors.Is(err, context.Canceled) {
		t.Errorf("after the end: %v", err)
	}
}
