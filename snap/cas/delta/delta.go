// Package delta encodes the bytes of one object as a difference from the bytes of another, its base.
//
// A delta is a sequence of operations. Each begins with a uvarint n. When n is even, the next n/2 bytes of the
// delta are inserted. When n is odd, n/2 bytes are copied from the base; a varint follows, the distance from the end
// of the previous copy to the start of this one. Versions of a file share most of their bytes, so that copies
// dominate; git's pack deltas rest on the same idea.
package delta

import (
	"encoding/binary"
	"errors"
	"math/bits"
)

// ErrMismatch is the error of [Apply] for a delta that does not fit its base or the expected size.
var ErrMismatch = errors.New("a delta that does not fit its base")

const (
	// Block is the length in bytes of the shortest match that becomes a copy.
	Block = 16
	step  = 8 // the distance in bytes between the starts of two indexed blocks of the base
)

// Differ computes deltas. It reuses the memory of its table, and is not safe for concurrent use.
// The zero value is ready to use.
type Differ struct {
	table []int32 // maps the hash of a block to the block's offset in the base, plus 1
	shift int
}

func (d *Differ) hash(p []byte) uint32 {
	le := binary.LittleEndian
	a, b := le.Uint64(p), le.Uint64(p[8:])
	return uint32((a*0x9e3779b185ebca87 ^ bits.RotateLeft64(b*0xc2b2ae3d27d4eb4f, 31)) * 0x165667b19e3779f9 >> d.shift)
}

// index enters the base's blocks into the table. Of blocks with equal hashes the first counts.
func (d *Differ) index(base []byte) {
	n := max(bits.Len(uint(len(base)/step)), 4)
	d.shift = 64 - n
	if cap(d.table) < 1<<n {
		d.table = make([]int32, 1<<n)
	}
	d.table = d.table[:1<<n]
	clear(d.table)
	for i := 0; i+Block <= len(base); i += step {
		if slot := &d.table[d.hash(base[i:])]; *slot == 0 {
			*slot = int32(i) + 1
		}
	}
}

// Append appends to out the delta that turns base into p. It returns nil when the delta
// is longer than limit bytes.
func (d *Differ) Append(out, base, p []byte, limit int) []byte {
	d.index(base)
	start := len(out)
	done, last := 0, 0 // p[:done] is encoded; the previous copy ended at base[last]
	for i := 0; i+Block <= len(p); {
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

// match returns the offset in base of a block that equals the block at p[i:], or -1. It looks
// in the table, then at last, where the previous copy ended.
func (d *Differ) match(base, p []byte, i, last int) int {
	at := int(d.table[d.hash(p[i:])]) - 1
	if at >= 0 && matching(base[at:], p[i:]) >= Block {
		return at
	}
	if last < len(base) && matching(base[last:], p[i:]) >= Block {
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

// matching returns the length of the longest common prefix of a and b.
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

// Apply appends to out the size bytes that delta makes of base. It returns [ErrMismatch] when
// delta is damaged or makes another number of bytes.
func Apply(out, base, delta []byte, size int) ([]byte, error) {
	start, last := len(out), 0
	for len(delta) > 0 {
		v, k := binary.Uvarint(delta)
		if k <= 0 || v>>1 > uint64(size-(len(out)-start)) {
			return nil, ErrMismatch
		}
		n := int(v >> 1)
		delta = delta[k:]
		if v&1 == 0 {
			if n > len(delta) {
				return nil, ErrMismatch
			}
			out, delta = append(out, delta[:n]...), delta[n:]
			continue
		}
		move, k := binary.Varint(delta)
		if k <= 0 || move > int64(len(base)) || move < -int64(len(base)) {
			return nil, ErrMismatch
		}
		delta = delta[k:]
		at := last + int(move)
		if at < 0 || at > len(base) || n > len(base)-at {
			return nil, ErrMismatch
		}
		out = append(out, base[at:at+n]...)
		last = at + n
	}
	if len(out)-start != size {
		return nil, ErrMismatch
	}
	return out, nil
}
