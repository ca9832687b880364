package cas

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"sync"

	"github.com/klauspost/compress/s2"
	"github.com/zeebo/blake3"

	"mulligan/snap/cas/encoding"
	"mulligan/snap/cas/mark"
)

// The kinds of records.
const (
	kindBlob   = 1
	kindNode   = 2
	kindRoots  = 3 // all roots at the time at which the segment was begun
	kindChange = 4 // roots that were set and deleted by one change
	kindBlobs  = 5 // a group of blobs, only in packs
	kindNodes  = 6 // a group of nodes, only in packs
)

// The codecs of a record's data.
const (
	codecRaw  = 0
	codecS2   = 1
	codecZstd = 2 // only for groups and kindRoots
)

const (
	segHeaderSize = mark.Size
	headerSize    = 64
	hashSize      = len(Hash{})
	maxPayload    = MaxNode + 1<<20
)

// castagnoli is CRC32C (RFC 3720, appendix B.4).
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

type salt = mark.Salt

// header is the header of a record, before its payload.
//
//	 0 salt [8]   8 kind u8   9 codec u8   10 series of a node u16
//	12 stored u32 (payload bytes)   16 raw u32 (data bytes before the codec)
//	20 refs u32 (hashes at the payload's start); of a blob, its series   24 hash [32]
//	56 CRC32C of the payload   60 CRC32C of bytes 0–59, segment number, offset
//
// Integers are little-endian. The last checksum makes a header invalid at any other position.
type header struct {
	kind, codec       byte
	series            uint32 // the object's series, see Batch.Series
	stored, raw, refs uint32
	hash              Hash
	sum               uint32
}

func (h *header) size() int64 { return headerSize + int64(h.stored) }

func (h *header) put(p []byte, sl salt, seq uint32, off int64) {
	le := binary.LittleEndian
	copy(p, sl[:])
	p[8], p[9] = h.kind, h.codec
	le.PutUint16(p[10:], 0)
	le.PutUint32(p[12:], h.stored)
	le.PutUint32(p[16:], h.raw)
	le.PutUint32(p[20:], h.refs)
	switch h.kind {
	case kindBlob:
		le.PutUint32(p[20:], h.series)
	case kindNode:
		le.PutUint16(p[10:], uint16(h.series))
	}
	copy(p[24:56], h.hash[:])
	le.PutUint32(p[56:], h.sum)
	le.PutUint32(p[60:], headerSum(p, seq, off))
}

func headerSum(p []byte, seq uint32, off int64) uint32 {
	var at [12]byte
	binary.LittleEndian.PutUint32(at[:], seq)
	binary.LittleEndian.PutUint64(at[4:], uint64(off))
	return crc32.Update(crc32.Checksum(p[:60], castagnoli), castagnoli, at[:])
}

// parseHeader parses the header of the record at off of the segment seq. ok is false if p is not a valid header.
func parseHeader(p []byte, sl salt, seq uint32, off int64) (h header, ok bool) {
	le := binary.LittleEndian
	if len(p) < headerSize || salt(p[:8]) != sl || le.Uint32(p[60:]) != headerSum(p, seq, off) {
		return h, false
	}
	h = header{
		kind: p[8], codec: p[9],
		stored: le.Uint32(p[12:]), raw: le.Uint32(p[16:]), refs: le.Uint32(p[20:]),
		hash: Hash(p[24:56]), sum: le.Uint32(p[56:]),
	}
	switch h.kind {
	case kindBlob:
		h.series, h.refs = h.refs, 0
	case kindNode:
		h.series = uint32(le.Uint16(p[10:]))
	}
	sane := h.stored <= maxPayload && h.raw <= maxPayload && uint64(h.refs)*uint64(hashSize) <= uint64(h.stored) &&
		h.kind >= kindBlob && h.kind <= kindNodes && h.codec <= codecZstd && (h.refs == 0 || h.kind >= kindNode)
	return h, sane
}

// record is one record. buf has space for the header's bytes, and then the payload.
type record struct {
	header
	buf []byte
}

func (r *record) payload() []byte { return r.buf[headerSize:] }

// newObject returns the record of a blob or node. It compresses the data if that saves a sixteenth or more, but not the refs:
// hashes do not compress.
func newObject(kind byte, series uint32, h Hash, refs []Hash, data []byte) *record {
	fixed := headerSize + len(refs)*hashSize
	r := &record{header: header{kind: kind, series: series, raw: uint32(len(data)), refs: uint32(len(refs)), hash: h}}
	if len(data) >= 64 {
		buf := make([]byte, fixed+s2.MaxEncodedLen(len(data)))
		if enc := s2.Encode(buf[fixed:], data); len(enc) <= len(data)-len(data)/16 {
			r.codec, r.buf = codecS2, buf[:fixed+len(enc)]
		} else {
			r.buf = append(buf[:fixed], data...)
		}
	} else {
		r.buf = append(make([]byte, fixed, fixed+len(data)), data...)
	}
	for i, ref := range refs {
		copy(r.buf[headerSize+i*hashSize:], ref[:])
	}
	r.finish()
	return r
}

// finish sets the header's fields that depend on the payload.
func (r *record) finish() {
	r.stored = uint32(len(r.buf) - headerSize)
	r.sum = crc32.Checksum(r.payload(), castagnoli)
}

// intact reports whether the payload has the right checksum.
func (r *record) intact() bool { return crc32.Checksum(r.payload(), castagnoli) == r.sum }

func (r *record) refList() []Hash {
	if r.refs == 0 {
		return nil
	}
	list := make([]Hash, r.refs)
	for i := range list {
		copy(list[i][:], r.buf[headerSize+i*hashSize:])
	}
	return list
}

// data returns the record's decompressed data.
func (r *record) data() ([]byte, error) {
	p := r.payload()[int(r.refs)*hashSize:]
	switch r.codec {
	case codecRaw:
		return p, nil
	case codecZstd:
		return unzstd(p, int(r.raw))
	}
	if n, err := s2.DecodedLen(p); err != nil || n != int(r.raw) {
		return nil, fmt.Errorf("compressed data of the wrong length")
	}
	return s2.Decode(make([]byte, r.raw), p)
}

// verify returns an object's data. It returns an error if the object does not have its hash.
func (r *record) verify() ([]byte, error) {
	data, err := r.data()
	if err != nil {
		return nil, err
	}
	return data, verify(r.kind, r.hash, r.refList(), data)
}

// verify returns an error if an object does not have the hash h.
func verify(kind byte, h Hash, refs []Hash, data []byte) error {
	have := blobHash(data)
	if kind == kindNode {
		have = nodeHash(data, refs)
	}
	if have != h {
		return errors.New("content has another hash")
	}
	return nil
}

// BlobHash returns the hash of a blob.
func BlobHash(p []byte) Hash { return blobHash(p) }

func blobHash(p []byte) Hash { return blake3.Sum256(p) }

// NodeHash returns the hash of the node that [Batch.Node] stores for p and refs.
func NodeHash(p []byte, refs []Hash) Hash { return nodeHash(p, refs) }

// nodeHash hashes the number of refs, the refs and the data with BLAKE3 in its key derivation mode, so that no blob has the
// hash of a node.
func nodeHash(p []byte, refs []Hash) (h Hash) {
	d := nodeHashers.Get().(*blake3.Hasher)
	defer nodeHashers.Put(d)
	d.Reset()
	var n [8]byte
	binary.LittleEndian.PutUint64(n[:], uint64(len(refs)))
	d.Write(n[:])
	for i := range refs {
		d.Write(refs[i][:])
	}
	d.Write(p)
	d.Sum(h[:0])
	return h
}

// nodeHashers keeps hashers, so that the key is not derived again for every node.
var nodeHashers = sync.Pool{New: func() any { return blake3.NewDeriveKey("mulligan cas 1 node") }}

// change is the content of a kindRoots or kindChange record.
type change struct {
	// durable is an offset in the record's own segment. Everything before it was on the disk when the record was written. So an
	// unreadable place before durable is damaged, and one after it may be the torn end of the log.
	durable int64
	// id is the number of the change in the store. Both copies of a change have the same id.
	id   uint64
	set  []Root
	drop []string
	all  bool // for kindRoots: set has all roots
}

// unsure reports whether the change is the beginning of a segment that was begun while not all roots were known: it has those that were known. They
// do not replace what older segments have, because what could not be read then may be newer. All other changes but kindRoots have an offset.
func (c *change) unsure() bool { return !c.all && c.durable == 0 }

func (c *change) record() *record {
	p := make([]byte, headerSize, headerSize+256)
	p = binary.LittleEndian.AppendUint64(p, uint64(c.durable))
	p = binary.LittleEndian.AppendUint64(p, c.id)
	p = binary.AppendUvarint(p, uint64(len(c.set)))
	for _, r := range c.set {
		p = encoding.AppendString(p, r.Name)
		p = append(p, r.Hash[:]...)
		p = encoding.AppendString(p, string(r.Meta))
	}
	p = binary.AppendUvarint(p, uint64(len(c.drop)))
	for _, name := range c.drop {
		p = encoding.AppendString(p, name)
	}
	r := &record{header: header{kind: kindChange, raw: uint32(len(p) - headerSize)}, buf: p}
	if c.all {
		r.kind = kindRoots
	}
	if c.all && len(p) > 4<<10 { // large enough to be worth compressing
		if z := encoding.Compress(make([]byte, headerSize, headerSize+len(p)/2), p[headerSize:]); len(z) < len(p) {
			r.codec, r.buf = codecZstd, z
		}
	}
	r.finish()
	return r
}

// parseChange parses the data of a record that change.record made.
func parseChange(kind byte, p []byte) (c change, ok bool) {
	if len(p) < 16 {
		return c, false
	}
	c.durable = int64(binary.LittleEndian.Uint64(p) & math.MaxInt64)
	c.id, c.all = binary.LittleEndian.Uint64(p[8:]), kind == kindRoots
	d := encoding.NewDecoder(p[16:])
	for n := d.Count(); n > 0 && !d.Failed(); n-- {
		r := Root{Name: string(d.Bytes(d.Count()))}
		copy(r.Hash[:], d.Bytes(hashSize))
		if meta := d.Bytes(d.Count()); len(meta) > 0 {
			r.Meta = append([]byte(nil), meta...)
		}
		c.set = append(c.set, r)
	}
	for n := d.Count(); n > 0 && !d.Failed(); n-- {
		c.drop = append(c.drop, string(d.Bytes(d.Count())))
	}
	return c, d.Complete()
}
