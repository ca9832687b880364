package redis

import (
	"encoding/binary"
	"strconv"
)

var errPacked = badSnapshot("a packed value makes no sense")

// unpack undoes LZF compression (http://oldhome.schmorp.de/marc/liblzf.html)
// into exactly size bytes.
func unpack(in []byte, size int64) ([]byte, error) {
	if size < 0 || size > maxString || size > 300*int64(len(in)) { // a reference of 3 bytes stands for up to 264
		return nil, errPacked
	}
	out := make([]byte, 0, size)
	for i := 0; i < len(in); {
		c := int(in[i])
		i++
		if c < 32 { // so many literals, and one
			if i+c+1 > len(in) {
				return nil, errPacked
			}
			out = append(out, in[i:i+c+1]...)
			i += c + 1
			continue
		}
		n := c >> 5
		if n == 7 && i < len(in) {
			n += int(in[i])
			i++
		}
		if i >= len(in) {
			return nil, errPacked
		}
		from := len(out) - (c&0x1f)<<8 - int(in[i]) - 1
		i++
		if from < 0 || int64(len(out)+n+2) > size {
			return nil, errPacked
		}
		for range n + 2 { // it may reach into what it makes
			out = append(out, out[from])
			from++
		}
	}
	if int64(len(out)) != size {
		return nil, errPacked
	}
	return out, nil
}

// intset decodes a sorted list of integers.
func intset(b []byte) (list [][]byte, err error) {
	if len(b) < 8 {
		return nil, errPacked
	}
	width, n := int(binary.LittleEndian.Uint32(b)), int(binary.LittleEndian.Uint32(b[4:]))
	b = b[8:]
	if width != 2 && width != 4 && width != 8 || len(b) != width*n {
		return nil, errPacked
	}
	for ; len(b) > 0; b = b[width:] {
		list = append(list, number(b[:width]))
	}
	return list, nil
}

// number is a little-endian signed integer as text.
func number(b []byte) []byte {
	var v int64
	for i, c := range b {
		v |= int64(c) << (8 * i)
	}
	shift := 64 - 8*len(b)
	return strconv.AppendInt(nil, v<<shift>>shift, 10)
}

// listpack decodes a listpack (https://github.com/antirez/listpack/blob/master/listpack.md).
func listpack(b []byte) (list [][]byte, err error) {
	if len(b) < 7 || int(binary.LittleEndian.Uint32(b)) != len(b) {
		return nil, errPacked
	}
	b = b[6:]
	for len(b) > 0 && b[0] != 0xff {
		head, text, value := listpackEntry(b)
		n := head + text
		if head == 0 || n > len(b) {
			return nil, errPacked
		}
		if value == nil {
			value = b[head:n]
		}
		list = append(list, value)
		back := 1 // the length once more, 7 bits to a byte
		for rest := n >> 7; rest > 0; rest >>= 7 {
			back++
		}
		if n+back > len(b) {
			return nil, errPacked
		}
		b = b[n+back:]
	}
	if len(b) != 1 {
		return nil, errPacked
	}
	return list, nil
}

// listpackEntry gives an entry's head and text lengths; value is set for a
// number, which is all head. A head of 0 is an error.
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

// ziplist decodes what came before listpacks
// (https://github.com/redis/redis/blob/6.2/src/ziplist.c).
func ziplist(b []byte) (list [][]byte, err error) {
	if len(b) < 11 || int(binary.LittleEndian.Uint32(b)) != len(b) {
		return nil, errPacked
	}
	b = b[10:]
	for len(b) > 0 && b[0] != 0xff {
		skip := 1 // the length of the entry before
		if b[0] == 0xfe {
			skip = 5
		}
		if len(b) <= skip {
			return nil, errPacked
		}
		b = b[skip:]
		head, text, value := ziplistEntry(b)
		if head == 0 || head+text > len(b) {
			return nil, errPacked
		}
		if value == nil {
			value = b[head : head+text]
		}
		list = append(list, value)
		b = b[head+text:]
	}
	if len(b) != 1 {
		return nil, errPacked
	}
	return list, nil
}

// ziplistEntry is as listpackEntry.
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
