package cas

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"mulligan/errs"
)

const opStream = "store a stream"

// streamMagic is the beginning of the data of a stream's node. The stream's size in bytes and its chunk size follow, both u64
// little-endian. The node's refs are the chunks in order, with a zero ref for a chunk of zero bytes only.
const streamMagic = "stream 1"

// PutReader reads r to its end and stores the bytes as blobs of chunk bytes each (ChunkSize if 0, at most MaxObject) under one
// node. It returns the node's hash and the number of bytes. Chunks of zero bytes only are not stored. A node can have two
// million chunks.
func (s *Store) PutReader(b *Batch, r io.Reader, chunk int) (Hash, int64, error) {
	if chunk == 0 {
		chunk = ChunkSize
	}
	if chunk < 0 || chunk > MaxObject {
		return Hash{}, 0, errs.New(errs.Invalid, opStream, "chunks of %d bytes are not possible: 1 to %d", chunk, MaxObject)
	}
	var refs []Hash
	var size int64
	buf := make([]byte, chunk)
	for {
		n, err := io.ReadFull(r, buf)
		if n > 0 {
			h, err := b.chunk(buf[:n])
			if err != nil {
				return Hash{}, size, err
			}
			refs, size = append(refs, h), size+int64(n)
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			break
		}
		if err != nil {
			return Hash{}, size, fmt.Errorf("%s: %w", opStream, err)
		}
	}
	h, err := b.Stream(refs, size, chunk)
	return h, size, err
}

// chunk stores p and returns its hash. If all bytes of p are zero, it stores nothing and returns the zero Hash.
func (b *Batch) chunk(p []byte) (Hash, error) {
	if AllZero(p) {
		return Hash{}, nil
	}
	return b.Blob(p)
}

// Stream stores the node of a stream whose chunks are stored already. refs are the chunks in order, with a zero ref for a chunk
// of zero bytes only. Each chunk but the last has chunk bytes.
func (b *Batch) Stream(refs []Hash, size int64, chunk int) (Hash, error) {
	if chunk <= 0 || size < 0 || int64(len(refs)) != (size+int64(chunk)-1)/int64(chunk) {
		return Hash{}, errs.New(errs.Invalid, opStream, "%d chunks of %d bytes do not make %d bytes", len(refs), chunk, size)
	}
	p := []byte(streamMagic)
	p = binary.LittleEndian.AppendUint64(p, uint64(size))
	p = binary.LittleEndian.AppendUint64(p, uint64(chunk))
	return b.Node(p, refs)
}

// AllZero reports whether all bytes of p are zero.
func AllZero(p []byte) bool {
	for len(p) >= 8 {
		if binary.NativeEndian.Uint64(p) != 0 {
			return false
		}
		p = p[8:]
	}
	for _, c := range p {
		if c != 0 {
			return false
		}
	}
	return true
}

// Reader reads a stored stream. It keeps one chunk in memory. It is not safe for concurrent use.
type Reader struct {
	s     *Store
	Size  int64  // bytes of the stream
	Chunk int    // bytes of each chunk but the last
	Refs  []Hash // the chunks; a zero ref is a chunk of zero bytes only

	off  int64
	have int // number of the chunk in buf, or -1
	buf  []byte
}

// OpenStream opens the stream that PutReader or Batch.Stream stored as h. OpenStream reads the stream's node. The Reader reads
// each chunk when it is needed, and checks it against its hash.
func (s *Store) OpenStream(h Hash) (*Reader, error) {
	const op = "open a stream"
	p, refs, err := s.Node(h)
	if err != nil {
		return nil, errs.Wrap(errs.Failed, op, err)
	}
	if len(p) != len(streamMagic)+16 || string(p[:len(streamMagic)]) != streamMagic {
		return nil, errs.New(errs.Invalid, op, "node %v is not a stream", h)
	}
	size := binary.LittleEndian.Uint64(p[len(streamMagic):])
	chunk := binary.LittleEndian.Uint64(p[len(streamMagic)+8:])
	if chunk == 0 || chunk > MaxObject || size > uint64(len(refs))*chunk || size+chunk <= uint64(len(refs))*chunk {
		return nil, errs.New(errs.Corrupt, op, "stream %v: %d chunks of %d bytes do not make %d bytes", h, len(refs), chunk, size)
	}
	return &Reader{s: s, Size: int64(size), Chunk: int(chunk), Refs: refs, have: -1}, nil
}

// Read implements io.Reader.
func (r *Reader) Read(p []byte) (int, error) {
	n, err := r.readAt(p, r.off)
	r.off += int64(n)
	return n, err
}

// ReadAt reads len(p) bytes at off. It returns an error if it reads fewer; at the stream's end, this is io.EOF.
func (r *Reader) ReadAt(p []byte, off int64) (n int, err error) {
	for n < len(p) && err == nil {
		var m int
		m, err = r.readAt(p[n:], off+int64(n))
		n += m
	}
	return n, err
}

// readAt reads from a single chunk, at most to the chunk's end.
func (r *Reader) readAt(p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, errs.New(errs.Invalid, "read a stream", "negative offset %d", off)
	}
	if off >= r.Size {
		return 0, io.EOF
	}
	i := int(off / int64(r.Chunk))
	want := int(min(int64(r.Chunk), r.Size-int64(i)*int64(r.Chunk)))
	in := int(off % int64(r.Chunk))
	if r.Refs[i].IsZero() {
		n := min(len(p), want-in)
		clear(p[:n])
		return n, nil
	}
	if r.have != i {
		data, err := r.s.Get(r.Refs[i])
		if err != nil {
			return 0, err
		}
		if len(data) != want {
			return 0, errs.New(errs.Corrupt, "read a stream", "chunk %d has %d bytes instead of %d", i, len(data), want)
		}
		r.buf, r.have = data, i
	}
	return copy(p, r.buf[in:]), nil
}
