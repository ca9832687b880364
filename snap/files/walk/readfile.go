package walk

import (
	"errors"
	"io"
	"os"
	"runtime"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/files/manifest"
	"mulligan/snap/files/reflink"
)

// Sink stores objects and returns their hashes. It is a batch or a series of the content store.
type Sink interface {
	Blob([]byte) (snap.Hash, error)
	Node([]byte, []snap.Hash) (snap.Hash, error)
}

// versions returns a sink that stores the objects in the series name, if s is a batch.
func versions(s Sink, name string) Sink {
	if b, ok := s.(*cas.Batch); ok {
		return b.Series(name)
	}
	return s
}

// part returns the sink for the i-th piece of a large file.
func part(s Sink, i int64) Sink {
	if series, ok := s.(cas.Series); ok {
		return series.Part(i)
	}
	return s
}

// buffers holds buffers of a chunk and one byte. The additional byte shows that a file grew while it was read.
var buffers = sync.Pool{New: func() any { b := make([]byte, cas.ChunkSize+1); return &b }}

// errGrew means that a file changed while it was read.
var errGrew = errors.New("the file's size changed while it was read")

// readContent stores size bytes of f, which is the file at path, and returns the content's hash. The error is errGrew if f has another size.
func (s *Scan) readContent(path string, f *os.File, size int64) (snap.Hash, error) {
	sink := versions(s.sink, path)
	if size > cas.ChunkSize {
		r := s.W.Copies.Begin(f, path, size)
		defer r.Close()
		return readLarge(sink, r, s.has, size)
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
	return sink.Blob((*buf)[:n])
}

// readFirst stores the first size bytes of f and returns their hash. f may be longer.
func readFirst(s Sink, f *os.File, size int64) (snap.Hash, error) {
	if size > cas.ChunkSize {
		return readLarge(s, &reflink.Reading{File: f}, nil, size)
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

// readers bounds the pieces of one file that are read and hashed at a time.
var readers = min(runtime.GOMAXPROCS(0), 4)

// pieceList collects the hashes of the pieces of one file, except pieces of zeros. Safe for concurrent use.
type pieceList struct {
	total int64
	next  atomic.Int64 // the number of the next piece to read

	mu     sync.Mutex
	hashes map[int64]snap.Hash
}

// readLarge stores a file in pieces, and reads several at a time. Pieces that are known to be as they were are not read if they are still stored, which has reports.
func readLarge(s Sink, r *reflink.Reading, has func(snap.Hash) bool, size int64) (snap.Hash, error) {
	list := &pieceList{total: manifest.Pieces(size), hashes: map[int64]snap.Hash{}}
	var failed error
	var once sync.Once
	var wg sync.WaitGroup
	for range readers {
		wg.Go(func() {
			if err := list.read(s, r, has, size); err != nil {
				list.skipTo(list.total)
				once.Do(func() { failed = err })
			}
		})
	}
	wg.Wait()
	if failed != nil {
		return snap.Hash{}, failed
	}
	r.Done(list.hashes)
	return s.Node(manifest.EncodeLarge(size, list.hashes))
}

// skipTo advances the next piece to i, unless it is later already.
func (l *pieceList) skipTo(i int64) {
	for {
		now := l.next.Load()
		if now >= i || l.next.CompareAndSwap(now, i) {
			return
		}
	}
}

// read stores the next pieces of a file until none is left.
func (l *pieceList) read(s Sink, r *reflink.Reading, has func(snap.Hash) bool, size int64) error {
	buf := buffers.Get().(*[]byte)
	defer buffers.Put(buf)
	data := int64(0) // the next byte outside of a hole, as far as is known
	for {
		i := l.next.Add(1) - 1
		if i >= l.total {
			return nil
		}
		if h, ok := r.Known(i); ok && (h.IsZero() || has(h)) {
			l.set(i, h)
			continue
		}
		f, off := r.File, i*cas.ChunkSize
		piece := (*buf)[:min(cas.ChunkSize, size-off)]
		if data <= off {
			data = nextData(f, off, size)
		}
		if data >= off+int64(len(piece)) {
			l.skipTo(min(data/cas.ChunkSize, l.total)) // skip the rest of a hole, which may be long
			continue
		}
		n, err := f.ReadAt(piece, off)
		if err == io.EOF {
			err = errGrew
		}
		if n < len(piece) {
			return err
		}
		if cas.AllZero(piece) {
			continue
		}
		h, err := part(s, i).Blob(piece)
		if err != nil {
			return err
		}
		l.set(i, h)
	}
}

// set says that the piece i has this hash, or is all zeros.
func (l *pieceList) set(i int64, h snap.Hash) {
	if h.IsZero() {
		return
	}
	l.mu.Lock()
	l.hashes[i] = h
	l.mu.Unlock()
}

// nextData returns the offset at which data begins at or after off, or size if only a hole follows.
func nextData(f *os.File, off, size int64) int64 {
	n, err := unix.Seek(int(f.Fd()), off, unix.SEEK_DATA)
	if err == unix.ENXIO {
		return size
	}
	if err != nil {
		return off // a filesystem that does not report holes
	}
	return n
}
