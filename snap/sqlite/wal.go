package sqlite

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

const (
	walMagic       = 0x377f0682 // the lowest bit tells the byte order of checksums
	walHeaderSize  = 32
	frameHeader    = 24
	walFormat      = 3007000
	readBufferSize = 1 << 20
)

// errLogFormat is a log format that SQLite rejects too.
var errLogFormat = errors.New("the write-ahead log has an unknown format")

// walHeader is the first bytes of a log; each generation of the log has another one (4.1).
type walHeader [walHeaderSize]byte

// wal holds the committed pages of a write-ahead log.
type wal struct {
	layer
	header walHeader
	frames int // up to and including the last commit
}

// position returns the log's generation and its number of frames, for people.
func (w *wal) position() string {
	return fmt.Sprintf("wal %x-%x frame %d", w.header[16:20], w.header[20:24], w.frames)
}

// readWAL finds the committed pages of a log of size bytes, as recovery would
// (4.2, 4.4): frames count as long as their salts are the header's and the
// running checksum is right, up to the last one that ends a transaction. It
// returns nil for a log that holds none.
//
// Frames may be appended while it reads. One that is not whole fails its
// checksum, and the transaction that it belongs to is then not yet committed.
func readWAL(f io.ReaderAt, size int64) (*wal, error) {
	w := &wal{layer: layer{file: f, pages: map[uint32]int64{}}}
	r := bufio.NewReaderSize(io.NewSectionReader(f, 0, size), int(min(size, readBufferSize)))
	if _, err := io.ReadFull(r, w.header[:]); err != nil {
		return nil, ignoreEOF(err)
	}
	sum, ok := w.begin()
	if !ok {
		return nil, nil
	}
	if binary.BigEndian.Uint32(w.header[4:]) != walFormat {
		return nil, errLogFormat
	}
	frame := make([]byte, frameHeader+w.pageSize)
	open := map[uint32]int64{} // pages of a transaction whose commit frame was not read yet
	for n := 1; ; n++ {
		if _, err := io.ReadFull(r, frame); err != nil {
			return w.orNil(), ignoreEOF(err)
		}
		page, pages := binary.BigEndian.Uint32(frame), binary.BigEndian.Uint32(frame[4:])
		sum.add(frame[:8])
		sum.add(frame[frameHeader:])
		if page == 0 || [8]byte(frame[8:16]) != [8]byte(w.header[16:24]) || !sum.is(frame[16:24]) {
			return w.orNil(), nil
		}
		open[page] = walHeaderSize + int64(n-1)*int64(len(frame)) + frameHeader
		if pages == 0 {
			continue
		}
		for page, at := range open {
			w.pages[page] = at
		}
		clear(open)
		w.frames, w.size = n, int64(pages)*w.pageSize
	}
}

// begin reads the header, and reports whether frames can follow.
func (w *wal) begin() (checksum, bool) {
	number := binary.BigEndian.Uint32(w.header[:])
	w.pageSize = int64(binary.BigEndian.Uint32(w.header[8:]))
	if number&^1 != walMagic || !validPageSize(w.pageSize) {
		return checksum{}, false
	}
	sum := checksum{order: binary.LittleEndian}
	if number&1 != 0 {
		sum.order = binary.BigEndian
	}
	sum.add(w.header[:24])
	return sum, sum.is(w.header[24:])
}

func (w *wal) orNil() *wal {
	if w.frames == 0 {
		return nil
	}
	return w
}

// moved reports whether the log was reset since it was read, so that its frames may be overwritten.
func (w *wal) moved() (bool, error) {
	var now walHeader
	if err := readFull(w.file, now[:], 0); err != nil && err != io.ErrUnexpectedEOF {
		return false, err
	}
	return now != w.header, nil
}

// checksum is the running checksum of a log (4.2).
type checksum struct {
	order  binary.ByteOrder
	s0, s1 uint32
}

// add continues the checksum over p, whose length is a multiple of 8.
func (c *checksum) add(p []byte) {
	s0, s1 := c.s0, c.s1
	if c.order == binary.LittleEndian {
		for ; len(p) >= 8; p = p[8:] {
			s0 += binary.LittleEndian.Uint32(p) + s1
			s1 += binary.LittleEndian.Uint32(p[4:]) + s0
		}
	} else {
		for ; len(p) >= 8; p = p[8:] {
			s0 += binary.BigEndian.Uint32(p) + s1
			s1 += binary.BigEndian.Uint32(p[4:]) + s0
		}
	}
	c.s0, c.s1 = s0, s1
}

// is compares with a stored checksum, which is always big-endian.
func (c *checksum) is(p []byte) bool {
	return binary.BigEndian.Uint32(p) == c.s0 && binary.BigEndian.Uint32(p[4:]) == c.s1
}

func ignoreEOF(err error) error {
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return nil
	}
	return err
}
