package sqlite

import (
	"encoding/binary"
	"errors"
	"io"
)

const (
	journalMagic      = "\xd9\xd5\x05\xf9\x20\xa1\x63\xd7"
	journalHeaderSize = 28
	defaultSector     = 512
	pendingByte       = 0x40000000 // the page that holds it is never used (1.5)
)

// errSuperJournal is an interrupted transaction over several databases: a file that may be anywhere
// decides whether it was committed.
var errSuperJournal = errors.New("it holds an interrupted transaction over several databases")

// segment is one part of a journal: a header and the records after it.
type segment struct {
	records  uint32 // unknownCount: up to the end of the file
	nonce    uint32
	pages    uint32 // size of the database before the transaction, in pages
	sector   int64
	pageSize int64
}

const unknownCount = 0xffffffff

// readJournal returns the pages that a hot rollback journal of size bytes restores (3). It plays the
// journal as SQLite does: records count up to the first wrong checksum, and only the first record of
// a page. It returns nil for a journal without valid records.
func readJournal(f io.ReaderAt, size, pageSize int64) (*layer, error) {
	super, err := namesSuper(f, size)
	switch {
	case err != nil:
		return nil, err
	case super:
		return nil, errSuperJournal
	}
	var l *layer
	sector := int64(defaultSector)
	for at := int64(0); ; {
		at = (at + sector - 1) / sector * sector
		s, err := readSegment(f, at, size, sector, pageSize)
		if s == nil || err != nil {
			return l, err
		}
		sector = s.sector
		if l == nil {
			pageSize = s.pageSize
			l = &layer{file: f, pageSize: pageSize, size: int64(s.pages) * pageSize, pages: map[uint32]int64{}}
		}
		var more bool
		at, more, err = l.play(at+sector, size, s)
		if !more || err != nil {
			return l, err
		}
	}
}

// readSegment reads the header at offset at; it returns nil at the end of the journal.
func readSegment(f io.ReaderAt, at, size, sector, pageSize int64) (*segment, error) {
	if at+sector > size {
		return nil, nil
	}
	var p [journalHeaderSize]byte
	if err := readFull(f, p[:], at); err != nil {
		return nil, ignoreEOF(err)
	}
	if string(p[:8]) != journalMagic {
		return nil, nil
	}
	s := &segment{
		records: binary.BigEndian.Uint32(p[8:]),
		nonce:   binary.BigEndian.Uint32(p[12:]),
		pages:   binary.BigEndian.Uint32(p[16:]),
		sector:  sector, pageSize: pageSize,
	}
	if at > 0 {
		return s, nil // only the first header has the sizes
	}
	s.sector = int64(binary.BigEndian.Uint32(p[20:]))
	if n := int64(binary.BigEndian.Uint32(p[24:])); n != 0 {
		s.pageSize = n
	}
	if s.sector < 32 || s.sector > 65536 || s.sector&(s.sector-1) != 0 || !validPageSize(s.pageSize) {
		return nil, nil
	}
	return s, nil
}

// play adds the records of one segment, which begin at offset at. It returns the offset of their end,
// and whether another segment may follow.
func (l *layer) play(at, size int64, s *segment) (int64, bool, error) {
	record := make([]byte, 4+l.pageSize+4)
	count := int64(s.records)
	if s.records == unknownCount {
		count = (size - s.sector) / int64(len(record))
	}
	for ; count > 0; count-- {
		if err := readFull(l.file, record, at); err != nil {
			return at, false, ignoreEOF(err)
		}
		page, content := binary.BigEndian.Uint32(record), record[4:4+l.pageSize]
		if page == 0 || int64(page) == pendingByte/l.pageSize+1 {
			return at, false, nil
		}
		_, seen := l.pages[page]
		if int64(page)*l.pageSize <= l.size && !seen {
			if binary.BigEndian.Uint32(record[4+l.pageSize:]) != s.sum(content) {
				return at, false, nil
			}
			l.pages[page] = at + 4
		}
		at += int64(len(record))
	}
	return at, true, nil
}

// sum returns a record's checksum: the nonce plus every 200th byte from the end.
func (s *segment) sum(page []byte) uint32 {
	sum := s.nonce
	for i := len(page) - 200; i > 0; i -= 200 {
		sum += uint32(page[i])
	}
	return sum
}

// namesSuper reports whether a journal ends with the name of a super-journal.
func namesSuper(f io.ReaderAt, size int64) (bool, error) {
	if size < 16 {
		return false, nil
	}
	var p [16]byte
	if err := readFull(f, p[:], size-16); err != nil {
		return false, ignoreEOF(err)
	}
	return string(p[8:]) == journalMagic && binary.BigEndian.Uint32(p[:4]) != 0, nil
}
