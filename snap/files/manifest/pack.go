package manifest

import (
	"encoding/binary"
	"slices"
	"strings"
	"sync"

	"mulligan/snap"
	"mulligan/snap/files/inode"
)

// packed holds entries of a folder in about a quarter of the memory of their nodes: a folder's files rest in it until one of them
// changes. Folders, mount points and files with several names are not packed: they are changed one by one, and few.
type packed struct {
	data   []byte
	starts []uint32 // where the entries begin in data, in the order of their names
}

// packMost bounds the entries of a folder that is packed, because each change in it unpacks all of them.
const packMost = 4096

func packable(n *Node) bool {
	return !n.IsDir() && !n.Mount && n.LinkKey == "" && n.Group() == "" && n.Nlink <= 1
}

// Pack packs the entries of n, which must be changed no more before they are unpacked.
func (n *Node) Pack() {
	if n.packed != nil || len(n.children) > packMost || !slices.ContainsFunc(n.children, packable) {
		return
	}
	p := &packed{}
	var data []byte
	var kept []*Node
	for _, k := range n.children {
		if !packable(k) {
			kept = append(kept, k)
			continue
		}
		p.starts = append(p.starts, uint32(len(data)))
		data = k.appendPacked(data)
	}
	p.data, p.starts = slices.Clip(slices.Clone(data)), slices.Clip(p.starts)
	n.packed, n.children = p, kept
}

// Unpack makes all entries of n nodes that may be changed. It reports whether some were packed.
func (n *Node) Unpack() bool {
	if n.packed == nil {
		return false
	}
	n.children, n.packed = n.Children(), nil
	return true
}

// Children returns the entries of a folder, sorted by name. Those that are packed are copies, whose changes are lost.
func (n *Node) Children() []*Node {
	if n.packed == nil {
		return n.children
	}
	fresh := make([]Node, len(n.packed.starts))
	all := make([]*Node, 0, len(fresh)+len(n.children))
	rest := n.children
	for i := range fresh {
		k := &fresh[i]
		n.packed.get(i, k)
		for len(rest) > 0 && rest[0].Name < k.Name {
			all, rest = append(all, rest[0]), rest[1:]
		}
		all = append(all, k)
	}
	return append(all, rest...)
}

// yielded has nodes for packed entries that All yields. A look at a whole tree would otherwise leave one per folder to the collector.
var yielded = sync.Pool{New: func() any { return &Node{} }}

// All yields the entries of a folder in the order of their names. It makes no node for each packed one, as Children does: such an
// entry is a copy that is valid until the next one is yielded.
func (n *Node) All(yield func(*Node) bool) {
	rest := n.children
	if n.packed != nil {
		k := yielded.Get().(*Node)
		defer yielded.Put(k)
		for i := range n.packed.starts {
			*k = Node{}
			n.packed.get(i, k)
			for len(rest) > 0 && rest[0].Name < k.Name {
				if !yield(rest[0]) {
					return
				}
				rest = rest[1:]
			}
			if !yield(k) {
				return
			}
		}
	}
	for _, k := range rest {
		if !yield(k) {
			return
		}
	}
}

// Folders yields the folders among the entries of n. They are never copies.
func (n *Node) Folders(yield func(*Node) bool) {
	for _, k := range n.children {
		if k.IsDir() && !yield(k) {
			return
		}
	}
}

// Child returns the entry of that name, or nil. A packed entry is a copy, whose changes are lost.
func (n *Node) Child(name string) *Node {
	if i, ok := n.place(name); ok {
		return n.children[i]
	}
	if n.packed == nil {
		return nil
	}
	i, ok := n.packed.find(name)
	if !ok {
		return nil
	}
	k := &Node{}
	n.packed.get(i, k)
	return k
}

// place returns the index at which the entry of that name is among those that are not packed, or would be.
func (n *Node) place(name string) (int, bool) {
	return slices.BinarySearchFunc(n.children, name, func(k *Node, s string) int { return strings.Compare(k.Name, s) })
}

// SetChildren replaces all entries of n by list, which is sorted by name.
func (n *Node) SetChildren(list []*Node) { n.children, n.packed = list, nil }

// Put makes k an entry of n, in the place of one of that name if there is one. n must not be packed.
func (n *Node) Put(k *Node) {
	if i, ok := n.place(k.Name); ok {
		n.children[i] = k
	} else {
		n.children = slices.Insert(n.children, i, k)
	}
}

// Remove removes the entry of that name, if there is one. n must not be packed.
func (n *Node) Remove(name string) {
	if i, ok := n.place(name); ok {
		n.children = slices.Delete(n.children, i, i+1)
	}
}

// Become copies everything but the entries of a folder from other.
func (n *Node) Become(other *Node) {
	children, packed := n.children, n.packed
	*n = *other
	n.children, n.packed = children, packed
}

// The first byte after a packed entry and its hash: what of the node is the usual.
const (
	isSure      = 1 << iota
	changedThen // the ctime is the mtime
)

func (n *Node) appendPacked(b []byte) []byte {
	b = n.Entry.Append(b)
	if !n.Hash.IsZero() {
		b = append(b, n.Hash[:]...)
	}
	var how byte
	if n.Sure {
		how |= isSure
	}
	if n.Ctime == n.Mtime {
		how |= changedThen
	}
	b = append(b, how)
	if n.Ctime != n.Mtime {
		b = binary.AppendVarint(b, n.Ctime.Sec)
		b = binary.AppendUvarint(b, uint64(n.Ctime.Nsec))
	}
	b = binary.AppendUvarint(b, n.ID.Dev)
	b = binary.AppendUvarint(b, n.ID.Ino)
	return binary.AppendUvarint(b, uint64(n.Nlink))
}

// get copies entry i into n. The bytes are this process's own: what cannot be decoded is a fault of the program.
func (p *packed) get(i int, n *Node) {
	end := len(p.data)
	if i+1 < len(p.starts) {
		end = int(p.starts[i+1])
	}
	r := Decoder{Rest: p.data[p.starts[i]:end]}
	if f := r.Fields(&n.Entry); f&hasHash != 0 {
		n.Hash = r.Digest()
	} else {
		n.Hash = snap.Hash{}
	}
	how := r.Byte()
	n.Sure = how&isSure != 0
	if n.Ctime = n.Mtime; how&changedThen == 0 {
		n.Ctime = inode.Time{Sec: r.Varint(), Nsec: r.Uint32()}
	}
	n.ID = inode.ID{Dev: r.Uvarint(), Ino: r.Uvarint()}
	n.Nlink = r.Uint32()
	if r.Err != nil || len(r.Rest) > 0 {
		panic("a packed entry cannot be unpacked")
	}
}

func (p *packed) find(name string) (int, bool) {
	return slices.BinarySearchFunc(p.starts, name, func(start uint32, name string) int {
		size, n := binary.Uvarint(p.data[start:])
		at := int(start) + n
		return strings.Compare(string(p.data[at:at+int(size)]), name)
	})
}
