package manifest

import (
	"slices"
	"strings"

	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/files/inode"
	"mulligan/snap/files/relpath"
)

// Node is one name of a tree in memory, on its way into a manifest.
type Node struct {
	Entry
	Children []*Node // of a folder, sorted by name
	LinkKey  string  // equal for the names of one file; "" when it has but one

	// Of what was read from disk: what it can be recognised by, and whether
	// nothing can have been written since without showing in it.
	ID        inode.ID
	Ctime     inode.Time
	Nlink     uint32
	Sure      bool
	HashState HashState // of a folder. Journal only
}

// ChildIndex returns where the child of that name is, or would be, and whether it is there.
func (n *Node) ChildIndex(name string) (int, bool) {
	return slices.BinarySearchFunc(n.Children, name, func(k *Node, s string) int { return strings.Compare(k.Name, s) })
}

// Child returns the child of that name, or nil.
func (n *Node) Child(name string) *Node {
	if i, ok := n.ChildIndex(name); ok {
		return n.Children[i]
	}
	return nil
}

// Unchanged reports whether st is the stat of the very thing that n was read from, and shows no change.
func (n *Node) Unchanged(st inode.Stat) bool {
	if n.Mount || st.Mount {
		return n.Mount == st.Mount && n.Kind() == st.Kind()
	}
	size := n.Size
	if !n.IsFile() {
		size = st.Size
	}
	return n.ID == st.ID && n.Ctime == st.Ctime && n.Mode == st.Mode && (n.Mtime == st.Mtime || n.Loose) &&
		size == st.Size && n.Uid == st.Uid && n.Gid == st.Gid
}

// Recall copies n's content, target and attributes into e, whose stat is st. It reports false if n may be out of date.
func (n *Node) Recall(st inode.Stat, e *Entry) bool {
	if !n.Sure || !n.Unchanged(st) {
		return false
	}
	e.SetLink(n.Link())
	e.SetXattrs(n.Xattrs())
	e.Hash = n.Hash
	if n.IsDir() {
		e.Hash = snap.Hash{}
	}
	return true
}

// HashState is what is known of a folder's hash.
type HashState uint8

const (
	Outdated HashState = iota // it is of entries that are no longer so
	Hashed                    // it is that of the entries
	Stored                    // and so are its node, and those below it, in the epoch that is being written
)

// tie gives every file that has several names in the tree its group: the path
// of the first of them. A file whose other names are elsewhere has none.
func AssignGroups(root *Node) {
	type group struct {
		first string
		nodes []*Node
	}
	groups := map[string]*group{}
	var visit func(n *Node, path string)
	visit = func(n *Node, path string) {
		n.SetGroup("")
		if n.LinkKey != "" {
			g := groups[n.LinkKey]
			if g == nil {
				g = &group{first: path}
				groups[n.LinkKey] = g
			}
			g.nodes = append(g.nodes, n)
		}
		for _, k := range n.Children {
			visit(k, relpath.Join(path, k.Name))
		}
	}
	visit(root, ".")
	for _, g := range groups {
		for _, n := range g.nodes {
			if len(g.nodes) > 1 {
				n.SetGroup(g.first)
			}
		}
	}
}

// Seal sets the hashes of n and the folders below it, deepest first. b, where
// not nil, gets their nodes, and kept, where not nil, their entries by hash.
func (n *Node) Seal(b *cas.Batch, kept map[snap.Hash][]Entry) error {
	if !n.IsDir() {
		return nil
	}
	for _, k := range n.Children {
		if err := k.Seal(b, kept); err != nil {
			return err
		}
	}
	data, refs := EncodeNode(SortFolder, n.Entries())
	if b == nil {
		n.Hash = cas.NodeHash(data, refs)
	} else {
		h, err := b.Series(folderName(n.Name)).Node(data, refs)
		if err != nil {
			return err
		}
		n.Hash = h
	}
	if kept != nil {
		kept[n.Hash] = n.CopyEntries()
	}
	return nil
}

// Entries are those of a folder.
func (n *Node) Entries() []*Entry {
	list := make([]*Entry, len(n.Children))
	for i, k := range n.Children {
		list[i] = &k.Entry
	}
	return list
}

// CopyEntries is a copy of a folder's entries.
func (n *Node) CopyEntries() []Entry {
	list := make([]Entry, len(n.Children))
	for i, k := range n.Children {
		list[i] = k.Entry
	}
	return list
}
