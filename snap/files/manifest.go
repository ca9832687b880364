package files

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"mulligan/snap"
	"mulligan/snap/files/inode"
	"mulligan/snap/files/relpath"
)

// A manifest is a Merkle tree of nodes in the content store. A node's bytes
// open with a version and its sort; hashes are not among them but are the
// node's references, in the order in which the bytes speak of them.
//
//	top:    version 't' entry                the workspace folder itself; 1 reference
//	folder: version 'd' count entry*         sorted by the names' bytes, none twice
//	list:   version 'l' count entry*         the same with paths for names
//	large:  version 'c' size bits            a file in pieces; a set bit is a piece
//	                                         that is a reference, a clear one is all zeros
//
// entry: name mode uid gid mtime(sec, nsec) flags, then what the flags announce,
// in their order. Numbers are varints (zig-zag for seconds), strings are
// preceded by their length.
const manifestVersion = 1

const (
	sortTop    = 't'
	sortFolder = 'd'
	sortList   = 'l'
	sortLarge  = 'c'
	sortPlan   = 'p'
)

const (
	hasSize = 1 << iota
	hasRdev
	hasLink
	hasGroup
	hasXattrs
	hasHash
	isMount
	isLoose
	allFlags = 1<<iota - 1
)

var errManifest = errors.New("not a manifest of this version")

func (e *entry) flags() (f uint64) {
	odd := e.odds()
	for _, x := range []struct {
		on  bool
		bit uint64
	}{
		{e.size != 0, hasSize}, {odd.rdev != 0, hasRdev}, {odd.link != "", hasLink}, {odd.group != "", hasGroup},
		{len(odd.xattrs) > 0, hasXattrs}, {!e.hash.IsZero(), hasHash}, {e.mount, isMount}, {e.loose, isLoose},
	} {
		if x.on {
			f |= x.bit
		}
	}
	return f
}

// encodeNode gives the bytes and the references of a node.
func encodeNode(sort byte, entries []*entry) (data []byte, refs []snap.Hash) {
	data = make([]byte, 0, 16+48*len(entries))
	data = append(data, manifestVersion, sort)
	if sort != sortTop {
		data = binary.AppendUvarint(data, uint64(len(entries)))
	}
	for _, e := range entries {
		data = e.append(data)
		if !e.hash.IsZero() {
			refs = append(refs, e.hash)
		}
	}
	return data, refs
}

func (e *entry) append(b []byte) []byte {
	f := e.flags()
	b = appendString(b, e.name)
	for _, v := range []uint32{e.mode, e.uid, e.gid} {
		b = binary.AppendUvarint(b, uint64(v))
	}
	b = binary.AppendVarint(b, e.mtime.Sec)
	b = binary.AppendUvarint(b, uint64(e.mtime.Nsec))
	b = binary.AppendUvarint(b, f)
	if f&hasSize != 0 {
		b = binary.AppendUvarint(b, uint64(e.size))
	}
	if f&hasRdev != 0 {
		b = binary.AppendUvarint(b, e.rdev())
	}
	if f&hasLink != 0 {
		b = appendString(b, e.link())
	}
	if f&hasGroup != 0 {
		b = appendString(b, e.group())
	}
	if f&hasXattrs != 0 {
		b = binary.AppendUvarint(b, uint64(len(e.xattrs())))
		for _, x := range e.xattrs() {
			b = appendString(appendString(b, x.Name), x.Value)
		}
	}
	return b
}

func appendString(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// decodeNode is the reverse of encodeNode, and takes nothing else: whatever it
// accepts encodes to the same bytes again.
func decodeNode(sort byte, data []byte, refs []snap.Hash) ([]entry, error) {
	r := reader{b: data, refs: refs}
	if r.byte() != manifestVersion || r.byte() != sort {
		return nil, errManifest
	}
	n := uint64(1)
	if sort != sortTop {
		n = r.uvarint()
	}
	if n > uint64(len(data)) {
		return nil, fmt.Errorf("a node of %d bytes claims %d entries", len(data), n)
	}
	out := make([]entry, n)
	for i := range out {
		r.entry(&out[i])
		if r.err == nil && !wellNamed(sort, out[i].name) {
			r.fail("a name that no folder can hold")
		}
		if r.err == nil && i > 0 && out[i-1].name >= out[i].name {
			r.fail("names out of order")
		}
		if r.err != nil {
			return nil, r.err
		}
	}
	if len(r.b) > 0 || len(r.refs) > 0 {
		r.fail("more than its entries")
	}
	return out, r.err
}

// wellNamed keeps a name from reaching out of the folder it stands in.
func wellNamed(sort byte, name string) bool {
	if sort == sortTop {
		return name == ""
	}
	if sort == sortList {
		return name == "." || relpath.Valid(name)
	}
	return relpath.ValidName(name)
}

// reader takes a node apart; after the first error it gives zeros.
type reader struct {
	b    []byte
	refs []snap.Hash
	err  error
}

func (r *reader) fail(what string) {
	if r.err == nil {
		r.err = fmt.Errorf("%w: %s", errManifest, what)
	}
	r.b = nil
}

func (r *reader) byte() byte {
	if len(r.b) == 0 {
		r.fail("too short")
		return 0
	}
	c := r.b[0]
	r.b = r.b[1:]
	return c
}

func (r *reader) uvarint() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 || n > 1 && r.b[n-1] == 0 { // one number, one spelling
		r.fail("a broken number")
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *reader) varint() int64 {
	u := r.uvarint()
	return int64(u>>1) ^ -int64(u&1)
}

func (r *reader) uint32() uint32 {
	v := r.uvarint()
	if v > 1<<32-1 {
		r.fail("a number out of range")
	}
	return uint32(v)
}

func (r *reader) string() string {
	n := r.uvarint()
	if n > uint64(len(r.b)) {
		r.fail("a string longer than the node")
		return ""
	}
	s := string(r.b[:n])
	r.b = r.b[n:]
	return s
}

// entry reads what entry.append wrote, and the hash from the references.
func (r *reader) entry(e *entry) {
	f := r.fields(e)
	if f&hasHash != 0 {
		if len(r.refs) == 0 || r.refs[0].IsZero() {
			r.fail("a reference is missing")
			return
		}
		e.hash, r.refs = r.refs[0], r.refs[1:]
	}
	r.checkEntry(e, f)
}

func (r *reader) fields(e *entry) (f uint64) {
	e.name = r.string()
	e.mode, e.uid, e.gid = r.uint32(), r.uint32(), r.uint32()
	e.mtime = inode.Time{Sec: r.varint(), Nsec: r.uint32()}
	f = r.uvarint()
	if f > allFlags {
		r.fail("unknown flags")
	}
	if f&hasSize != 0 {
		e.size = int64(r.uvarint())
	}
	var odd rare
	if f&hasRdev != 0 {
		odd.rdev = r.uvarint()
	}
	if f&hasLink != 0 {
		odd.link = r.string()
	}
	if f&hasGroup != 0 {
		odd.group = r.string()
	}
	if f&hasXattrs != 0 {
		odd.xattrs = r.xattrs()
	}
	e.set(func(r *rare) { *r = odd })
	e.mount, e.loose = f&isMount != 0, f&isLoose != 0
	return f
}

func (r *reader) xattrs() (list []inode.Xattr) {
	n := r.uvarint()
	if n > uint64(len(r.b)) {
		r.fail("more attributes than the node has bytes")
		return nil
	}
	for range n {
		x := inode.Xattr{Name: r.string(), Value: r.string()}
		if k := len(list); k > 0 && list[k-1].Name >= x.Name {
			r.fail("attributes out of order")
		}
		list = append(list, x)
	}
	return list
}

// checkEntry refuses what encodeNode never writes.
func (r *reader) checkEntry(e *entry, f uint64) {
	switch {
	case e.flags() != f:
		r.fail("an announced field is empty")
	case e.size < 0 || e.mtime.Nsec >= 1e9:
		r.fail("a number out of range")
	case e.group() != "" && !relpath.Valid(e.group()):
		r.fail("a hard-link group that is no path")
	case e.isDir() && e.hash.IsZero(), e.isFile() && (e.size > 0) == e.hash.IsZero():
		r.fail("an entry without its content")
	case !knownKind(e.kind()):
		r.fail("an unknown type")
	}
}

func knownKind(k uint32) bool {
	switch k {
	case unix.S_IFREG, unix.S_IFDIR, unix.S_IFLNK, unix.S_IFIFO, unix.S_IFSOCK, unix.S_IFCHR, unix.S_IFBLK:
		return true
	}
	return false
}
