package manifest

import (
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"slices"

	"mulligan/snap"
	"mulligan/snap/cas"
)

// folderName returns the name of the series that has the versions of a folder's node. It uses only the folder's name, because
// the callers do not always know the path.
func folderName(name string) string { return name + "/" }

var zeros = make([]byte, cas.ChunkSize)

// MaxFile is the size of the largest file that is captured, holes included. Memory and the store hold one bit for each piece of
// a file.
const MaxFile = 64 << 40

// MaxPath is the length of the longest path that is captured, in bytes. Each folder of a chain has its own path in memory: without a bound they
// would take as much as the square of its depth.
const MaxPath = 32 << 10

// large is the node of a file that is stored in pieces of cas.ChunkSize.
type large struct {
	size int64
	bits []byte
	refs []snap.Hash
}

// Pieces returns the number of pieces of a file of that size.
func Pieces(size int64) int64 { return (size + cas.ChunkSize - 1) / cas.ChunkSize }

// EncodeLarge encodes the node of a file in pieces. hashes has the pieces that are not all zeros, by their numbers.
func EncodeLarge(size int64, hashes map[int64]snap.Hash) (data []byte, refs []snap.Hash) {
	bits := make([]byte, (Pieces(size)+7)/8)
	for _, i := range slices.Sorted(maps.Keys(hashes)) {
		bits[i/8] |= 1 << (i % 8)
		refs = append(refs, hashes[i])
	}
	data = binary.AppendUvarint([]byte{Version, sortLarge}, uint64(size))
	return append(data, bits...), refs
}

// has reports whether piece i is a reference; otherwise it is all zeros.
func (l *large) has(i int64) bool { return l.bits[i/8]&(1<<(i%8)) != 0 }

func decodeLarge(data []byte, refs []snap.Hash) (*large, error) {
	r := Decoder{Rest: data}
	if r.Byte() != Version || r.Byte() != sortLarge {
		return nil, ErrFormat
	}
	l := &large{size: int64(r.Uvarint()), bits: r.Rest, refs: refs}
	if r.Err != nil {
		return nil, r.Err
	}
	if l.size <= cas.ChunkSize || l.size > MaxFile || int64(len(l.bits)) != (Pieces(l.size)+7)/8 {
		return nil, fmt.Errorf("%w: a large file of impossible size", ErrFormat)
	}
	n := 0
	for i := range int64(len(l.bits)) * 8 {
		if l.has(i) {
			n++
			if i >= Pieces(l.size) {
				return nil, fmt.Errorf("%w: a piece beyond the end", ErrFormat)
			}
		}
	}
	if n != len(refs) {
		return nil, fmt.Errorf("%w: %d pieces and %d references", ErrFormat, n, len(refs))
	}
	return l, nil
}

// Piece is a part of a file's content that is not all zeros. Pieces begin at multiples of cas.ChunkSize.
type Piece struct {
	Off, Size int64
	Hash      snap.Hash
}

// PiecesOf lists the pieces of e's content, in order. It reads none of them.
func PiecesOf(s *cas.Store, e *Entry) (list []Piece, err error) {
	switch {
	case e.Size == 0:
		return nil, nil
	case e.Size <= cas.ChunkSize:
		return []Piece{{0, e.Size, e.Hash}}, nil
	}
	data, refs, err := s.Node(e.Hash)
	if err != nil {
		return nil, err
	}
	l, err := decodeLarge(data, refs)
	if err == nil && l.size != e.Size {
		err = fmt.Errorf("%w: two sizes for one file", ErrFormat)
	}
	if err != nil {
		return nil, err
	}
	for i := range Pieces(l.size) {
		if off := i * cas.ChunkSize; l.has(i) {
			list = append(list, Piece{off, min(cas.ChunkSize, l.size-off), l.refs[len(list)]})
		}
	}
	return list, nil
}

// Read reads and verifies the piece.
func (p Piece) Read(s *cas.Store) ([]byte, error) {
	b, err := s.Get(p.Hash)
	if err == nil && int64(len(b)) != p.Size {
		err = fmt.Errorf("%w: %d bytes stored of a piece of %d", ErrFormat, len(b), p.Size)
	}
	return b, err
}

// EachPiece calls do, in order, with every piece of e's content that is not all zeros. The pieces are verified.
func EachPiece(s *cas.Store, e *Entry, do func(off int64, p []byte) error) error {
	list, err := PiecesOf(s, e)
	for i := 0; err == nil && i < len(list); i++ {
		var b []byte
		if b, err = list[i].Read(s); err == nil {
			err = do(list[i].Off, b)
		}
	}
	return err
}

// OpenContent returns a reader of e's content, in which holes are zeros. The caller must close it.
func OpenContent(s *cas.Store, e Entry) io.ReadCloser {
	r, w := io.Pipe()
	go func() {
		at := int64(0)
		fill := func(to int64) error {
			for at < to {
				n, err := w.Write(zeros[:min(int64(len(zeros)), to-at)])
				at += int64(n)
				if err != nil {
					return err
				}
			}
			return nil
		}
		err := EachPiece(s, &e, func(off int64, p []byte) error {
			if err := fill(off); err != nil {
				return err
			}
			n, err := w.Write(p)
			at += int64(n)
			return err
		})
		if err == nil {
			err = fill(e.Size)
		}
		w.CloseWithError(err) // io.EOF if err is nil
	}()
	return r
}

// StoredSize returns the number of bytes that a restore writes for e. Pieces of zeros become holes.
func StoredSize(s *cas.Store, e *Entry) int64 {
	if e.Size <= cas.ChunkSize {
		return e.Size
	}
	list, err := PiecesOf(s, e)
	if err != nil {
		return e.Size // the check of the contents reports the damage
	}
	return min(e.Size, int64(len(list))*cas.ChunkSize)
}
