package cas

import (
	"encoding/binary"
	"errors"
	"math/bits"
)

// A delta says how to make one object's bytes of another's, its base. It is a
// row of operations: a uvarint n, then for n even n/2 bytes that follow it, for
// n odd n/2 bytes of the base, at the place where the copy before this one ended
// plus a varint. Copies of unchanged parts are what differs from version to
// version of a file; the same is the idea of git's pack deltas.

var errDelta = errors.New("a delta that does not fit its base")

const (
	deltaBlock = 16 // bytes that must agree before a copy is thought of
	deltaStep  = 8  // every so many bytes of the base are a block's beginning
)

// differ makes deltas. Its table is kept from one to the next.
type differ struct {
	table []int32 // by hash: a block of the base, its offset + 1
	shift int
}

func (d *differ) hash(p []byte) uint32 {
	le := binary.LittleEndian
	a, b := le.Uint64(p), le.Uint64(p[8:])
	return uint32((a*0x9e3779b185ebca87 ^ bits.RotateLeft64(b*0xc2b2ae3d27d4eb4f, 31)) * 0x165667b19e3779f9 >> d.shift)
}

// index enters the base's blocks; of equal ones the first counts.
func (d *differ) index(base []byte) {
	n := max(bits.Len(uint(len(base)/deltaStep)), 4)
	d.shift = 64 - n
	if cap(d.table) < 1<<n {
		d.table = make([]int32, 1<<n)
	}
	d.table = d.table[:1<<n]
	clear(d.table)
	for i := 0; i+deltaBlock <= len(base); i += deltaStep {
		if slot := &d.table[d.hash(base[i:])]; *slot == 0 {
			*slot = int32(i) + 1
		}
	}
}

// delta appends to out the delta that makes p of base, and gives up with nil
// when it gets longer than limit bytes.
func (d *differ) delta(out, base, p []byte, limit int) []byte {
	d.index(base)
	start := len(out)
	done, last := 0, 0 // p is said up to done; the last copy ended at last
	for i := 0; i+deltaBlock <= len(p); {
		at := d.match(base, p, i, last)
		if at < 0 {
			i++
			continue
		}
		from, n := i, matching(base[at:], p[i:])
		for from > done && at > 0 && base[at-1] == p[from-1] {
			from, at, n = from-1, at-1, n+1
		}
		out = appendInsert(out, p[done:from])
		out = binary.AppendUvarint(out, uint64(n)<<1|1)
		out = binary.AppendVarint(out, int64(at-last))
		done, last = from+n, at+n
		i = done
		if len(out)-start > limit {
			return nil
		}
	}
	out = appendInsert(out, p[done:])
	if len(out)-start > limit {
		return nil
	}
	return out
}

// match finds a block of base that is p's at i: where the last copy would have
// gone on, or by the table. -1: there is none.
func (d *differ) match(base, p []byte, i, last int) int {
	at := int(d.table[d.hash(p[i:])]) - 1
	if at >= 0 && matching(base[at:], p[i:]) >= deltaBlock {
		return at
	}
	if last < len(base) && matching(base[last:], p[i:]) >= deltaBlock {
		return last
	}
	return -1
}

func appendInsert(out, p []byte) []byte {
	if len(p) == 0 {
		return out
	}
	return append(binary.AppendUvarint(out, uint64(len(p))<<1), p...)
}

// matching is how many bytes a and b have in common at their beginnings.
func matching(a, b []byte) int {
	n := min(len(a), len(b))
	i := 0
	for ; i+8 <= n; i += 8 {
		x := binary.LittleEndian.Uint64(a[i:]) ^ binary.LittleEndian.Uint64(b[i:])
		if x != 0 {
			return i + bits.TrailingZeros64(x)/8
		}
	}
	for i < n && a[i] == b[i] {
		i++
	}
	return i
}

// undelta appends to out, which has room for them, the size bytes that delta
// makes of base.
func undelta(out, base, delta []byte, size int) ([]byte, error) {
	start, last := len(out), 0
	for len(delta) > 0 {
		v, k := binary.Uvarint(delta)
		if k <= 0 || v>>1 > uint64(size-(len(out)-start)) {
			return nil, errDelta
		}
		n := int(v >> 1)
		delta = delta[k:]
		if v&1 == 0 {
			if n > len(delta) {
				return nil, errDelta
			}
			out, delta = append(out, delta[:n]...), delta[n:]
			continue
		}
		move, k := binary.Varint(delta)
		if k <= 0 || move > int64(len(base)) || move < -int64(len(base)) {
			return nil, errDelta
		}
		delta = delta[k:]
		at := last + int(move)
		if at < 0 || at > len(base) || n > len(base)-at {
			return nil, errDelta
		}
		out = append(out, base[at:at+n]...)
		last = at + n
	}
	if len(out)-start != size {
		return nil, errDelta
	}
	return out, nil
}
