package redis

import (
	"bufio"
	"encoding/binary"
	"io"
	"strconv"
)

var errPacked = badSnapshot("a packed value cannot be decoded")

// lzfReach is the largest distance of a back reference in LZF.
const lzfReach = 1 << 13

// unpack decompresses LZF (http://oldhome.schmorp.de/marc/liblzf.html): it reads packed bytes from in and writes exactly size
// bytes to w as it decodes them. The error is errPacked if the input does not match the sizes.
func unpack(w io.Writer, in *bufio.Reader, packed, size int64) error {
	if size > 300*packed { // a reference of 3 bytes stands for up to 264
		return errPacked
	}
	u := unpacker{in: in, left: packed, w: w, room: size, out: make([]byte, 0, min(size, 4*lzfReach)+300)}
	for u.left > 0 && u.err == nil {
		u.step()
	}
	if u.err == nil && u.room != 0 {
		u.err = errPacked
	}
	if u.err == nil {
		_, u.err = w.Write(u.out[u.written:])
	}
	return u.err
}

// unpacker is the state of a decompression.
type unpacker struct {
	in      *bufio.Reader
	left    int64 // unread bytes of the input
	w       io.Writer
	room    int64  // bytes still to be written
	out     []byte // the newest output
	written int    // bytes of out that are written
	err     error
}

func (u *unpacker) next() int {
	if u.left--; u.left < 0 {
		u.err = errPacked
	}
	if u.err != nil {
		return 0
	}
	c, err := u.in.ReadByte()
	u.err = err
	return int(c)
}

// step decodes one piece: literals or a back reference.
func (u *unpacker) step() {
	c := u.next()
	if c < 32 { // c+1 literals
		for range c + 1 {
			u.put(byte(u.next()))
		}
	} else {
		n := c >> 5
		if n == 7 {
			n += u.next()
		}
		from := len(u.out) - (c&0x1f)<<8 - u.next() - 1
		if from < 0 {
			u.err = errPacked
		}
		for range n + 2 { // the reference may overlap with its own output
			if u.err != nil {
				return
			}
			u.put(u.out[from])
			from++
		}
	}
	if len(u.out) < 4*lzfReach || u.err != nil {
		return
	}
	_, u.err = u.w.Write(u.out[u.written:])
	u.written = copy(u.out, u.out[len(u.out)-lzfReach:])
	u.out = u.out[:u.written]
}

func (u *unpacker) put(b byte) {
	if u.room--; u.room < 0 {
		u.err = errPacked
	}
	if u.err == nil {
		u.out = append(u.out, b)
	}
}

// intset decodes a sorted list of integers.
func intset(b []byte, f func([]byte) error) error {
	if len(b) < 8 {
		return errPacked
	}
	width, n := int(binary.LittleEndian.Uint32(b)), int(binary.LittleEndian.Uint32(b[4:]))
	b = b[8:]
	if width != 2 && width != 4 && width != 8 || int64(len(b)) != int64(width)*int64(n) {
		return errPacked
	}
	for ; len(b) > 0; b = b[width:] {
		if err := f(number(b[:width])); err != nil {
			return err
		}
	}
	return nil
}

// number returns a little-endian signed integer as text.
func number(b []byte) []byte {
	var v int64
	for i, c := range b {
		v |= int64(c) << (8 * i)
	}
	shift := 64 - 8*len(b)
	return strconv.AppendInt(nil, v<<shift>>shift, 10)
}

// listpack decodes a listpack (https://github.com/antirez/listpack/blob/master/listpack.md).
func listpack(b []byte, f func([]byte) error) error {
	if len(b) < 7 || int(binary.LittleEndian.Uint32(b)) != len(b) {
		return errPacked
	}
	b = b[6:]
	for len(b) > 0 && b[0] != 0xff {
		head, text, value := listpackEntry(b)
		n := head + text
		if head == 0 || n > len(b) {
			return errPacked
		}
		if value == nil {
			value = b[head:n]
		}
		if err := f(value); err != nil {
			return err
		}
		back := 1 // the length is repeated at the end, 7 bits per byte
		for rest := n >> 7; rest > 0; rest >>= 7 {
			back++
		}
		if n+back > len(b) {
			return errPacked
		}
		b = b[n+back:]
	}
	if len(b) != 1 {
		return errPacked
	}
	return nil
}

// listpackEntry returns the lengths of the head and the text of the entry at the beginning of b. If the entry is a number,
// value is set, and there is no text. A head of 0 means an error.
func listpackEntry(b []byte) (head, text int, value []byte) {
	var p [9]byte
	copy(p[:], b)
	switch c := b[0]; {
	case c < 0x80:
		return 1, 0, strconv.AppendInt(nil, int64(c), 10)
	case c < 0xc0:
		return 1, int(c & 0x3f), nil
	case c < 0xe0:
		v := int64(c&0x1f)<<8 | int64(p[1])
		return 2, 0, strconv.AppendInt(nil, v<<51>>51, 10)
	case c < 0xf0:
		return 2, int(c&0xf)<<8 | int(p[1]), nil
	case c == 0xf0:
		return 5, int(binary.LittleEndian.Uint32(p[1:])), nil
	case c <= 0xf3:
		width := int(c - 0xf0 + 1)
		return 1 + width, 0, number(p[1 : 1+width])
	case c == 0xf4:
		return 9, 0, number(p[1:])
	}
	return 0, 0, nil
}

// ziplist decodes a ziplist, the format before listpacks (https://github.com/redis/redis/blob/6.2/src/ziplist.c).
func ziplist(b []byte, f func([]byte) error) error {
	if len(b) < 11 || int(binary.LittleEndian.Uint32(b)) != len(b) {
		return errPacked
	}
	b = b[10:]
	for len(b) > 0 && b[0] != 0xff {
		skip := 1 // bytes of the length of the previous entry
		if b[0] == 0xfe {
			skip = 5
		}
		if len(b) <= skip {
			return errPacked
		}
		b = b[skip:]
		head, text, value := ziplistEntry(b)
		if head == 0 || head+text > len(b) {
			return errPacked
		}
		if value == nil {
			value = b[head : head+text]
		}
		if err := f(value); err != nil {
			return err
		}
		b = b[head+text:]
	}
	if len(b) != 1 {
		return errPacked
	}
	return nil
}

// ziplistEntry returns the same for the ziplist entry at the beginning of b as listpackEntry.
func ziplistEntry(b []byte) (head, text int, value []byte) {
	var p [9]byte
	copy(p[:], b)
	switch c := b[0]; {
	case c < 0x40:
		return 1, int(c), nil
	case c < 0x80:
		return 2, int(c&0x3f)<<8 | int(p[1]), nil
	case c < 0xc0:
		return 5, int(binary.BigEndian.Uint32(p[1:])), nil
	case c == 0xc0:
		return 3, 0, number(p[1:3])
	case c == 0xd0:
		return 5, 0, number(p[1:5])
	case c == 0xe0:
		return 9, 0, number(p[1:9])
	case c == 0xf0:
		return 4, 0, number(p[1:4])
	case c == 0xfe:
		return 2, 0, number(p[1:2])
	case c > 0xf0 && c < 0xfe:
		return 1, 0, strconv.AppendInt(nil, int64(c&0xf)-1, 10)
	}
	return 0, 0, nil
}
