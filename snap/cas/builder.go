package cas

import (
	"time"

	"mulligan/errs"
	"mulligan/snap/cas/delta"
)

// builder makes groups of items, which are added in the order of packing.items.
type builder struct {
	p      *packing
	g      group
	from   []*item
	depth  []int        // for each member, the number of deltas to apply when it is read
	where  map[Hash]int // number of each member, by hash
	recent []candidate  // the last few versions of the present series
	differ delta.Differ
	began  time.Time
}

// candidate is a version that may be the base of a delta.
type candidate struct {
	member int
	it     *item
	p      []byte // refs and data
}

// window is the number of versions that are tried as bases. The newest is nearly always the best. The exceptions are things
// that change back and forth, and series whose names have the same checksum.
const window = 3

// add puts one item into the group. If the group is full, add writes it and begins another one. A damaged item stays where it
// is.
func (b *builder) add(it *item) error {
	if len(b.from) == 0 {
		b.began = time.Now()
	}
	last := (*item)(nil)
	if n := len(b.from); n > 0 {
		last = b.from[n-1]
	}
	if last != nil {
		same := last.kind == it.kind && last.first == it.first
		full := len(b.g.stream) >= groupBytes
		if last.kind != it.kind || len(b.from) == maxMembers || full && !same || full && len(b.g.stream) >= groupBytes+2*int(b.g.table[len(b.from)-1].raw) {
			if err := b.flush(); err != nil {
				return err
			}
		}
		if !same || len(b.from) == 0 {
			b.recent = nil
		}
	}
	c, err := b.read(it)
	if err != nil {
		if errs.KindOf(err) == errs.Corrupt {
			return nil
		}
		return err
	}
	whole := c.bytes()
	body, base := b.body(it, whole)
	if len(b.from) > 0 && len(b.g.stream)+len(body) > maxStream { // the next group begins with the whole item
		if err := b.flush(); err != nil {
			return err
		}
		b.began = time.Now()
		body, base = whole, -1
	}
	if b.where == nil {
		b.where = map[Hash]int{}
	}
	m := member{hash: it.hash, series: c.series, refs: uint32(len(c.refs)), raw: uint32(len(c.refs)*hashSize + len(c.data))}
	me := len(b.from)
	depth := 0
	if base >= 0 {
		m.back, depth = uint32(me-base), b.depth[base]+1
	}
	m.size = uint32(len(body))
	b.g.kind = it.kind
	b.g.at = append(b.g.at, len(b.g.stream))
	b.g.stream = append(b.g.stream, body...)
	b.g.table = append(b.g.table, m)
	b.from, b.depth = append(b.from, it), append(b.depth, depth)
	b.where[it.hash] = me
	if it.series != 0 {
		if len(b.recent) == window {
			b.recent = b.recent[1:]
		}
		b.recent = append(b.recent, candidate{me, it, whole})
	}
	return nil
}

// bytes returns the refs and the data of an object, one after the other, as a group stores them.
func (c *content) bytes() []byte {
	if len(c.refs) == 0 {
		return c.data
	}
	p := make([]byte, 0, len(c.refs)*hashSize+len(c.data))
	for i := range c.refs {
		p = append(p, c.refs[i][:]...)
	}
	return append(p, c.data...)
}

// read reads and verifies an item at its present position.
func (b *builder) read(it *item) (content, error) {
	s := b.p.s
	e := entry{seg: it.src.seq, off: it.off, slot: it.slot, stored: it.stored}
	c, err := s.load(it.src, it.hash, e)
	if err == nil || ioFailure(err) {
		return c, err
	}
	s.markBad(it.hash, e)
	return c, &errs.Error{Kind: errs.Corrupt, Op: opPack, Message: "object " + it.hash.String(), Err: err}
}

// body returns the bytes of an item for the group's stream: a delta to the member base, or the whole item if base is -1.
func (b *builder) body(it *item, whole []byte) (body []byte, base int) {
	if body, base, ok := b.asBefore(it); ok {
		return body, base
	}
	best, base := whole, -1
	if len(whole) < 2*delta.Block {
		return best, base
	}
	limit := len(whole) - len(whole)/8
	for i := len(b.recent) - 1; i >= 0 && (base < 0 || len(best) > len(whole)/8); i-- {
		v := b.recent[i]
		if !b.reachable(v.member, len(whole)) {
			continue
		}
		if d := b.differ.Append(nil, v.p, whole, limit); d != nil {
			best, base, limit = d, v.member, len(d)-1
		}
	}
	return best, base
}

// reachable reports whether a delta to the member could be read within the limits maxDepth and maxApply.
func (b *builder) reachable(member, size int) bool {
	d := b.depth[member] + 1
	return d <= maxDepth && (d == 1 || d*size <= maxApply)
}

// asBefore returns the delta by which an old group stores the item, if the delta's base is also in this group.
func (b *builder) asBefore(it *item) (body []byte, base int, ok bool) {
	if !it.grouped {
		return nil, -1, false
	}
	gr, err := b.p.s.cachedGroup(it.src, int64(it.off))
	if err != nil || gr.table[it.slot].back == 0 {
		return nil, -1, false
	}
	i := int(it.slot)
	base, ok = b.where[gr.table[i-int(gr.table[i].back)].hash]
	if !ok || !b.reachable(base, int(gr.table[i].raw)) {
		return nil, -1, false
	}
	return gr.body(i), base, true
}

// flush writes the group to the pack, and begins an empty one.
func (b *builder) flush() error {
	if len(b.from) == 0 {
		return nil
	}
	r := b.g.record()
	from, g := b.from, b.g
	err := b.p.write(r, func(off int64) {
		to := g.objects(&r.header, off)
		for i, it := range from {
			b.p.moves = append(b.p.moves, move{from: it.object, to: to[i], src: it.src, seg: b.p.out.g})
		}
	})
	began := b.began
	*b = builder{p: b.p, differ: b.differ}
	b.p.giveWay(began)
	return err
}
