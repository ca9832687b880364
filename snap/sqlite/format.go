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

// Files returns the files of the database at path: the database, its log, the log's index and
// its journal. They belong to this driver and not to the files driver.
func Files(path string) []string {
	return []string{path, path + "-wal", path + "-shm", path + "-journal"}
}

// IsDatabase reports whether r begins like a SQLite database (1.3). It returns false for an empty
// file, although SQLite accepts that as an empty database.
func IsDatabase(r io.Reader) bool {
	var h header
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return false
	}
	return h.valid()
}

// header is the first bytes of a database.
type header [headerSize]byte

// valid checks the parts that are the same in all databases: the magic, the page size, and three
// fixed fractions.
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

// position returns the file change counter (1.3.7), for people.
func (h *header) position() string {
	return fmt.Sprintf("change %d", binary.BigEndian.Uint32(h[24:]))
}

func validPageSize(n int64) bool { return n >= 512 && n <= 65536 && n&(n-1) == 0 }

// layer is a set of pages that replace pages of a database file, and the size in bytes of the
// resulting database.
type layer struct {
	file     io.ReaderAt
	pageSize int64
	size     int64
	pages    map[uint32]int64 // page number, from 1 → offset of its content in file
}

// image is a database as one file: the database file, over it the pages that a journal restores, and
// over these the pages of a log.
type image struct {
	file   io.ReaderAt // nil where size is 0
	size   int64       // of the file alone
	layers []*layer
}

// length returns the size of the image in bytes.
func (m *image) length() int64 {
	if n := len(m.layers); n > 0 {
		return m.layers[n-1].size
	}
	return m.size
}

// readAt fills buf from off, a multiple of 64 KiB, up to the end of the image, and returns the number
// of bytes.
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

// lay copies those pages of the layer into buf that are in its range. buf begins at the offset off of the database image.
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

// laid returns the chunks that contain pages of a layer, and the number of full chunks within both
// the file and the image.
func (m *image) laid() (set map[int]bool, whole int) {
	set = map[int]bool{}
	for _, l := range m.layers {
		for page := range l.pages {
			set[int(int64(page-1)*l.pageSize/chunkSize)] = true
		}
	}
	return set, int(min(m.size, m.length()) / chunkSize)
}

// readFull reads all of p at off. It returns io.ErrUnexpectedEOF if the file ends before.
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
