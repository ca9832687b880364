package manifest

import (
	"cmp"
	"slices"
	"sync"

	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/files/inode"
	"mulligan/snap/files/parallel"
	"mulligan/snap/files/relpath"
)

// Node is an entry of a tree in memory that becomes a manifest.
type Node struct {
	Entry
	LinkKey string // equal for all names of one file; "" if it has only one

	children []*Node // of a folder, sorted by name: those that are not packed
	packed   *packed // the others; nil: none

	// The following fields are set for entries that were read from disk. They identify the file. Sure means that every write since
	// the reading changes the stat.
	ID        inode.ID
	Ctime     inode.Time
	Nlink     uint32
	Sure      bool
	HashState HashState // of a folder. Only the journal uses it
}

// Single reports whether n is of a file, or another thing but a folder, that had one name only when it was read.
func (n *Node) Single() bool { return n.LinkKey == "" && !n.IsDir() && !n.Mount }

// Unchanged reports whether st is the stat of the file or folder that n was read from, and shows no change.
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

// HashState says whether a folder's hash is current and stored.
type HashState uint8

const (
	Outdated HashState = iota // the entries have changed since the hash was computed
	Hashed                    // the hash is that of the entries
	Stored                    // also, its node and those below it are stored in the epoch that is being written
)

// Unify gives all of nodes, which are names of one file, the newest state that was read through any of them: a write through one name between
// two readings is one to all. It reports whether the states differed. Then no node is Sure, as the clock may have been set back.
func Unify(nodes []*Node) (differed bool) {
	newest := slices.MaxFunc(nodes, func(a, b *Node) int { return cmp.Compare(a.Ctime.Nanos(), b.Ctime.Nanos()) })
	for _, n := range nodes {
		differed = differed || n.Ctime != newest.Ctime || !n.SameMeta(&newest.Entry) || !n.SameBody(&newest.Entry)
	}
	if !differed {
		return false
	}
	for _, n := range nodes {
		name, group := n.Name, n.Group()
		n.Entry, n.Ctime, n.Nlink, n.Sure = newest.Entry, newest.Ctime, newest.Nlink, false
		n.Name = name
		n.SetGroup(group)
	}
	return true
}

// AssignGroups sets the hard-link group of every file that has several names in the tree to the first of these paths, and unifies these
// names. A file whose other names are outside of the tree has no group.
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
		for _, k := range n.children { // a packed entry has no other name
			visit(k, relpath.Join(path, k.Name))
		}
	}
	visit(root, ".")
	for _, g := range groups {
		if len(g.nodes) == 1 {
			continue
		}
		Unify(g.nodes)
		for _, n := range g.nodes {
			n.SetGroup(g.first)
		}
	}
}

// Seal sets the hashes of n and of the folders below it, deepest first. It adds their nodes to b unless b is nil, and their
// entries to kept, by hash, unless kept is nil.
func (n *Node) Seal(b *cas.Batch, kept map[snap.Hash][]Entry) error {
	if !n.IsDir() {
		return nil
	}
	var mu sync.Mutex // of kept
	for _, level := range slices.Backward(n.Levels(func(*Node) bool { return true })) {
		err := parallel.InRuns(len(level), func() (func(int) error, func()) {
			return func(i int) error { return level[i].seal(b, kept, &mu) }, func() {}
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Levels returns n and the folders below it, by their depth. A folder that want refuses is left out, with all that is below it.
func (n *Node) Levels(want func(*Node) bool) (levels [][]*Node) {
	var visit func(n *Node, depth int)
	visit = func(n *Node, depth int) {
		if !want(n) {
			return
		}
		if depth == len(levels) {
			levels = append(levels, nil)
		}
		levels[depth] = append(levels[depth], n)
		for k := range n.Folders {
			visit(k, depth+1)
		}
	}
	visit(n, 0)
	return levels
}

// seal does the work of Seal for one folder, after those below it.
func (n *Node) seal(b *cas.Batch, kept map[snap.Hash][]Entry, mu *sync.Mutex) error {
	entries := n.Entries()
	data, refs := EncodeNode(SortFolder, entries)
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
		copies := Copies(entries)
		mu.Lock()
		kept[n.Hash] = copies
		mu.Unlock()
	}
	return nil
}

// Entries returns pointers to the entries of a folder.
func (n *Node) Entries() []*Entry {
	children := n.Children()
	list := make([]*Entry, len(children))
	for i, k := range children {
		list[i] = &k.Entry
	}
	return list
}

// Copies returns copies of entries.
func Copies(entries []*Entry) []Entry {
	list := make([]Entry, len(entries))
	for i, e := range entries {
		list[i] = *e
	}
	return list
}
