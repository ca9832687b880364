package redis

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	"github.com/zeebo/blake3"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/extsort"
)

// The types of values in an RDB file, and the marks between values (https://github.com/redis/redis/blob/7.0/src/rdb.h).
const (
	typeString, typeList, typeSet, typeZset, typeHash, typeZset2 = 0, 1, 2, 3, 4, 5

	typeIntset       = 11
	typeZsetZiplist  = 12
	typeHashZiplist  = 13
	typeQuicklist    = 14
	typeStream       = 15
	typeHashListpack = 16
	typeZsetListpack = 17
	typeQuicklist2   = 18
	typeStream2      = 19
	typeSetListpack  = 20
	typeStream3      = 21
	markSlot         = 0xf4
	markFunction     = 0xf5
	markModule       = 0xf7
	markIdle         = 0xf8
	markFreq         = 0xf9
	markAux          = 0xfa
	markResize       = 0xfb
	markExpireMS     = 0xfc
	markExpire       = 0xfd
	markDB           = 0xfe
	markEnd          = 0xff
	formatName       = "mulligan redis state 1\n"
)

// item is a key with its value, or a library of functions, whose db is -1 and whose key is its name.
type item struct {
	db     int64
	key    []byte
	kind   string // string, list, set, hash, zset, stream
	expire int64  // ms since 1970; 0: never
	sum    [32]byte
}

// scanned is the result of reading a snapshot, without the values. The caller must close it.
type scanned struct {
	version int   // of the format
	last    int64 // the highest number of a database that it names
	sum     snap.Hash
	items   *extsort.Sorter // digests of the keys, each with its time of expiry
}

// close releases the digests. s may be nil.
func (s *scanned) close() {
	if s != nil {
		s.items.Close()
	}
}

// hash returns the digest of the state, which is the hash of the sorted digests of all keys. It does not depend on the
// databases' encodings or the order of keys.
func (s *scanned) hash() snap.Hash { return s.sum }

// hashAt returns the hash without the keys that have expired at the time (in ms), and their number. If time is 0, no key is
// left out.
func (s *scanned) hashAt(time int64) (sum snap.Hash, expired int, err error) {
	h := blake3.New()
	_, _ = h.WriteString(formatName) // never fails
	err = s.items.Each(func(sum, expire []byte) error {
		if at := int64(binary.BigEndian.Uint64(expire)); at != 0 && time != 0 && at <= time {
			expired++
			return nil
		}
		_, _ = h.Write(sum)
		return nil
	})
	return snap.Hash(h.Sum(nil)), expired, err
}

// parser reads an RDB file.
type parser struct {
	last   int64 // the highest number of a database so far
	r      *bufio.Reader
	err    error
	digest *blake3.Hasher  // of the key that is being read
	group  *extsort.Sorter // members of the key that is being read
}

var errSnapshot = errs.New(errs.Corrupt, "", "the snapshot cannot be read")

func badSnapshot(what string) error {
	return &errs.Error{Kind: errs.Corrupt, Message: what, Err: errSnapshot}
}

// scan reads an RDB file and calls each, unless nil, for each key. It sorts in the folder dir what does not fit in memory.
func scan(dir string, r io.Reader, each func(item) error) (*scanned, error) {
	p := &parser{r: bufio.NewReaderSize(r, 256<<10), digest: blake3.New(), group: extsort.New(dir)}
	defer p.group.Close()
	s := &scanned{items: extsort.New(dir)}
	err := p.file(s, each)
	if err == nil {
		s.sum, _, err = s.hashAt(0)
	}
	if err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// file reads the whole file.
func (p *parser) file(s *scanned, each func(item) error) (err error) {
	magic := p.take(9)
	if p.err != nil {
		return p.err
	}
	if form := string(magic); strings.HasPrefix(form, "VALKEY") {
		return errs.New(errs.Unsupported, "", "the server's snapshots have the form %q, of Valkey 9 or newer", form).
			WithHint("only what Redis 7 and 8 and Valkey 8 write can be captured and restored")
	}
	if s.version, err = strconv.Atoi(string(magic[5:])); err != nil || string(magic[:5]) != "REDIS" {
		return badSnapshot("it does not begin like one")
	}
	p.entries(s.version, func(i item) error {
		var expire [8]byte
		binary.BigEndian.PutUint64(expire[:], uint64(i.expire))
		err := s.items.Add(i.sum[:], expire[:])
		if err == nil && each != nil {
			err = each(i)
		}
		return err
	})
	if p.err != nil {
		return p.err
	}
	s.last = p.last
	if _, err := p.r.ReadByte(); !errors.Is(err, io.EOF) {
		return badSnapshot("it goes on behind its end")
	}
	return nil
}

func (p *parser) entries(version int, each func(item) error) {
	var db, expire int64
	for p.err == nil {
		switch mark := p.byte(); mark {
		case markAux:
			p.string()
			p.string()
		case markDB:
			db = p.count()
			p.last = max(p.last, db)
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
			p.begin(item{db: -1})
			p.give(each, item{db: -1, key: p.library()})
		case markModule:
			p.fail(unsupported("data of a module"))
		case markEnd:
			if version >= 5 {
				p.take(8) // a checksum, which the server may disable; the store has its own
			}
			return
		default:
			i := item{db: db, key: p.string(), expire: expire}
			p.begin(i)
			i.kind = p.value(mark)
			p.give(each, i)
			expire = 0
		}
	}
}

func unsupported(what string) error {
	return errs.New(errs.Unsupported, "", "the server holds %s, which this build does not know", what).
		WithHint("use a newer mulligan, or take it out of the server")
}

// begin starts the digest of a key and its value. Each part is preceded by its length, so that different values have different
// digests.
func (p *parser) begin(i item) {
	p.digest.Reset()
	p.part(binary.LittleEndian.AppendUint64(nil, uint64(i.db)))
	p.part(i.key)
	p.part(binary.LittleEndian.AppendUint64(nil, uint64(i.expire)))
}

// part adds a part to the digest.
func (p *parser) part(b []byte) {
	p.partSize(int64(len(b)))
	_, _ = p.digest.Write(b) // never fails
}

func (p *parser) partSize(n int64) {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], uint64(n))
	_, _ = p.digest.Write(b[:]) // never fails
}

// copyPart adds a string of any length to the digest as it arrives.
func (p *parser) copyPart() {
	t := p.text()
	p.partSize(t.size)
	p.copy(t, p.digest)
}

// library adds a library of functions to the digest, and returns its name.
func (p *parser) library() []byte {
	t := p.text()
	p.partSize(t.size)
	var first prefix
	p.copy(t, io.MultiWriter(p.digest, &first))
	return libraryName(first)
}

// prefix keeps the first 1024 bytes that are written to it.
type prefix []byte

func (h *prefix) Write(b []byte) (int, error) {
	const most = 1024
	*h = append(*h, b[:min(len(b), most-len(*h))]...)
	return len(b), nil
}

// libraryName returns the name in the first line of a library's code: "#!lua name=NAME".
func libraryName(code []byte) []byte {
	line, _, _ := bytes.Cut(code, []byte("\n"))
	for _, word := range bytes.Fields(line) {
		if name, ok := bytes.CutPrefix(word, []byte("name=")); ok {
			return bytes.ReplaceAll(bytes.Trim(name, `"'`), []byte{0}, nil)
		}
	}
	return nil
}

// give ends the digest of a key, and calls each for the key.
func (p *parser) give(each func(item) error, i item) {
	if p.err != nil {
		return
	}
	p.digest.Sum(i.sum[:0])
	if err := each(i); err != nil {
		p.fail(err)
	}
}

// value adds a value to the digest, in a form that does not depend on the server's encoding: elements without an order are
// sorted. It returns the kind of the value.
func (p *parser) value(mark byte) (kind string) {
	switch mark {
	case typeString:
		p.part([]byte("string"))
		p.copyPart()
		return "string"
	case typeList, typeQuicklist, typeQuicklist2:
		kind = "list"
		p.list(mark)
	case typeSet, typeIntset, typeSetListpack:
		kind = "set"
		p.set(mark)
	case typeHash, typeHashListpack, typeHashZiplist:
		kind = "hash"
		p.hash(mark)
	case typeZset, typeZset2, typeZsetListpack, typeZsetZiplist:
		kind = "zset"
		p.zset(mark)
	case typeStream, typeStream2, typeStream3:
		kind = "stream"
		p.stream(mark)
	default:
		p.fail(unsupported(fmt.Sprintf("values of type %d", mark)))
	}
	p.part([]byte(kind))
	return kind
}

func (p *parser) list(mark byte) {
	for n := p.count(); n > 0 && p.err == nil; n-- {
		switch {
		case mark == typeQuicklist:
			p.sub(ziplist, p.element)
		case mark == typeList, p.count() == 1: // one plain element
			p.copyPart()
		default:
			p.sub(listpack, p.element)
		}
	}
}

func (p *parser) element(b []byte) error {
	p.part(b)
	return nil
}

func (p *parser) set(mark byte) {
	add := func(b []byte) error { return p.group.Add(b, nil) }
	switch mark {
	case typeIntset:
		p.sub(intset, add)
	case typeSetListpack:
		p.sub(listpack, add)
	default:
		for n := p.count(); n > 0 && p.err == nil; n-- {
			p.member(p.string(), nil)
		}
	}
	p.sorted(false)
}

// member adds a member and its value to the group, which sorts them.
func (p *parser) member(key, value []byte) {
	if p.err == nil {
		p.fail(p.group.Add(key, value))
	}
}

// sorted adds the group to the digest in the order of its keys, with the values if values is true.
func (p *parser) sorted(values bool) {
	if p.err == nil {
		p.fail(p.group.Each(func(key, value []byte) error {
			p.part(key)
			switch {
			case !values:
			case value[0] == inline:
				p.part(value[1:])
			default:
				r, size := p.group.Kept(value[1:])
				p.partSize(size)
				_, err := io.Copy(p.digest, r)
				return err
			}
			return nil
		}))
	}
	p.group.Reset()
}

// The first byte of a value in a group says whether the value follows or a reference to it.
const (
	inline    = 0
	elsewhere = 1
	maxInline = 64 << 10
)

func (p *parser) hash(mark byte) {
	switch mark {
	case typeHashListpack:
		p.sub(listpack, pairs(func(k, v []byte) error { return p.group.Add(k, append([]byte{inline}, v...)) }))
	case typeHashZiplist:
		p.sub(ziplist, pairs(func(k, v []byte) error { return p.group.Add(k, append([]byte{inline}, v...)) }))
	default:
		for n := p.count(); n > 0 && p.err == nil; n-- {
			p.member(p.string(), p.hashValue())
		}
	}
	p.sorted(true)
}

// hashValue reads the value of a field, and returns it in its form for a group.
func (p *parser) hashValue() []byte {
	t := p.text()
	if t.size <= maxInline {
		b := sliceWriter{inline}
		p.copy(t, &b)
		return b
	}
	ref, err := p.group.Keep(func(w io.Writer) error {
		p.copy(t, w)
		return p.err
	})
	p.fail(err)
	return append([]byte{elsewhere}, ref...)
}

// sliceWriter appends what is written to it.
type sliceWriter []byte

func (s *sliceWriter) Write(b []byte) (int, error) {
	*s = append(*s, b...)
	return len(b), nil
}

// pairs returns a function that calls f with every two elements.
func pairs(f func(key, value []byte) error) func([]byte) error {
	var key []byte
	odd := false
	return func(b []byte) error {
		if odd = !odd; odd {
			key = append(key[:0], b...)
			return nil
		}
		return f(key, b)
	}
}

func (p *parser) zset(mark byte) {
	scored := pairs(func(member, score []byte) error {
		p.member(member, append([]byte{inline}, p.score(score)...))
		return p.err
	})
	switch mark {
	case typeZsetListpack:
		p.sub(listpack, scored)
	case typeZsetZiplist:
		p.sub(ziplist, scored)
	default:
		for n := p.count(); n > 0 && p.err == nil; n-- {
			member, score := p.string(), []byte(nil)
			if mark == typeZset2 {
				score = p.take(8)
			} else {
				score = p.score(p.oldDouble())
			}
			p.member(member, append([]byte{inline}, score...))
		}
	}
	p.sorted(true)
}

// oldDouble reads a number as text, with a length of one byte.
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

// score converts a number as text to eight bytes.
func (p *parser) score(text []byte) []byte {
	f, err := strconv.ParseFloat(string(text), 64)
	if err != nil {
		p.fail(badSnapshot("a score is not a number"))
	}
	return binary.LittleEndian.AppendUint64(nil, math.Float64bits(f))
}

// stream reads a stream with its groups. The state excludes the time when a consumer was last seen, because a read without a
// result changes it. It also excludes how many entries a group has read, because a server that replays its log after a crash
// does not know this number.
func (p *parser) stream(mark byte) {
	number := func() int64 {
		n := p.count()
		p.part(binary.LittleEndian.AppendUint64(nil, uint64(n)))
		return n
	}
	for n := number(); n > 0 && p.err == nil; n-- {
		p.copyPart()
		p.copyPart()
	}
	numbers := 3 // length, and the last id
	if mark >= typeStream2 {
		numbers += 5 // first id (2), greatest deleted id (2), number of added entries (1)
	}
	for range numbers {
		number()
	}
	for groups := number(); groups > 0 && p.err == nil; groups-- {
		p.copyPart()
		number()
		number()
		if mark >= typeStream2 {
			p.count()
		}
		for n := number(); n > 0 && p.err == nil; n-- {
			p.part(p.take(16 + 8))
			number()
		}
		for consumers := number(); consumers > 0 && p.err == nil; consumers-- {
			p.copyPart()
			p.take(8)
			if mark >= typeStream3 {
				p.take(8)
			}
			for n := number(); n > 0 && p.err == nil; n-- {
				p.part(p.take(16))
			}
		}
	}
}
