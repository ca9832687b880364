package cas

import (
	"bytes"
	"errors"
	"io"
	"slices"
)

// object is one object in a segment, with its position there.
type object struct {
	hash   Hash
	off    uint32
	stored uint32
	kind   byte
	bad    bool   // the payload is damaged
	refs   []Hash // refs of a node, unless it is bad
	series uint32

	grouped bool   // the object is in a group, and stored is its share of the group's size
	slot    uint16 // the object's number in the group
}

func (o *object) size() int64 {
	if o.grouped {
		return int64(o.stored)
	}
	return headerSize + int64(o.stored)
}

// scan is the result of reading a whole segment.
type scan struct {
	objects []object
	changes []change
	end     int64 // offset for the next record
}

// scanSegment reads the segment seq of the given size. In a sealed segment, every unreadable place is damage. In the last
// segment, an unreadable place is damage only if a later change record says that it was durable. The first other unreadable
// place is where a crash cut the log off, and the scan ends there.
//
// scanSegment returns only errors of r.
func scanSegment(r io.ReaderAt, size int64, seq uint32, sl salt, sealed bool) (*scan, error) {
	s := &scanner{r: r, size: size, seq: seq, salt: sl}
	if err := s.run(); err != nil {
		return nil, err
	}
	if sealed {
		s.durable = size
	}
	return s.result(), nil
}

type scanner struct {
	r    io.ReaderAt
	size int64
	seq  uint32
	salt salt

	objects   []object
	changes   []change
	changeOff []int64
	unread    []int64 // offsets of the unreadable places
	durable   int64   // everything before this offset was durable, according to the changes
	buf       []byte  // buffer for the record being read
	end       int64
}

func (s *scanner) run() error {
	off := int64(segHeaderSize)
	for off < s.size {
		next, err := s.record(off)
		if err != nil {
			return err
		}
		if next == 0 { // there is no record here: search the next one
			s.unread = append(s.unread, off)
			if next, err = s.find(off + 1); err != nil {
				return err
			}
		}
		off = next
	}
	s.end = max(off, segHeaderSize)
	return nil
}

// record reads the record at off and returns the offset of its end, or 0 if there is no record.
func (s *scanner) record(off int64) (int64, error) {
	var hb [headerSize]byte
	if off+headerSize > s.size {
		return 0, nil
	}
	if err := readFull(s.r, hb[:], off); err != nil {
		return 0, err
	}
	h, ok := parseHeader(hb[:], s.salt, s.seq, off)
	if !ok || off+h.size() > s.size {
		return 0, nil
	}
	s.buf = slices.Grow(s.buf[:0], int(h.size()))[:h.size()]
	rec := &record{header: h, buf: s.buf}
	if err := readFull(s.r, rec.buf, off); err != nil {
		return 0, err
	}
	s.take(rec, off)
	return off + h.size(), nil
}

// take adds a record with a valid header to the scan.
func (s *scanner) take(rec *record, off int64) {
	good := rec.intact()
	if rec.kind == kindBlob || rec.kind == kindNode {
		o := object{hash: rec.hash, off: uint32(off), stored: rec.stored, kind: rec.kind, series: rec.series, bad: !good}
		if good {
			o.refs = rec.refList()
		} else {
			s.unread = append(s.unread, off)
		}
		s.objects = append(s.objects, o)
		return
	}
	c, ok := change{}, false
	if good && rec.kind <= kindChange {
		if p, err := rec.data(); err == nil {
			c, ok = parseChange(rec.kind, p)
		}
	}
	if !ok {
		s.unread = append(s.unread, off)
		return
	}
	s.changes = append(s.changes, c)
	s.changeOff = append(s.changeOff, off)
	// A record cannot say that anything after itself is durable.
	s.durable = max(s.durable, min(c.durable, off))
}

// find returns the offset of the next valid record header at or after off, which is at most size, or size if there is none.
func (s *scanner) find(off int64) (int64, error) {
	buf := make([]byte, min(256<<10, s.size-off))
	for off < s.size {
		p := buf[:min(int64(len(buf)), s.size-off)]
		if err := readFull(s.r, p, off); err != nil {
			return 0, err
		}
		i := bytes.Index(p, s.salt[:])
		if i < 0 {
			off += max(int64(len(p)-len(s.salt)+1), 1)
			continue
		}
		at := off + int64(i)
		var hb [headerSize]byte
		if at+headerSize <= s.size {
			if err := readFull(s.r, hb[:], at); err != nil {
				return 0, err
			}
			if _, ok := parseHeader(hb[:], s.salt, s.seq, at); ok {
				return at, nil
			}
		}
		off = at + 1
	}
	return s.size, nil
}

// result returns the scan without the records after the first unreadable place that was not durable.
func (s *scanner) result() *scan {
	out := &scan{end: s.end}
	for _, off := range s.unread {
		if off >= s.durable {
			out.end = off
			break
		}
	}
	for _, o := range s.objects {
		if int64(o.off) < out.end {
			out.objects = append(out.objects, o)
		}
	}
	for i, c := range s.changes {
		if s.changeOff[i] < out.end {
			out.changes = append(out.changes, c)
		}
	}
	return out
}

func readFull(r io.ReaderAt, p []byte, off int64) error {
	n, err := r.ReadAt(p, off)
	if n == len(p) {
		return nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
