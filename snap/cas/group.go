package cas

import (
	"encoding/binary"
	"errors"
	"hash/crc32"

	"mulligan/snap/cas/delta"
	"mulligan/snap/cas/encoding"
)

// A group is a record of a pack with many objects of one kind, which are compressed together. A version of a thing can be a
// delta to an earlier version in the same group, never to an object of another group. The payload of the record is a table
//
//	objects × hash [32], then for each object five uvarints: series, refs, raw, back, size
//
// and the stream, which has size bytes for each object. The stream is stored raw or as one zstd frame. raw is the length of an
// object's own bytes: its refs, then its data. If back is 0, the stream has these bytes. Otherwise the stream has a delta to
// the object back places before.
//
// In the record's header, refs is the number of objects, and raw the length of the stream in bytes. The field hash has the
// length of the table in bytes, and the table's CRC32C.
type group struct {
	kind   byte // kind of the objects
	table  []member
	at     []int // offset of each object in the stream
	stream []byte
}

// member is an object's row of the table.
type member struct {
	hash                          Hash
	series, refs, raw, back, size uint32
}

const (
	memberSize = hashSize + 5 // the least size of a member in the table, in bytes
	maxMembers = 4096
	// maxStream bounds the stream, in bytes, so that the record is not over maxPayload with the largest table.
	maxStream = maxPayload - maxMembers*(hashSize+5*binary.MaxVarintLen32)
	// maxDepth and maxApply bound the cost of reading one object: the number of deltas to apply, and the bytes to copy.
	maxDepth = 50
	maxApply = 16 << 20
)

var errGroup = errors.New("not a group of objects")

// groupKind returns the kind of a group with objects of this kind, and groupedKind is its inverse.
func groupKind(kind byte) byte   { return kind - kindBlob + kindBlobs }
func groupedKind(kind byte) byte { return kind - kindBlobs + kindBlob }

// record returns the record of the group.
func (g *group) record() *record {
	p := make([]byte, headerSize, headerSize+len(g.table)*(memberSize+4)+len(g.stream)/2)
	for i := range g.table {
		p = append(p, g.table[i].hash[:]...)
	}
	for i := range g.table {
		m := &g.table[i]
		for _, v := range [...]uint32{m.series, m.refs, m.raw, m.back, m.size} {
			p = binary.AppendUvarint(p, uint64(v))
		}
	}
	r := &record{header: header{kind: groupKind(g.kind), raw: uint32(len(g.stream)), refs: uint32(len(g.table))}}
	tableHeader(r, p[headerSize:])
	whole := len(p)
	r.codec, p = codecZstd, encoding.Compress(p, g.stream)
	if len(p)-whole >= len(g.stream) {
		r.codec, p = codecRaw, append(p[:whole], g.stream...)
	}
	r.buf = p
	r.finish()
	return r
}

func tableHeader(r *record, table []byte) {
	binary.LittleEndian.PutUint32(r.hash[:], uint32(len(table)))
	binary.LittleEndian.PutUint32(r.hash[4:], crc32.Checksum(table, castagnoli))
}

// tableSize returns the length of a group's table in bytes, and the table's checksum. ok is false if the header is not that of
// a valid group.
func (h *header) tableSize() (size int, sum uint32, ok bool) {
	size = int(binary.LittleEndian.Uint32(h.hash[:]))
	sum = binary.LittleEndian.Uint32(h.hash[4:])
	n := int(h.refs)
	return size, sum, n > 0 && n <= maxMembers && size >= n*memberSize && size <= int(h.stored)
}

// parseTable parses the table p of a group with the header h.
func parseTable(h *header, p []byte) (*group, error) {
	_, sum, ok := h.tableSize()
	if !ok || crc32.Checksum(p, castagnoli) != sum {
		return nil, errGroup
	}
	n := int(h.refs)
	g := &group{kind: groupedKind(h.kind), table: make([]member, n), at: make([]int, n)}
	d := encoding.NewDecoder(p[n*hashSize:])
	at := 0
	for i := range g.table {
		m := &g.table[i]
		m.hash = Hash(p[i*hashSize:])
		m.series, m.refs, m.raw, m.back, m.size = d.Number(), d.Number(), d.Number(), d.Number(), d.Number()
		if d.Failed() || int(m.back) > i || m.raw > maxPayload || uint64(m.refs)*uint64(hashSize) > uint64(m.raw) ||
			m.back == 0 && m.size != m.raw || g.kind == kindBlob && m.refs > 0 {
			return nil, errGroup
		}
		g.at[i], at = at, at+int(m.size)
	}
	if !d.Complete() || at != int(h.raw) {
		return nil, errGroup
	}
	return g, nil
}

// parseGroup parses a group with its stream.
func parseGroup(r *record) (*group, error) {
	size, _, ok := r.tableSize()
	if !ok || !r.intact() {
		return nil, errGroup
	}
	g, err := parseTable(&r.header, r.payload()[:size])
	if err != nil {
		return nil, err
	}
	if g.stream = r.payload()[size:]; r.codec == codecZstd {
		if g.stream, err = unzstd(g.stream, int(r.raw)); err != nil {
			return nil, err
		}
	}
	if len(g.stream) != int(r.raw) {
		return nil, errGroup
	}
	return g, nil
}

// unzstd decodes a frame whose content has size bytes. It returns an error if size is over the limit for payloads.
func unzstd(p []byte, size int) ([]byte, error) {
	if size > maxPayload {
		return nil, errGroup
	}
	return encoding.Decompress(p, size)
}

// body returns the bytes of object i in the stream.
func (g *group) body(i int) []byte { return g.stream[g.at[i] : g.at[i]+int(g.table[i].size)] }

// bytes returns the refs and data of object i.
func (g *group) bytes(i int) ([]byte, error) {
	var chain []int
	for ; g.table[i].back > 0; i -= int(g.table[i].back) {
		chain = append(chain, i)
	}
	p := g.body(i)
	var bufs [2][]byte // one has the base, the other is for the result
	for n := len(chain) - 1; n >= 0; n-- {
		size := int(g.table[chain[n]].raw)
		buf := &bufs[n&1]
		if cap(*buf) < size {
			*buf = make([]byte, 0, size+size/8)
		}
		out, err := delta.Apply((*buf)[:0], p, g.body(chain[n]), size)
		if err != nil {
			return nil, err
		}
		p = out
	}
	return p, nil
}

// each calls do for every object, in order, with the object's refs and data or the error of reading it.
func (g *group) each(do func(i int, p []byte, err error)) {
	last := make([]int, len(g.table)) // the last object that is a delta to this one
	for i := range g.table {
		if b := int(g.table[i].back); b > 0 {
			last[i-b] = i
		}
	}
	kept := map[int][]byte{}
	for i := range g.table {
		m := &g.table[i]
		p, err := g.body(i), error(nil)
		if base := i - int(m.back); base < i {
			if from, ok := kept[base]; ok {
				p, err = delta.Apply(make([]byte, 0, m.raw), from, p, int(m.raw))
			} else {
				err = delta.ErrMismatch
			}
			if last[base] == i {
				delete(kept, base)
			}
		}
		if err == nil && last[i] > i {
			kept[i] = p
		}
		do(i, p, err)
	}
}

// split splits an object's bytes into refs and data.
func (m *member) split(p []byte) (refs []Hash, data []byte) {
	refs = make([]Hash, m.refs)
	for i := range refs {
		refs[i] = Hash(p[i*hashSize:])
	}
	return refs, p[int(m.refs)*hashSize:]
}

// share returns object i's share of the size of the group's record, in bytes. packed is the stored size of the stream, and raw
// its length.
func (g *group) share(i int, packed, raw uint32) uint32 {
	return uint32(memberSize) + uint32(uint64(packed)*uint64(g.table[i].size)/uint64(max(raw, 1)))
}

// objects returns the objects of the group at off, without the refs of nodes.
func (g *group) objects(h *header, off int64) []object {
	table, _, _ := h.tableSize()
	packed := h.stored - uint32(table)
	list := make([]object, len(g.table))
	for i := range list {
		m := &g.table[i]
		list[i] = object{hash: m.hash, off: uint32(off), slot: uint16(i), stored: g.share(i, packed, h.raw), kind: g.kind, series: m.series, grouped: true}
	}
	return list
}
