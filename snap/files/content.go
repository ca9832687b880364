package files

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"mulligan/snap"
	"mulligan/snap/cas"
)

// sink takes objects and says their hashes: a batch of the content store, or
// what puts versions of one thing into it.
type sink interface {
	Blob([]byte) (snap.Hash, error)
	Node([]byte, []snap.Hash) (snap.Hash, error)
}

// versions puts objects into s as versions of the thing called name.
func versions(s sink, name string) sink {
	if b, ok := s.(*cas.Batch); ok {
		return b.Kin(name)
	}
	return s
}

// part is s for the i-th piece of a large file.
func part(s sink, i int64) sink {
	if k, ok := s.(cas.Kin); ok {
		return k.Part(i)
	}
	return s
}

// folderName is the name that versions of a folder's node go by; its whole path is not
// always at hand where it is made.
func folderName(name string) string { return name + "/" }

// journalName is that of the journal's links.
const journalName = "/journal"

// buffers holds pieces of one byte more than a chunk: the one shows that a
// file grew while it was read.
var buffers = sync.Pool{New: func() any { b := make([]byte, cas.ChunkSize+1); return &b }}

var zeros = make([]byte, cas.ChunkSize)

// errGrew is the finding that a file has not the size it had.
var errGrew = errors.New("the file's size changed while it was read")

// readContent stores size bytes of f and gives the content's hash.
func readContent(s sink, f *os.File, size int64) (snap.Hash, error) {
	if size > cas.ChunkSize {
		return readLarge(s, f, size)
	}
	buf := buffers.Get().(*[]byte)
	defer buffers.Put(buf)
	n, err := io.ReadFull(f, (*buf)[:size+1])
	if err != io.EOF && err != io.ErrUnexpectedEOF {
		if err == nil {
			err = errGrew
		}
		return snap.Hash{}, err
	}
	if int64(n) != size {
		return snap.Hash{}, errGrew
	}
	if n == 0 {
		return snap.Hash{}, nil
	}
	return s.Blob((*buf)[:n])
}

// readFirst stores the first size bytes of f, however many follow.
func readFirst(s sink, f *os.File, size int64) (snap.Hash, error) {
	if size > cas.ChunkSize {
		return readLarge(s, f, size)
	}
	buf := buffers.Get().(*[]byte)
	defer buffers.Put(buf)
	p := (*buf)[:size]
	if size == 0 {
		return snap.Hash{}, nil
	}
	if n, err := f.ReadAt(p, 0); n < len(p) {
		return snap.Hash{}, err
	}
	return s.Blob(p)
}

// readers is how many pieces of one file are read and hashed at a time.
var readers = min(runtime.GOMAXPROCS(0), 4)

// maxFile is the size of the largest file that is captured, holes and all: memory and the store
// hold a bit for each of its pieces.
const maxFile = 64 << 40

// pieceList collects the pieces of one file that are not all zeros. Safe for concurrent use.
type pieceList struct {
	total int64
	next  atomic.Int64 // the piece that is read next

	mu     sync.Mutex
	hashes map[int64]snap.Hash
}

// readLarge reads a file in pieces, several at a time.
func readLarge(s sink, f *os.File, size int64) (snap.Hash, error) {
	list := &pieceList{total: pieces(size), hashes: map[int64]snap.Hash{}}
	var failed error
	var once sync.Once
	var wg sync.WaitGroup
	for range readers {
		wg.Go(func() {
			if err := list.read(s, f, size); err != nil {
				list.skipTo(list.total)
				once.Do(func() { failed = err })
			}
		})
	}
	wg.Wait()
	if failed != nil {
		return snap.Hash{}, failed
	}
	l := large{size: size, bits: make([]byte, (list.total+7)/8)}
	for _, i := range slices.Sorted(maps.Keys(list.hashes)) {
		l.bits[i/8] |= 1 << (i % 8)
		l.refs = append(l.refs, list.hashes[i])
	}
	return s.Node(l.encode(), l.refs)
}

// skipTo lets the piece i, or a later one, be the next.
func (l *pieceList) skipTo(i int64) {
	for {
		now := l.next.Load()
		if now >= i || l.next.CompareAndSwap(now, i) {
			return
		}
	}
}

// read takes the next pieces of f until there are no more.
func (l *pieceList) read(s sink, f *os.File, size int64) error {
	buf := buffers.Get().(*[]byte)
	defer buffers.Put(buf)
	data := int64(0) // the next byte that is not in a hole, as far as known
	for {
		i := l.next.Add(1) - 1
		if i >= l.total {
			return nil
		}
		off := i * cas.ChunkSize
		piece := (*buf)[:min(cas.ChunkSize, size-off)]
		if data <= off {
			data = nextData(f, off, size)
		}
		if data >= off+int64(len(piece)) {
			l.skipTo(min(data/cas.ChunkSize, l.total)) // the rest of a hole, which may be long
			continue
		}
		n, err := f.ReadAt(piece, off)
		if err == io.EOF {
			err = errGrew
		}
		if n < len(piece) {
			return err
		}
		if bytes.Equal(piece, zeros[:len(piece)]) {
			continue
		}
		h, err := part(s, i).Blob(piece)
		if err != nil {
			return err
		}
		l.mu.Lock()
		l.hashes[i] = h
		l.mu.Unlock()
	}
}

// nextData is where data begins at or after off; size when only a hole follows.
func nextData(f *os.File, off, size int64) int64 {
	n, err := unix.Seek(int(f.Fd()), off, unix.SEEK_DATA)
	if err == unix.ENXIO {
		return size
	}
	if err != nil {
		return off // a filesystem that knows no holes
	}
	return n
}

// large is the node of a file in pieces of cas.ChunkSize.
type large struct {
	size int64
	bits []byte
	refs []snap.Hash
}

func pieces(size int64) int64 { return (size + cas.ChunkSize - 1) / cas.ChunkSize }

func (l *large) encode() []byte {
	b := binary.AppendUvarint([]byte{manifestVersion, sortLarge}, uint64(l.size))
	return append(b, l.bits...)
}

// has reports whether piece i is a reference rather than zeros.
func (l *large) has(i int64) bool { return l.bits[i/8]&(1<<(i%8)) != 0 }

func decodeLarge(data []byte, refs []snap.Hash) (*large, error) {
	r := reader{b: data}
	if r.byte() != manifestVersion || r.byte() != sortLarge {
		return nil, errManifest
	}
	l := &large{size: int64(r.uvarint()), bits: r.b, refs: refs}
	if r.err != nil {
		return nil, r.err
	}
	if l.size <= cas.ChunkSize || l.size > maxFile || int64(len(l.bits)) != (pieces(l.size)+7)/8 {
		return nil, fmt.Errorf("%w: a large file of impossible size", errManifest)
	}
	n := 0
	for i := range int64(len(l.bits)) * 8 {
		if l.has(i) {
			n++
			if i >= pieces(l.size) {
				return nil, fmt.Errorf("%w: a piece beyond the end", errManifest)
			}
		}
	}
	if n != len(refs) {
		return nil, fmt.Errorf("%w: %d pieces and %d references", errManifest, n, len(refs))
	}
	return l, nil
}

// eachPiece calls do with every piece of a content that is not all zeros,
// verified, in order.
func eachPiece(s *cas.Store, e *entry, do func(off int64, p []byte) error) error {
	if e.size == 0 {
		return nil
	}
	if e.size <= cas.ChunkSize {
		p, err := s.Get(e.hash)
		if err == nil && int64(len(p)) != e.size {
			err = fmt.Errorf("%w: %d bytes stored of a file of %d", errManifest, len(p), e.size)
		}
		if err != nil {
			return err
		}
		return do(0, p)
	}
	data, refs, err := s.Node(e.hash)
	if err != nil {
		return err
	}
	l, err := decodeLarge(data, refs)
	if err == nil && l.size != e.size {
		err = fmt.Errorf("%w: two sizes for one file", errManifest)
	}
	if err != nil {
		return err
	}
	return l.each(s, do)
}

func (l *large) each(s *cas.Store, do func(off int64, p []byte) error) error {
	next := 0
	for i := range pieces(l.size) {
		if !l.has(i) {
			continue
		}
		p, err := s.Get(l.refs[next])
		if err != nil {
			return err
		}
		next++
		off := i * cas.ChunkSize
		if int64(len(p)) != min(cas.ChunkSize, l.size-off) {
			return fmt.Errorf("%w: a piece of %d bytes", errManifest, len(p))
		}
		if err := do(off, p); err != nil {
			return err
		}
	}
	return nil
}
