package sqlite

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
)

// The file format is described at https://sqlite.org/fileformat2.html; the
// numbers in comments here are its sections.

const (
	magic      = "SQLite format 3\x00"
	headerSize = 100
)

// Files lists what belongs to the database at path, and so to this driver and
// not to the one for files: the database, its log, the log's index and its
// journal.
func Files(path string) []string {
	return []string{path, path + "-wal", path + "-shm", path + "-journal"}
}

// IsDatabase reports whether r begins like a SQLite database (1.3). A file of
// length zero, which SQLite takes for an empty database, is not one here.
func IsDatabase(r io.Reader) bool {
	var h header
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return false
	}
	return h.valid()
}

// header is how a database begins.
type header [headerSize]byte

// valid checks what never varies: the magic, the page size, and three
// fractions that are fixed.
func (h *header) valid() bool {
	return string(h[:16]) == magic && validPageSize(h.pageSize()) && bytes.Equal(h[21:24], []byte{64, 32, 32})
}

func (h *header) pageSize() int64 {
	if n := int64(binary.BigEndian.Uint16(h[16:])); n != 1 {
		return n
	}
	return 65536
}

// logged reports whether the database is in WAL mode (1.3.4).
func (h *header) logged() bool { return h[18] == 2 || h[19] == 2 }

// position is the file change counter (1.3.7), readable.
func (h *header) position() string {
	return fmt.Sprintf("change %d", binary.BigEndian.Uint32(h[24:]))
}

func validPageSize(n int64) bool { return n >= 512 && n <= 65536 && n&(n-1) == 0 }

// layer is a set of pages that lie over a database file, and the size in bytes
// that it gives the database.
type layer struct {
	file     io.ReaderAt
	pageSize int64
	size     int64
	pages    map[uint32]int64 // number, from 1 → where in file its content begins
}

// image is a database as one file: the database file with the pages over it
// that a journal puts back, and then those that a log has put aside.
type image struct {
	file   io.ReaderAt // nil where size is 0
	size   int64       // of the file alone
	layers []*layer
}

// length is the size of the whole, in bytes.
func (m *image) length() int64 {
	if n := len(m.layers); n > 0 {
		return m.layers[n-1].size
	}
	return m.size
}

// readAt fills buf from off, a multiple of 64 KiB, up to the end of the image,
// and returns how much that is.
func (m *image) readAt(buf []byte, off int64) (int, error) {
	buf = buf[:max(0, min(int64(len(buf)), m.length()-off))]
	clear(buf)
	if n := min(int64(len(buf)), m.size-off); n > 0 {
		if err := readFull(m.file, buf[:n], off); err != nil {
			return 0, err
		}
	}
	for _, l := range m.layers {
		if err := l.lay(buf, off); err != nil {
			return 0, err
		}
	}
	return len(buf), nil
}

// lay puts the layer's pages over buf, which begins at off.
func (l *layer) lay(buf []byte, off int64) error {
	if end := max(0, l.size-off); end < int64(len(buf)) {
		clear(buf[end:])
	}
	for at := int64(0); at < int64(len(buf)); at += l.pageSize {
		from, ok := l.pages[uint32((off+at)/l.pageSize+1)]
		if !ok {
			continue
		}
		if err := readFull(l.file, buf[at:min(at+l.pageSize, int64(len(buf)))], from); err != nil {
			return err
		}
	}
	return nil
}

// laid gives the chunks that a layer has a part in, and how many of those
// before the end of both the file and the image are not cut short.
func (m *image) laid() (set map[int]bool, whole int) {
	set = map[int]bool{}
	for _, l := range m.layers {
		for page := range l.pages {
			set[int(int64(page-1)*l.pageSize/chunkSize)] = true
		}
	}
	return set, int(min(m.size, m.length()) / chunkSize)
}

// readFull reads all of p at off; a file that ends before is io.ErrUnexpectedEOF.
func readFull(r io.ReaderAt, p []byte, off int64) error {
	n, err := r.ReadAt(p, off)
	if n == len(p) {
		return nil
	}
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return err
}
