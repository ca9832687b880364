package cas

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"os"

	"mulligan/snap/cas/encoding"
)

var idxMagic = [8]byte{'m', 'u', 'l', 'l', 'i', 'd', 'x', '2'}

const (
	idxHeaderSize = 36
	idxObjectSize = 52
)

var errIndex = errors.New("not an index of this segment")

// encodeIndex returns the bytes of the index file of a sealed segment:
//
//	magic [8], salt [8], segment number u32, segment size u64, objects u64,
//	per object: hash [32], offset u32, stored u32, refs u32, kind u8, bad u8,
//	zero u16, series u32, refs × hash [32]; at the end CRC32C of all before it.
func encodeIndex(sl salt, seq uint32, size int64, objects []object) []byte {
	le := binary.LittleEndian
	n := idxHeaderSize + 4
	for i := range objects {
		n += idxObjectSize + len(objects[i].refs)*hashSize
	}
	p := append(make([]byte, 0, n), idxMagic[:]...)
	p = append(p, sl[:]...)
	p = le.AppendUint32(p, seq)
	p = le.AppendUint64(p, uint64(size))
	p = le.AppendUint64(p, uint64(len(objects)))
	for i := range objects {
		o := &objects[i]
		p = append(p, o.hash[:]...)
		p = le.AppendUint32(p, o.off)
		p = le.AppendUint32(p, o.stored)
		p = le.AppendUint32(p, uint32(len(o.refs)))
		p = append(p, o.kind, 0, 0, 0)
		if o.bad {
			p[len(p)-3] = 1
		}
		p = le.AppendUint32(p, o.series)
		for j := range o.refs {
			p = append(p, o.refs[j][:]...)
		}
	}
	return le.AppendUint32(p, crc32.Checksum(p, castagnoli))
}

// decodeIndex parses an index file. It returns an error if the file is that of another segment, or of another size of the
// segment.
func decodeIndex(p []byte, sl salt, seq uint32, size int64) ([]object, error) {
	le := binary.LittleEndian
	if len(p) < idxHeaderSize+4 || [8]byte(p[:8]) != idxMagic || salt(p[8:16]) != sl ||
		le.Uint32(p[16:]) != seq || le.Uint64(p[20:]) != uint64(size) {
		return nil, errIndex
	}
	body := p[:len(p)-4]
	if crc32.Checksum(body, castagnoli) != le.Uint32(p[len(p)-4:]) {
		return nil, errIndex
	}
	n := le.Uint64(p[28:])
	d := encoding.NewDecoder(body[idxHeaderSize:])
	if n > uint64(d.Left()/idxObjectSize) {
		return nil, errIndex
	}
	objects := make([]object, 0, n)
	for ; n > 0; n-- {
		f := d.Bytes(idxObjectSize)
		if d.Failed() {
			return nil, errIndex
		}
		o := object{hash: Hash(f[:32]), off: le.Uint32(f[32:]), stored: le.Uint32(f[36:]), kind: f[44], bad: f[45] != 0, series: le.Uint32(f[48:])}
		refs := d.Bytes(int(min(uint64(le.Uint32(f[40:]))*uint64(hashSize), uint64(d.Left()+1))))
		if d.Failed() || int64(o.off)+o.size() > size || (o.kind != kindBlob && o.kind != kindNode) {
			return nil, errIndex
		}
		for ; len(refs) > 0; refs = refs[hashSize:] {
			o.refs = append(o.refs, Hash(refs[:hashSize]))
		}
		objects = append(objects, o)
	}
	return objects, nil
}

// writeIndex writes the index file of a sealed segment. The file only saves time, so it is not synced: a torn one has a wrong
// checksum and is written again.
func (s *Store) writeIndex(seg *segment, objects []object) error {
	p := encodeIndex(s.salt, seg.seq, seg.size.Load(), objects)
	tmp := seg.indexPath() + ".tmp"
	if err := os.WriteFile(tmp, p, 0o600); err != nil {
		os.Remove(tmp)
		return err
	}
	if err := os.Rename(tmp, seg.indexPath()); err != nil {
		return err
	}
	seg.indexSize.Store(int64(len(p)))
	return nil
}

// objectsOf returns the objects of a sealed segment. It reads them from the index file, or from the segment itself if the index
// file is missing or invalid. For a pack, the nodes' refs are left out.
func (s *Store) objectsOf(seg *segment) (objects []object, err error) {
	if seg.isPack() {
		spans, err := s.scanPack(seg, false)
		for _, sp := range spans {
			objects = append(objects, sp.objects...)
		}
		return objects, err
	}
	if p, err := os.ReadFile(seg.indexPath()); err == nil {
		if objects, err = decodeIndex(p, s.salt, seg.seq, seg.size.Load()); err == nil {
			seg.indexSize.Store(int64(len(p)))
			return objects, nil
		}
	}
	sc, err := scanSegment(seg, seg.size.Load(), seg.seq, s.salt, true)
	if err != nil {
		return nil, err
	}
	if !seg.patchy {
		// A failure costs only time: the next Open scans the segment again.
		_ = s.writeIndex(seg, sc.objects)
	}
	return sc.objects, nil
}
