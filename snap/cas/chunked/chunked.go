// Package chunked keeps content in a content store, in chunks that the caller cuts. It is for content that grows and shrinks in its middle: if the
// caller cuts by the content, similar contents share most chunks. The content's node refers to lists, and each list to 1024
// chunks.
package chunked

import (
	"context"
	"errors"
	"io"

	"mulligan/snap/cas"
)

// perList is the number of chunks in a list.
const perList = 1024

// Writer stores one content.
type Writer struct {
	b      *cas.Batch
	chunks []cas.Hash
	lists  []cas.Hash
}

// NewWriter returns a Writer that stores the content in b.
func NewWriter(b *cas.Batch) *Writer { return &Writer{b: b} }

// Put stores the next chunk.
func (w *Writer) Put(chunk []byte) error {
	h, err := w.b.Blob(chunk)
	if err != nil {
		return err
	}
	return w.Add(h)
}

// Add adds a chunk that the batch has already stored or kept.
func (w *Writer) Add(chunk cas.Hash) error {
	w.chunks = append(w.chunks, chunk)
	if len(w.chunks) == perList {
		return w.list()
	}
	return nil
}

func (w *Writer) list() error {
	if len(w.chunks) == 0 {
		return nil
	}
	h, err := w.b.Node(nil, w.chunks)
	w.lists, w.chunks = append(w.lists, h), w.chunks[:0]
	return err
}

// End stores the content's node, with the caller's data, and returns its hash.
func (w *Writer) End(data []byte) (cas.Hash, error) {
	if err := w.list(); err != nil {
		return cas.Hash{}, err
	}
	return w.b.Node(data, w.lists)
}

// Reader reads content that a Writer stored, and checks each chunk against its hash.
type Reader struct {
	ctx           context.Context
	s             *cas.Store
	lists, chunks []cas.Hash
	rest          []byte
}

// NewReader returns a Reader of the content whose node refers to these lists. Its methods return ctx's error after ctx ends.
func NewReader(ctx context.Context, s *cas.Store, lists []cas.Hash) *Reader {
	return &Reader{ctx: ctx, s: s, lists: lists}
}

// NextHash returns the hash of the next chunk, and io.EOF after the last.
func (r *Reader) NextHash() (h cas.Hash, err error) {
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

// Next returns the next chunk, and io.EOF after the last.
func (r *Reader) Next() ([]byte, error) {
	h, err := r.NextHash()
	if err != nil {
		return nil, err
	}
	return r.s.Get(h)
}

// Hashes returns the hashes of all remaining chunks.
func (r *Reader) Hashes() (all []cas.Hash, err error) {
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

// Read implements io.Reader for the content's bytes.
func (r *Reader) Read(p []byte) (int, error) {
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
