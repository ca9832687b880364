// Package imagefile reads and writes the files of a domain's disks: qcow2 headers and allocation tables, hashes, copies, the
// immutable flag, locks of writers, and calls of qemu-img. It does not know layers.
package imagefile

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
)

// The layout is that of QEMU's docs/interop/qcow2.txt.
const (
	qcow2Magic      = 0x514649fb
	extBackingFmt   = 0xe2792aca
	incompatDirty   = 1 << 0
	incompatCorrupt = 1 << 1
	incompatData    = 1 << 2 // guest data is in another file
	incompatL2      = 1 << 4 // L2 entries have sub-clusters and take 16 bytes
	OffsetMask      = 0x00fffffffffffe00
	CompressedFlag  = 1 << 62
	maxTable        = 32 << 20 // QEMU's own limit for an L1 table, in bytes
)

// Image has the fields of a qcow2 header.
type Image struct {
	Size       int64 // size of the guest's disk, in bytes
	Cluster    int64 // bytes
	Backing    string
	BackingFmt string
	Snapshots  int // number of internal snapshots
	Encrypted  bool
	External   bool // guest data is in another file
	Corrupt    bool

	entry  int64 // bytes of an L2 entry
	L1Size int64 // entries
	L1At   int64
}

// ErrNotQcow2 is the error for a file that does not begin with a qcow2 header.
var ErrNotQcow2 = errors.New("not a qcow2 image")

// readImage reads the header of a qcow2 file.
func readImage(r io.ReaderAt) (Image, error) {
	head := make([]byte, 104)
	if n, err := r.ReadAt(head, 0); err != nil && !(errors.Is(err, io.EOF) && n >= 72) {
		return Image{}, ErrNotQcow2
	}
	be := binary.BigEndian
	version := be.Uint32(head[4:])
	bits := be.Uint32(head[20:])
	if be.Uint32(head) != qcow2Magic || version < 2 || version > 3 || bits < 9 || bits > 21 {
		return Image{}, ErrNotQcow2
	}
	img := Image{
		Size: int64(be.Uint64(head[24:])), Cluster: 1 << bits, Encrypted: be.Uint32(head[32:]) != 0,
		Snapshots: int(be.Uint32(head[60:])), entry: 8,
		L1Size: int64(be.Uint32(head[36:])), L1At: int64(be.Uint64(head[40:])),
	}
	extensions := int64(72)
	if version == 3 {
		features := be.Uint64(head[72:])
		img.External, img.Corrupt = features&incompatData != 0, features&incompatCorrupt != 0
		if features&incompatL2 != 0 {
			img.entry = 16
		}
		extensions = int64(be.Uint32(head[100:]))
	}
	if img.Size < 0 || img.L1At < 0 || img.L1Size*8 > maxTable {
		return Image{}, ErrNotQcow2
	}
	return img, img.readBacking(r, int64(be.Uint64(head[8:])), int64(be.Uint32(head[16:])), extensions)
}

// readBacking reads the backing file's name and the header extensions, one of
// which is its format.
func (img *Image) readBacking(r io.ReaderAt, at, length, extensions int64) error {
	if at == 0 {
		return nil
	}
	if at < 0 || at > img.Cluster || length > 1023 || at+length > img.Cluster {
		return ErrNotQcow2
	}
	name := make([]byte, length)
	if _, err := r.ReadAt(name, at); err != nil {
		return fmt.Errorf("the backing file's name: %w", err)
	}
	img.Backing = string(name)
	for extensions+8 <= at {
		var head [8]byte
		if _, err := r.ReadAt(head[:], extensions); err != nil {
			return fmt.Errorf("header extensions: %w", err)
		}
		kind, length := binary.BigEndian.Uint32(head[:]), int64(binary.BigEndian.Uint32(head[4:]))
		extensions += 8
		if kind == 0 || extensions+length > at {
			return nil
		}
		if kind == extBackingFmt && length < 64 {
			format := make([]byte, length)
			if _, err := r.ReadAt(format, extensions); err != nil {
				return fmt.Errorf("the backing file's format: %w", err)
			}
			img.BackingFmt = string(format)
		}
		extensions += (length + 7) &^ 7
	}
	return nil
}

// ReadTable reads a table of 64-bit words.
func ReadTable(r io.ReaderAt, at, bytes int64) ([]uint64, error) {
	raw := make([]byte, bytes)
	if _, err := r.ReadAt(raw, at); err != nil {
		return nil, err
	}
	words := make([]uint64, bytes/8)
	for i := range words {
		words[i] = binary.BigEndian.Uint64(raw[i*8:])
	}
	return words, nil
}

// Empty reports whether nothing was ever written to the image: it has no L2 table. QEMU writes L1 entries at once, so this is
// also true for an image in use.
func (img *Image) Empty(r io.ReaderAt) (bool, error) {
	l1, err := ReadTable(r, img.L1At, img.L1Size*8)
	if err != nil {
		return false, fmt.Errorf("the L1 table: %w", err)
	}
	for _, e := range l1 {
		if e&OffsetMask != 0 {
			return false, nil
		}
	}
	return true, nil
}

// Extent is a range of bytes of the guest's disk.
type Extent struct{ from, to int64 }

// NewExtent returns the extent of length bytes from offset.
func NewExtent(offset, length int64) Extent { return Extent{offset, offset + length} }

// allocated lists the clusters with an entry in the image's own tables, and those of them with data, in the order of the
// guest's disk.
func (img *Image) allocated(r io.ReaderAt) (list, data []Extent, tables int, err error) {
	l1, err := ReadTable(r, img.L1At, img.L1Size*8)
	if err != nil {
		return nil, nil, 0, fmt.Errorf("the L1 table: %w", err)
	}
	span := img.Span()
	for i, e := range l1 {
		at := int64(e & OffsetMask)
		if at == 0 {
			continue
		}
		tables++
		l2, err := ReadTable(r, at, img.Cluster)
		if err != nil {
			return nil, nil, 0, fmt.Errorf("an L2 table: %w", err)
		}
		words := int(img.entry / 8)
		for j := 0; j < len(l2); j += words {
			if l2[j] == 0 && (words == 1 || l2[j+1] == 0) {
				continue
			}
			from := int64(i)*span + int64(j/words)*img.Cluster
			e := Extent{from, from + img.Cluster}
			list = appendExtent(list, e)
			if l2[j]&(OffsetMask|CompressedFlag) != 0 {
				data = appendExtent(data, e)
			}
		}
	}
	return list, data, tables, nil
}

// Span returns how many bytes of the guest's disk one L2 table describes.
func (img *Image) Span() int64 { return img.Cluster / img.entry * img.Cluster }

func appendExtent(list []Extent, e Extent) []Extent {
	if n := len(list); n > 0 && list[n-1].to >= e.from {
		list[n-1].to = max(list[n-1].to, e.to)
		return list
	}
	return append(list, e)
}

func Total(list []Extent) (n int64) {
	for _, e := range list {
		n += e.to - e.from
	}
	return n
}

// Union merges two sorted lists of extents.
func Union(a, b []Extent) (out []Extent) {
	for len(a) > 0 || len(b) > 0 {
		if len(b) == 0 || len(a) > 0 && a[0].from <= b[0].from {
			out, a = appendExtent(out, a[0]), a[1:]
		} else {
			out, b = appendExtent(out, b[0]), b[1:]
		}
	}
	return out
}

// Without returns the parts of a that are not in b. Both must be sorted.
func Without(a, b []Extent) (out []Extent) {
	for _, e := range a {
		for len(b) > 0 && b[0].to <= e.from {
			b = b[1:]
		}
		for _, gap := range b {
			if gap.from >= e.to {
				break
			}
			if gap.from > e.from {
				out = append(out, Extent{e.from, gap.from})
			}
			e.from = gap.to
		}
		if e.from < e.to {
			out = append(out, e)
		}
	}
	return out
}

// OpenImage opens the image at path and reads its header.
func OpenImage(path string) (Image, *os.File, error) {
	f, err := os.Open(path)
	if err != nil {
		return Image{}, nil, err
	}
	img, err := readImage(f)
	if err != nil {
		return Image{}, nil, errors.Join(fmt.Errorf("%s: %w", path, err), f.Close())
	}
	return img, f, nil
}

// EmptyImage reports whether nothing was written to the overlay at path.
func EmptyImage(path string) (bool, error) {
	img, f, err := OpenImage(path)
	if err != nil {
		return false, err
	}
	defer f.Close() // only read
	return img.Empty(f)
}
