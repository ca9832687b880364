package redis

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"

	"github.com/zeebo/blake3"

	"mulligan/ipc/errs"
	"mulligan/snap"
)

// The types of values in an RDB file, and its marks between them
// (https://github.com/redis/redis/blob/7.0/src/rdb.h).
const (
	typeString, typeList, typeSet, typeZset, typeHash, typeZset2 = 0, 1, 2, 3, 4, 5

	typeIntset             = 11
	typeZsetZiplist        = 12
	typeHashZiplist        = 13
	typeQuicklist          = 14
	typeStream             = 15
	typeHashListpack       = 16
	typeZsetListpack       = 17
	typeQuicklist2         = 18
	typeStream2            = 19
	typeSetListpack        = 20
	typeStream3            = 21
	markSlot               = 0xf4
	markFunction           = 0xf5
	markModule             = 0xf7
	markIdle               = 0xf8
	markFreq               = 0xf9
	markAux                = 0xfa
	markResize             = 0xfb
	markExpireMS           = 0xfc
	markExpire             = 0xfd
	markDB                 = 0xfe
	markEnd                = 0xff
	formatName             = "mulligan redis state 1\n"
	maxString        int64 = 1 << 30 // twice what a server allows by default
)

// item is one key with its value, or one library of functions (db is -1).
type item struct {
	db     int64
	key    []byte
	kind   string // string, list, set, hash, zset, stream
	expire int64  // ms since 1970; 0: never
	sum    [32]byte
}

// scanned is what a snapshot holds, without the values.
type scanned struct {
	version int // of the format
	items   []digest
}

// digest is a key's digest, and when it ends.
type digest struct {
	sum    [32]byte
	expire int64
}

// hash is the digest of the state: that of all keys' digests, sorted. It does
// not depend on where, in which order or in which encoding the server keeps them.
func (s *scanned) hash() snap.Hash { return s.hashAt(0) }

// hashAt is the hash without what has expired at the time (ms); 0 keeps all.
func (s *scanned) hashAt(time int64) snap.Hash {
	slices.SortFunc(s.items, func(a, b digest) int { return bytes.Compare(a.sum[:], b.sum[:]) })
	h := blake3.New()
	_, _ = h.WriteString(formatName) // never fails
	for _, d := range s.items {
		if d.expire == 0 || time == 0 || d.expire > time {
			_, _ = h.Write(d.sum[:])
		}
	}
	return snap.Hash(h.Sum(nil))
}

// expired counts the keys that have expired at the time (ms).
func (s *scanned) expired(time int64) (n int) {
	for _, d := range s.items {
		if d.expire != 0 && d.expire <= time {
			n++
		}
	}
	return n
}

// parser reads an RDB file.
type parser struct {
	r   *bufio.Reader
	err error
}

var errSnapshot = errs.New(errs.Corrupt, "", "the snapshot cannot be read")

func badSnapshot(what string) error {
	return &errs.Error{Kind: errs.Corrupt, Message: what, Err: errSnapshot}
}

// scan reads a whole RDB file, digests each key, and hands it to each.
func scan(r io.Reader, each func(item)) (*scanned, error) {
	p := &parser{r: bufio.NewReaderSize(r, 256<<10)}
	var s scanned
	magic := p.take(9)
	if p.err != nil {
		return nil, p.err
	}
	var err error
	if s.version, err = strconv.Atoi(string(magic[5:])); err != nil || string(magic[:5]) != "REDIS" {
		return nil, badSnapshot("it does not begin like one")
	}
	p.entries(s.version, func(i item) {
		s.items = append(s.items, digest{i.sum, i.expire})
		if each != nil {
			each(i)
		}
	})
	if p.err != nil {
		return nil, p.err
	}
	if _, err := p.r.ReadByte(); !errors.Is(err, io.EOF) {
		return nil, badSnapshot("it goes on behind its end")
	}
	return &s, nil
}

func (p *parser) entries(version int, each func(item)) {
	var db, expire int64
	for p.err == nil {
		switch mark := p.byte(); mark {
		case markAux:
			p.string()
			p.string()
		case markDB:
			db = p.count()
		case markResize:
			p.count()
			p.count()
		case markSlot:
			p.count()
			p.count()
			p.count()
		case markExpireMS:
			expire = int64(binary.LittleEndian.Uint64(p.take(8)))
		case markExpire:
			expire = 1000 * int64(int32(binary.LittleEndian.Uint32(p.take(4))))
		case markIdle:
			p.count()
		case markFreq:
			p.byte()
		case markFunction:
			p.give(each, item{db: -1}, [][]byte{p.string()})
		case markModule:
			p.fail(unsupported("data of a module"))
		case markEnd:
			if version >= 5 {
				p.take(8) // a checksum, which may be off; the store has its own
			}
			return
		default:
			key := p.string()
			value := p.value(mark)
			p.give(each, item{db: db, key: key, kind: kindOf(mark, value), expire: expire}, value)
			expire = 0
		}
	}
}

func unsupported(what string) error {
	return errs.New(errs.Unsupported, "", "the server holds %s, which this build does not know", what).
		WithHint("use a newer mulligan, or take it out of the server")
}

// give digests a key with its value: each part with its length, so that no two values look alike.
func (p *parser) give(each func(item), i item, value [][]byte) {
	if p.err != nil {
		return
	}
	h := blake3.New()
	part := func(b []byte) {
		var n [8]byte
		binary.LittleEndian.PutUint64(n[:], uint64(len(b)))
		_, _ = h.Write(n[:]) // never fails
		_, _ = h.Write(b)
	}
	part(binary.LittleEndian.AppendUint64(nil, uint64(i.db)))
	part(i.key)
	part(binary.LittleEndian.AppendUint64(nil, uint64(i.expire)))
	for _, v := range value {
		part(v)
	}
	h.Sum(i.sum[:0])
	each(i)
}

// value reads a value and gives it in a form that does not depend on how the
// server keeps it: what has no order is sorted.
func (p *parser) value(kind byte) [][]byte {
	switch kind {
	case typeString:
		return [][]byte{[]byte("string"), p.string()}
	case typeList:
		return tagged("list", p.strings(p.count()))
	case typeQuicklist, typeQuicklist2:
		return tagged("list", p.quicklist(kind))
	case typeSet:
		return tagged("set", sorted(p.strings(p.count()), 1))
	case typeIntset:
		return tagged("set", sorted(p.sub(intset), 1))
	case typeSetListpack:
		return tagged("set", sorted(p.sub(listpack), 1))
	case typeHash:
		return tagged("hash", sorted(p.strings(2*p.count()), 2))
	case typeHashListpack:
		return tagged("hash", sorted(p.sub(listpack), 2))
	case typeHashZiplist:
		return tagged("hash", sorted(p.sub(ziplist), 2))
	case typeZset, typeZset2:
		return tagged("zset", sorted(p.zset(kind), 2))
	case typeZsetListpack:
		return tagged("zset", sorted(p.scores(p.sub(listpack)), 2))
	case typeZsetZiplist:
		return tagged("zset", sorted(p.scores(p.sub(ziplist)), 2))
	case typeStream, typeStream2, typeStream3:
		return tagged("stream", p.stream(kind))
	}
	if p.err == nil {
		p.fail(unsupported(fmt.Sprintf("values of type %d", kind)))
	}
	return nil
}

// kindOf is what a value of p.value is.
func kindOf(mark byte, value [][]byte) string {
	if mark == typeString || len(value) == 0 {
		return "string"
	}
	return string(value[len(value)-1]) // see tagged
}

func tagged(name string, parts [][]byte) [][]byte { return append(parts, []byte(name)) }

// sorted sorts groups of n parts by the first of each.
func sorted(parts [][]byte, n int) [][]byte {
	groups := slices.Collect(slices.Chunk(parts, n))
	slices.SortFunc(groups, func(a, b [][]byte) int { return bytes.Compare(a[0], b[0]) })
	return slices.Concat(groups...)
}

func (p *parser) quicklist(kind byte) (all [][]byte) {
	for n := p.count(); n > 0 && p.err == nil; n-- {
		if kind == typeQuicklist {
			all = append(all, p.sub(ziplist)...)
			continue
		}
		if p.count() == 1 { // one plain element
			all = append(all, p.string())
		} else {
			all = append(all, p.sub(listpack)...)
		}
	}
	return all
}

func (p *parser) zset(kind byte) (all [][]byte) {
	for n := p.count(); n > 0 && p.err == nil; n-- {
		member := p.string()
		if kind == typeZset2 {
			all = append(all, member, p.take(8))
			continue
		}
		all = append(all, member, p.score(p.oldDouble()))
	}
	return all
}

// oldDouble is a number as text, with a length of one byte.
func (p *parser) oldDouble() []byte {
	switch n := p.byte(); n {
	case 253:
		return []byte("nan")
	case 254:
		return []byte("inf")
	case 255:
		return []byte("-inf")
	default:
		return p.take(int64(n))
	}
}

// scores makes the second of each pair, a number as text, its eight bytes.
func (p *parser) scores(pairs [][]byte) [][]byte {
	for i := 1; i < len(pairs); i += 2 {
		pairs[i] = p.score(pairs[i])
	}
	return pairs
}

func (p *parser) score(text []byte) []byte {
	f, err := strconv.ParseFloat(string(text), 64)
	if err != nil && p.err == nil {
		p.fail(badSnapshot("a score is not a number"))
	}
	return binary.LittleEndian.AppendUint64(nil, math.Float64bits(f))
}

// stream reads a stream with its groups. When a consumer was last seen is no
// part of the state: looking for nothing changes it. Nor is how many entries a
// group has read: a server that replays its log after a crash no longer knows.
func (p *parser) stream(kind byte) (all [][]byte) {
	number := func() int64 {
		n := p.count()
		all = append(all, binary.LittleEndian.AppendUint64(nil, uint64(n)))
		return n
	}
	raw := func(n int64) { all = append(all, p.take(n)) }
	for n := number(); n > 0 && p.err == nil; n-- {
		all = append(all, p.string(), p.string())
	}
	numbers := 3 // length, and the last id
	if kind >= typeStream2 {
		numbers += 5 // the first id, the greatest that was deleted, how many were added
	}
	for range numbers {
		number()
	}
	for groups := number(); groups > 0 && p.err == nil; groups-- {
		all = append(all, p.string())
		number()
		number()
		if kind >= typeStream2 {
			p.count()
		}
		for n := number(); n > 0 && p.err == nil; n-- {
			raw(16 + 8)
			number()
		}
		for consumers := number(); consumers > 0 && p.err == nil; consumers-- {
			all = append(all, p.string())
			p.take(8)
			if kind >= typeStream3 {
				p.take(8)
			}
			for n := number(); n > 0 && p.err == nil; n-- {
				raw(16)
			}
		}
	}
	return all
}

// fail remembers the first error.
func (p *parser) fail(err error) {
	if p.err == nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		p.err = err
	}
}

func (p *parser) byte() byte { return p.take(1)[0] }

// take reads n bytes. After an error it gives zeros, at least eight.
func (p *parser) take(n int64) []byte {
	if p.err == nil && (n < 0 || n > maxString) {
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
	if p.err == nil { // memory only for what really comes
		var b bytes.Buffer
		_, err := io.CopyN(&b, p.r, n)
		if err == nil {
			return b.Bytes()
		}
		p.fail(err)
	}
	return make([]byte, 24)
}

// length reads a length, or says that the string is packed in the way special.
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

// count reads a number of things, or any other number.
func (p *parser) count() int64 {
	n, special := p.length()
	if special {
		p.fail(badSnapshot("a number makes no sense"))
		return 0
	}
	return n
}

func (p *parser) strings(n int64) (list [][]byte) {
	for ; n > 0 && p.err == nil; n-- {
		list = append(list, p.string())
	}
	return list
}

// string reads a string, in whichever way it is packed.
func (p *parser) string() []byte {
	n, special := p.length()
	if !special {
		return p.take(n)
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
		packed, size := p.count(), p.count()
		b, err := unpack(p.take(packed), size)
		if err != nil {
			p.fail(err)
		}
		return b
	default:
		p.fail(badSnapshot("a string makes no sense"))
	}
	return strconv.AppendInt(nil, v, 10)
}

// sub reads a string and decodes what is packed in it.
func (p *parser) sub(decode func([]byte) ([][]byte, error)) [][]byte {
	b := p.string()
	if p.err != nil {
		return nil
	}
	list, err := decode(b)
	if err != nil {
		p.fail(err)
	}
	return list
}
