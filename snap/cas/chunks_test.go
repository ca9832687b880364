package cas

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"

	"mulligan/errs"
	"mulligan/testkit"
)

// TestChunks: what is stored in chunks of any sizes, over several lists, is read back; a
// chunk that is gone is an error, and so is a context that ended.
func TestChunks(t *testing.T) {
	s := open(t, t.TempDir(), Options{})
	rng := testkit.Rand(t)
	b := s.Begin()
	defer b.Discard()
	w := b.Chunks()
	var all bytes.Buffer
	n := 2*chunksPerList + rng.IntN(chunksPerList)
	var last Hash
	for range n {
		p := make([]byte, 1+rng.IntN(40))
		for i := range p {
			p[i] = byte(rng.Uint32())
		}
		all.Write(p)
		if err := w.Put(p); err != nil {
			t.Fatal(err)
		}
		last = blobHash(p)
	}
	node, err := w.End([]byte("data"))
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Commit(Root{Name: "content", Hash: node}); err != nil {
		t.Fatal(err)
	}
	data, lists, err := s.Node(node)
	if err != nil || string(data) != "data" || len(lists) != 3 {
		t.Fatalf("the node holds %q and %d lists, %v", data, len(lists), err)
	}
	got, err := io.ReadAll(s.Chunks(t.Context(), lists))
	if err != nil || !bytes.Equal(got, all.Bytes()) {
		t.Fatalf("%d bytes come back of %d, %v", len(got), all.Len(), err)
	}
	hashes, err := s.Chunks(t.Context(), lists).Hashes()
	if err != nil || len(hashes) != n || hashes[n-1] != last {
		t.Fatalf("%d hashes come back of %d, %v", len(hashes), n, err)
	}
	if _, err := io.ReadAll(s.Chunks(t.Context(), append(lists, Hash{1}))); errs.KindOf(err) != errs.NotFound {
		t.Errorf("a list that is not there: %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Chunks(ended, lists).Next(); !errors.Is(err, context.Canceled) {
		t.Errorf("after the end: %v", err)
	}
}
