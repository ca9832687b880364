package manifest

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"mulligan/snap"
	"mulligan/snap/files/inode"
	"mulligan/snap/files/relpath"
)

// A manifest is a Merkle tree of nodes in the content store. A node's bytes begin with a version and the node's sort. They
// contain no hashes: the hashes are the node's references, in the order of the entries or pieces that they belong to.
//
//	top:    version 't' entry                the workspace folder itself; 1 reference
//	folder: version 'd' count entry*         sorted by the names' bytes, none twice
//	list:   version 'l' count entry*         the same with paths for names
//	large:  version 'c' size bits            a file in pieces; a set bit is a piece
//	                                         that is a reference, a clear one is all zeros
//
// entry: name mode uid gid mtime(sec, nsec) flags, then the fields that the flags announce, in the order of the flags. Numbers
// are varints (zig-zag for seconds), and strings are preceded by their length.
const Version = 1

const (
	SortTop    = 't'
	SortFolder = 'd'
	sortList   = 'l'
	sortLarge  = 'c'
	SortPlan   = 'p'
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

// ErrFormat means that an object is not encoded as this version does.
var ErrFormat = errors.New("not a manifest of this version")

func (e *Entry) flags() (f uint64) {
	odd := e.odds()
	for _, x := range []struct {
		on  bool
		bit uint64
	}{
		{e.Size != 0, hasSize}, {odd.rdev != 0, hasRdev}, {odd.link != "", hasLink}, {odd.group != "", hasGroup},
		{len(odd.xattrs) > 0, hasXattrs}, {!e.Hash.IsZero(), hasHash}, {e.Mount, isMount}, {e.Loose, isLoose},
	} {
		if x.on {
			f |= x.bit
		}
	}
	return f
}

// EncodeNode returns the bytes and the references of a node.
func EncodeNode(sort byte, entries []*Entry) (data []byte, refs []snap.Hash) {
	data = make([]byte, 0, 16+48*len(entries))
	data = append(data, Version, sort)
	if sort != SortTop {
		data = binary.AppendUvarint(data, uint64(len(entries)))
	}
	for _, e := range entries {
		data = e.Append(data)
		if !e.Hash.IsZero() {
			refs = append(refs, e.Hash)
		}
	}
	return data, refs
}

// Append appends the encoding of e, without its hash, to b.
func (e *Entry) Append(b []byte) []byte {
	f := e.flags()
	b = AppendString(b, e.Name)
	for _, v := range []uint32{e.Mode, e.Uid, e.Gid} {
		b = binary.AppendUvarint(b, uint64(v))
	}
	b = binary.AppendVarint(b, e.Mtime.Sec)
	b = binary.AppendUvarint(b, uint64(e.Mtime.Nsec))
	b = binary.AppendUvarint(b, f)
	if f&hasSize != 0 {
		b = binary.AppendUvarint(b, uint64(e.Size))
	}
	if f&hasRdev != 0 {
		b = binary.AppendUvarint(b, e.Rdev())
	}
	if f&hasLink != 0 {
		b = AppendString(b, e.Link())
	}
	if f&hasGroup != 0 {
		b = AppendString(b, e.Group())
	}
	if f&hasXattrs != 0 {
		b = binary.AppendUvarint(b, uint64(len(e.Xattrs())))
		for _, x := range e.Xattrs() {
			b = AppendString(AppendString(b, x.Name), x.Value)
		}
	}
	return b
}

func AppendString(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// decodeNode is the inverse of EncodeNode. It accepts nothing that EncodeNode would encode to other bytes.
func decodeNode(sort byte, data []byte, refs []snap.Hash) ([]Entry, error) {
	r := Decoder{Rest: data, Refs: refs}
	if r.Byte() != Version || r.Byte() != sort {
		return nil, ErrFormat
	}
	n := uint64(1)
	if sort != SortTop {
		n = r.Uvarint()
	}
	if n > uint64(len(data)) {
		return nil, fmt.Errorf("a node of %d bytes claims %d entries", len(data), n)
	}
	out := make([]Entry, n)
	for i := range out {
		r.entry(&out[i])
		if r.Err == nil && !wellNamed(sort, out[i].Name) {
			r.Fail("a name that no folder can hold")
		}
		if r.Err == nil && i > 0 && out[i-1].Name >= out[i].Name {
			r.Fail("names out of order")
		}
		if r.Err != nil {
			return nil, r.Err
		}
	}
	if len(r.Rest) > 0 || len(r.Refs) > 0 {
		r.Fail("more than its entries")
	}
	return out, r.Err
}

// wellNamed reports whether a node of that sort may have an entry with that name. Such a name never refers to a place outside
// of its folder.
func wellNamed(sort byte, name string) bool {
	if sort == SortTop {
		return name == ""
	}
	if sort == sortList {
		return name == "." || relpath.Valid(name)
	}
	return relpath.ValidName(name)
}

// Decoder decodes a node. After the first error, its methods return zeros.
type Decoder struct {
	Rest []byte
	Refs []snap.Hash
	Err  error
}

// Fail sets the error, unless one is set, and ends the decoding.
func (r *Decoder) Fail(what string) {
	if r.Err == nil {
		r.Err = fmt.Errorf("%w: %s", ErrFormat, what)
	}
	r.Rest = nil
}

func (r *Decoder) Byte() byte {
	if len(r.Rest) == 0 {
		r.Fail("too short")
		return 0
	}
	c := r.Rest[0]
	r.Rest = r.Rest[1:]
	return c
}

func (r *Decoder) Uvarint() uint64 {
	v, n := binary.Uvarint(r.Rest)
	if n <= 0 || n > 1 && r.Rest[n-1] == 0 { // every number has only one valid encoding
		r.Fail("a broken number")
		return 0
	}
	r.Rest = r.Rest[n:]
	return v
}

func (r *Decoder) Varint() int64 {
	u := r.Uvarint()
	return int64(u>>1) ^ -int64(u&1)
}

func (r *Decoder) Uint32() uint32 {
	v := r.Uvarint()
	if v > 1<<32-1 {
		r.Fail("a number out of range")
	}
	return uint32(v)
}

func (r *Decoder) String() string {
	n := r.Uvarint()
	if n > uint64(len(r.Rest)) {
		r.Fail("a string longer than the node")
		return ""
	}
	s := string(r.Rest[:n])
	r.Rest = r.Rest[n:]
	return s
}

// Digest decodes a hash that is among the bytes.
func (r *Decoder) Digest() (h snap.Hash) {
	if len(r.Rest) < len(h) {
		r.Fail("too short")
		return h
	}
	r.Rest = r.Rest[copy(h[:], r.Rest):]
	return h
}

// entry decodes an entry, and takes its hash from the references.
func (r *Decoder) entry(e *Entry) {
	f := r.Fields(e)
	if f&hasHash != 0 {
		if len(r.Refs) == 0 || r.Refs[0].IsZero() {
			r.Fail("a reference is missing")
			return
		}
		e.Hash, r.Refs = r.Refs[0], r.Refs[1:]
	}
	r.checkEntry(e, f)
}

// Fields decodes an entry without its hash, and returns its flags.
func (r *Decoder) Fields(e *Entry) (f uint64) {
	e.Name = r.String()
	e.Mode, e.Uid, e.Gid = r.Uint32(), r.Uint32(), r.Uint32()
	e.Mtime = inode.Time{Sec: r.Varint(), Nsec: r.Uint32()}
	f = r.Uvarint()
	if f > allFlags {
		r.Fail("unknown flags")
	}
	if f&hasSize != 0 {
		e.Size = int64(r.Uvarint())
	}
	var odd rare
	if f&hasRdev != 0 {
		odd.rdev = r.Uvarint()
	}
	if f&hasLink != 0 {
		odd.link = r.String()
	}
	if f&hasGroup != 0 {
		odd.group = r.String()
	}
	if f&hasXattrs != 0 {
		odd.xattrs = r.xattrs()
	}
	e.set(func(r *rare) { *r = odd })
	e.Mount, e.Loose = f&isMount != 0, f&isLoose != 0
	return f
}

func (r *Decoder) xattrs() (list []inode.Xattr) {
	n := r.Uvarint()
	if n > uint64(len(r.Rest)) {
		r.Fail("more attributes than the node has bytes")
		return nil
	}
	for range n {
		x := inode.Xattr{Name: r.String(), Value: r.String()}
		if k := len(list); k > 0 && list[k-1].Name >= x.Name {
			r.Fail("attributes out of order")
		}
		list = append(list, x)
	}
	return list
}

// checkEntry fails for an entry that EncodeNode never writes.
func (r *Decoder) checkEntry(e *Entry, f uint64) {
	switch {
	case e.flags() != f:
		r.Fail("an announced field is empty")
	case e.Size < 0 || e.Mtime.Nsec >= 1e9:
		r.Fail("a number out of range")
	case e.Group() != "" && !relpath.Valid(e.Group()):
		r.Fail("a hard-link group that is no path")
	case e.IsDir() && e.Hash.IsZero(), e.IsFile() && (e.Size > 0) == e.Hash.IsZero():
		r.Fail("an entry without its content")
	case !knownKind(e.Kind()):
		r.Fail("an unknown type")
	}
}

func knownKind(k uint32) bool {
	switch k {
	case unix.S_IFREG, unix.S_IFDIR, unix.S_IFLNK, unix.S_IFIFO, unix.S_IFSOCK, unix.S_IFCHR, unix.S_IFBLK:
		return true
	}
	return false
}

// Bare decodes an entry that has no name and, if it is a folder, no hash.
func (r *Decoder) Bare(e *Entry) {
	f := r.Fields(e)
	if f&hasHash != 0 {
		if len(r.Refs) == 0 || r.Refs[0].IsZero() {
			r.Fail("a reference is missing")
			return
		}
		e.Hash, r.Refs = r.Refs[0], r.Refs[1:]
	}
	if e.Name != "" || e.IsDir() && f&hasHash != 0 {
		r.Fail("a record with a name or a folder's content")
		return
	}
	if e.IsDir() {
		e.Hash = snap.Hash{1} // checkEntry requires a hash of a folder
		r.checkEntry(e, f|hasHash)
		e.Hash = snap.Hash{}
		return
	}
	r.checkEntry(e, f)
}

// Pairs calls do, in order, for each name in a or b, with the entries of that name. An entry is nil if the list lacks the name.
// a and b are sorted.
func Pairs(a, b []Entry, do func(name string, x, y *Entry) error) error {
	for len(a) > 0 || len(b) > 0 {
		var x, y *Entry
		var name string
		if len(b) == 0 || len(a) > 0 && a[0].Name <= b[0].Name {
			x = &a[0]
		}
		if len(a) == 0 || len(b) > 0 && b[0].Name <= a[0].Name {
			y = &b[0]
		}
		if x != nil {
			name, a = x.Name, a[1:]
		}
		if y != nil {
			name, b = y.Name, b[1:]
		}
		if err := do(name, x, y); err != nil {
			return err
		}
	}
	return nil
}

// EntriesOf returns the entries of the folder e of m, or nil if e is nil or no folder.
func EntriesOf(m *Manifest, e *Entry) ([]Entry, error) {
	if e == nil || !e.IsDir() {
		return nil, nil
	}
	return m.Folder(e.Hash)
}
