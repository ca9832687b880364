// Package encoding has the parts that the content store's records and groups are encoded with:
// numbers and strings of variable length, and zstd frames.
package encoding

import (
	"encoding/binary"
	"math"
	"sync"

	"github.com/klauspost/compress/zstd"
)

// AppendString appends to p the length of s as a uvarint, then s.
func AppendString(p []byte, s string) []byte {
	return append(binary.AppendUvarint(p, uint64(len(s))), s...)
}

// Decoder reads values from the front of a byte slice. After the first value that is damaged or
// cut short, it fails: all further values are zero.
type Decoder struct {
	p      []byte
	failed bool
}

// NewDecoder returns a decoder of p. What the decoder returns shares p's memory.
func NewDecoder(p []byte) *Decoder { return &Decoder{p: p} }

// Failed reports whether a value was damaged or cut short.
func (d *Decoder) Failed() bool { return d.failed }

// Complete reports whether the decoder has read all of its bytes without a failure.
func (d *Decoder) Complete() bool { return !d.failed && len(d.p) == 0 }

// Left returns the number of bytes that are not read yet.
func (d *Decoder) Left() int { return len(d.p) }

// Count reads a uvarint that is at most the number of bytes that follow it.
func (d *Decoder) Count() int {
	v, n := binary.Uvarint(d.p)
	if n <= 0 || v > uint64(len(d.p)-n) {
		d.fail()
		return 0
	}
	d.p = d.p[n:]
	return int(v)
}

// Number reads a uvarint of at most 32 bits.
func (d *Decoder) Number() uint32 {
	v, n := binary.Uvarint(d.p)
	if n <= 0 || v > math.MaxUint32 {
		d.fail()
		return 0
	}
	d.p = d.p[n:]
	return uint32(v)
}

// Bytes reads n bytes.
func (d *Decoder) Bytes(n int) []byte {
	if d.failed || n > len(d.p) {
		d.fail()
		return nil
	}
	p := d.p[:n]
	d.p = d.p[n:]
	return p
}

func (d *Decoder) fail() { d.failed, d.p = true, nil }

// zstdReader is the one decoder. It is safe for concurrent use.
var zstdReader = sync.OnceValue(func() *zstd.Decoder {
	z, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(2), zstd.WithDecoderLowmem(true), zstd.WithDecodeAllCapLimit(true))
	if err != nil {
		panic(err) // the options are wrong
	}
	return z
})

// zstdWriters holds encoders, each for one goroutine at a time. An encoder takes some 9 MB, too much
// to allocate for a few groups. The garbage collector frees encoders that are not used for a while.
var zstdWriters = sync.Pool{New: func() any {
	z, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedBetterCompression), zstd.WithEncoderConcurrency(1),
		zstd.WithEncoderCRC(false), zstd.WithLowerEncoderMem(true), zstd.WithWindowSize(4<<20))
	if err != nil {
		panic(err) // the options are wrong
	}
	return z
}}

// Compress appends p to dst as one zstd frame. It is safe for concurrent use.
func Compress(dst, p []byte) []byte {
	z := zstdWriters.Get().(*zstd.Encoder)
	defer zstdWriters.Put(z)
	return z.EncodeAll(p, dst)
}

// Decompress decodes a zstd frame of at most size bytes, for which it allocates memory at once: the
// caller must bound size. It returns an error if the frame is damaged or holds more. It is safe for
// concurrent use.
func Decompress(p []byte, size int) ([]byte, error) {
	return zstdReader().DecodeAll(p, make([]byte, 0, size))
}
