package redis

import (
	"encoding/binary"
	"errors"
	"io"
	"strconv"
)

// fail records the first error.
func (p *parser) fail(err error) {
	if p.err == nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		p.err = err
	}
}

func (p *parser) byte() byte { return p.take(1)[0] }

// take reads n bytes. After an error it returns at least eight zeros.
func (p *parser) take(n int64) []byte {
	if n < 0 || n > maxPacked {
		p.fail(badSnapshot("a length makes no sense"))
	}
	if p.err == nil && n <= 64<<10 {
		b := make([]byte, n)
		_, err := io.ReadFull(p.r, b)
		if err == nil {
			return b
		}
		p.fail(err)
	}
	if p.err == nil { // allocates memory only as data arrives
		b := make(sliceWriter, 0, 64<<10)
		_, err := io.CopyN(&b, p.r, n)
		if err == nil {
			return b
		}
		p.fail(err)
	}
	return make([]byte, 24)
}

// length reads a length. If special is true, the string has a special encoding, whose number is n.
func (p *parser) length() (n int64, special bool) {
	switch b := p.byte(); {
	case p.err != nil:
		return 0, false
	case b>>6 == 0:
		return int64(b & 0x3f), false
	case b>>6 == 1:
		return int64(b&0x3f)<<8 | int64(p.byte()), false
	case b>>6 == 3:
		return int64(b & 0x3f), true
	case b == 0x80:
		return int64(binary.BigEndian.Uint32(p.take(4))), false
	case b == 0x81:
		return int64(binary.BigEndian.Uint64(p.take(8))), false
	}
	p.fail(badSnapshot("a length makes no sense"))
	return 0, false
}

// count reads a number, for example of elements.
func (p *parser) count() int64 {
	n, special := p.length()
	if special {
		p.fail(badSnapshot("a number makes no sense"))
		return 0
	}
	return n
}

// text is a string whose head was read. Its content is short, or follows in the file, plain or packed.
type text struct {
	size   int64
	packed int64 // length of the LZF data that follows; 0: the content is not packed
	short  []byte
}

// text reads the head of a string in any encoding.
func (p *parser) text() text {
	n, special := p.length()
	if !special {
		if n < 0 || n > maxString {
			p.fail(errTooLong)
			return text{}
		}
		return text{size: n}
	}
	var v int64
	switch n {
	case 0:
		v = int64(int8(p.byte()))
	case 1:
		v = int64(int16(binary.LittleEndian.Uint16(p.take(2))))
	case 2:
		v = int64(int32(binary.LittleEndian.Uint32(p.take(4))))
	case 3:
		t := text{packed: p.count(), size: p.count()}
		if t.packed <= 0 || t.size < 0 || t.packed > maxString || t.size > maxString {
			p.fail(errTooLong)
			return text{}
		}
		return t
	default:
		p.fail(badSnapshot("a string makes no sense"))
	}
	short := strconv.AppendInt(nil, v, 10)
	return text{size: int64(len(short)), short: short}
}

// copy writes a string to w as it arrives.
func (p *parser) copy(t text, w io.Writer) {
	if p.err != nil {
		return
	}
	var err error
	switch {
	case t.short != nil:
		_, err = w.Write(t.short)
	case t.packed > 0:
		err = unpack(w, p.r, t.packed, t.size)
	default:
		_, err = io.CopyN(w, p.r, t.size)
	}
	p.fail(err)
}

// string reads a string of at most maxName bytes.
func (p *parser) string() []byte { return p.whole(maxName, errLongName) }

func (p *parser) whole(most int64, tooLong error) []byte {
	t := p.text()
	if t.size > most {
		p.fail(tooLong)
	}
	b := make(sliceWriter, 0, min(t.size, 64<<10))
	p.copy(t, &b)
	return b
}

// sub reads a packed value and calls f for each element.
func (p *parser) sub(decode func([]byte, func([]byte) error) error, f func([]byte) error) {
	b := p.whole(maxPacked, errLongPacked)
	if p.err == nil {
		p.fail(decode(b, f))
	}
}
