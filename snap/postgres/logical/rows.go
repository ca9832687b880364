package logical

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"io"
	"math/bits"
	"sync"

	"github.com/zeebo/blake3"

	"mulligan/snap/cas"
	"mulligan/snap/database"
)

// Rows are stored in COPY's format. The hash of a row decides whether a piece ends after it, so a piece stays the same when
// rows elsewhere in the table change.
const (
	minPiece  = 16 << 10
	meanPiece = 64 << 10
	maxPiece  = 1 << 20
)

// rowSum is a digest of rows that does not depend on their order: their number, and the sum of
// their hashes as 256-bit numbers.
type rowSum struct {
	Rows int64
	sum  [4]uint64
}

func (s *rowSum) add(row []byte) (hash uint64) { return s.addSum(blake3.Sum256(row)) }

// addSum adds a row, given its hash.
func (s *rowSum) addSum(h [32]byte) (hash uint64) {
	var carry uint64
	for i := range s.sum {
		s.sum[i], carry = bits.Add64(s.sum[i], binary.LittleEndian.Uint64(h[8*i:]), carry)
	}
	s.Rows++
	return binary.LittleEndian.Uint64(h[:8])
}

func (s *rowSum) String() string {
	var p []byte
	for _, n := range s.sum {
		p = binary.LittleEndian.AppendUint64(p, n)
	}
	return hex.EncodeToString(p)
}

// rowWriter consumes the output of COPY TO: it sums the rows and, if it has a batch, stores them. It keeps at most one piece in
// memory, even of a long row.
type rowWriter struct {
	rowSum
	size  int64
	batch *cas.Batch     // nil: the rows are summed, not stored
	begun int64          // bytes so far of an incomplete row
	hash  *blake3.Hasher // of those bytes
	piece []byte
	refs  []cas.Hash
	sizes []int
}

// Write consumes the next bytes, which may end within a row.
func (w *rowWriter) Write(p []byte) (int, error) {
	all := len(p)
	for len(p) > 0 {
		n := 1 + bytes.IndexByte(p, '\n')
		if n == 0 {
			return all, w.part(p)
		}
		if err := w.row(p[:n]); err != nil {
			return 0, err
		}
		p = p[n:]
	}
	return all, nil
}

// part consumes a part of a row without its end.
func (w *rowWriter) part(p []byte) error {
	if w.hash == nil {
		w.hash = blake3.New()
	}
	if w.begun == 0 {
		w.hash.Reset()
	}
	w.begun += int64(len(p))
	_, _ = w.hash.Write(p) // never fails
	return w.keep(p)
}

// row consumes a whole row, or the last part of a row.
func (w *rowWriter) row(row []byte) error {
	size := w.begun + int64(len(row))
	var hash uint64
	if w.begun == 0 {
		hash = w.add(row)
	} else {
		_, _ = w.hash.Write(row) // never fails
		hash = w.addSum([32]byte(w.hash.Sum(nil)))
		w.begun = 0
	}
	if err := w.keep(row); err != nil || w.batch == nil {
		return err
	}
	// On average one of this many bytes ends a piece, however long the rows are.
	if rate := ^uint64(0) / (meanPiece - minPiece); len(w.piece) >= minPiece && hash/rate < uint64(size) {
		return w.cut()
	}
	return nil
}

// keep appends bytes of a row to the piece, if rows are stored.
func (w *rowWriter) keep(p []byte) error {
	w.size += int64(len(p))
	for w.batch != nil && len(p) > 0 {
		n := min(len(p), maxPiece-len(w.piece))
		w.piece, p = append(w.piece, p[:n]...), p[n:]
		if len(w.piece) == maxPiece {
			if err := w.cut(); err != nil {
				return err
			}
		}
	}
	return nil
}

func (w *rowWriter) cut() error {
	if len(w.piece) == 0 {
		return nil
	}
	h, err := w.batch.Blob(w.piece)
	if err != nil {
		return err
	}
	w.refs, w.sizes, w.piece = append(w.refs, h), append(w.sizes, len(w.piece)), w.piece[:0]
	return nil
}

// end ends the last piece and returns the node with all rows.
func (w *rowWriter) end() (cas.Hash, error) {
	if w.begun > 0 {
		return cas.Hash{}, io.ErrUnexpectedEOF
	}
	if w.batch == nil {
		return cas.Hash{}, nil
	}
	if err := w.cut(); err != nil {
		return cas.Hash{}, err
	}
	data, err := json.Marshal(w.sizes)
	if err != nil {
		return cas.Hash{}, err
	}
	return w.batch.Node(data, w.refs)
}

// rowReader reads stored rows and checks each piece against its hash.
type rowReader struct {
	store *cas.Store
	mu    sync.Mutex // guards the fields below: a cancelled COPY FROM may still read
	refs  []cas.Hash
	piece []byte
	err   error
}

func openRows(s *cas.Store, node cas.Hash) (*rowReader, error) {
	_, refs, err := s.Node(node)
	return &rowReader{store: s, refs: refs}, database.Damaged(err)
}

func (r *rowReader) Read(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.piece) == 0 && r.err == nil {
		if len(r.refs) == 0 {
			return 0, io.EOF
		}
		r.piece, r.err = r.store.Get(r.refs[0])
		r.refs, r.err = r.refs[1:], database.Damaged(r.err)
	}
	if r.err != nil {
		return 0, r.err
	}
	n := copy(p, r.piece)
	r.piece = r.piece[n:]
	return n, nil
}

// stop ends all reading, including a concurrent Read, and returns the error of an earlier Read, which COPY FROM reports only to
// the server.
func (r *rowReader) stop() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	err := r.err
	r.refs, r.piece, r.err = nil, nil, io.ErrClosedPipe
	return err
}
