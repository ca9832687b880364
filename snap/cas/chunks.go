package cas

import (
	"context"
	"errors"
	"io"
)

// chunksPerList is how many chunks a list holds.
const chunksPerList = 1024

// ChunkWriter stores content in chunks that its user cuts, in lists of 1024: for content
// that grows and shrinks in its middle, where cuts that follow the content are shared by
// what is like it. The content's node refers to the lists, and those to the chunks.
type ChunkWriter struct {
	b      *Batch
	chunks []Hash
	lists  []Hash
}

// Chunks begins content in b.
func (b *Batch) Chunks() *ChunkWriter { return &ChunkWriter{b: b} }

// Put stores the next chunk.
func (w *ChunkWriter) Put(chunk []byte) error {
	h, err := w.b.Blob(chunk)
	if err != nil {
		return err
	}
	return w.Add(h)
}

// Add adds a chunk that is in the store, and held by the batch.
func (w *ChunkWriter) Add(chunk Hash) error {
	w.chunks = append(w.chunks, chunk)
	if len(w.chunks) == chunksPerList {
		return w.list()
	}
	return nil
}

func (w *ChunkWriter) list() error {
	if len(w.chunks) == 0 {
		return nil
	}
	h, err := w.b.Node(nil, w.chunks)
	w.lists, w.chunks = append(w.lists, h), w.chunks[:0]
	return err
}

// End stores the content's node, with data of the user's.
func (w *ChunkWriter) End(data []byte) (Hash, error) {
	if err := w.list(); err != nil {
		return Hash{}, err
	}
	return w.b.Node(data, w.lists)
}

// ChunkReader reads content that a ChunkWriter stored, each chunk checked against its hash.
type ChunkReader struct {
	ctx           context.Context
	s             *Store
	lists, chunks []Hash
	rest          []byte
}

// Chunks reads the content whose node has these lists, until ctx ends.
func (s *Store) Chunks(ctx context.Context, lists []Hash) *ChunkReader {
	return &ChunkReader{ctx: ctx, s: s, lists: lists}
}

// NextHash gives the hash of the next chunk: io.EOF after the last.
func (r *ChunkReader) NextHash() (h Hash, err error) {
	if err := r.ctx.Err(); err != nil {
		return h, err
	}
	for len(r.chunks) == 0 {
		if len(r.lists) == 0 {
			return h, io.EOF
		}
		if _, r.chunks, err = r.s.Node(r.lists[0]); err != nil {
			return h, err
		}
		r.lists = r.lists[1:]
	}
	h, r.chunks = r.chunks[0], r.chunks[1:]
	return h, nil
}

// Next gives the next chunk: io.EOF after the last.
func (r *ChunkReader) Next() ([]byte, error) {
	h, err := r.NextHash()
	if err != nil {
		return nil, err
	}
	return r.s.Get(h)
}

// Hashes gives the hashes of all chunks that are left.
func (r *ChunkReader) Hashes() (all []Hash, err error) {
	for {
		h, err := r.NextHash()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		all = append(all, h)
	}
}

// Read gives the content's next bytes.
func (r *ChunkReader) Read(p []byte) (int, error) {
	for len(r.rest) == 0 {
		var err error
		if r.rest, err = r.Next(); err != nil {
			return 0, err
		}
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}
