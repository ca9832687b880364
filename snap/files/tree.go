package files

import (
	"context"

	"mulligan/ipc/errs"
	"mulligan/snap"
	"mulligan/snap/cas"
)

// node is one name of a tree in memory, on its way into a manifest.
type node struct {
	entry
	kids []*node // of a folder, sorted by name
	tie  string  // equal for the names of one file; "" when it has but one

	// Of what was read from disk: what it can be recognised by, and whether
	// nothing can have been written since without showing in it.
	id    inode
	ctime instant
	sure  bool
	// sealed: the hash of this folder is that of its entries. Journal only.
	sealed bool
}

// tie gives every file that has several names in the tree its group: the path
// of the first of them. A file whose other names are elsewhere has none.
func tieGroups(root *node) {
	type group struct {
		first string
		nodes []*node
	}
	groups := map[string]*group{}
	var visit func(n *node, path string)
	visit = func(n *node, path string) {
		n.group = ""
		if n.tie != "" {
			g := groups[n.tie]
			if g == nil {
				g = &group{first: path}
				groups[n.tie] = g
			}
			g.nodes = append(g.nodes, n)
		}
		for _, k := range n.kids {
			visit(k, join(path, k.name))
		}
	}
	visit(root, ".")
	for _, g := range groups {
		for _, n := range g.nodes {
			if len(g.nodes) > 1 {
				n.group = g.first
			}
		}
	}
}

// seal puts the folders below n into s, deepest first, and sets their hashes.
// kept, where not nil, gets each folder's entries by its hash.
func (n *node) seal(s sink, kept map[snap.Hash][]entry) error {
	if !n.isDir() {
		return nil
	}
	entries := make([]*entry, len(n.kids))
	for i, k := range n.kids {
		if err := k.seal(s, kept); err != nil {
			return err
		}
		entries[i] = &k.entry
	}
	data, refs := encodeNode(sortFolder, entries)
	h, err := versions(s, folderName(n.name)).Node(data, refs)
	if err != nil {
		return err
	}
	n.hash = h
	if kept != nil {
		kept[h] = flat(entries)
	}
	return nil
}

func flat(entries []*entry) []entry {
	out := make([]entry, len(entries))
	for i, e := range entries {
		out[i] = *e
	}
	return out
}

// manifest is a sealed tree: its top's hash, the workspace folder's entry, and
// how to get at a folder's entries. It is for one goroutine.
type manifest struct {
	hash   snap.Hash
	root   entry
	folder func(snap.Hash) ([]entry, error)
}

// sealTop seals the whole tree.
func sealTop(root *node, s sink) (*manifest, error) {
	tieGroups(root)
	root.name = ""
	kept := map[snap.Hash][]entry{}
	if err := root.seal(s, kept); err != nil {
		return nil, err
	}
	data, refs := encodeNode(sortTop, []*entry{&root.entry})
	h, err := s.Node(data, refs)
	if err != nil {
		return nil, err
	}
	return &manifest{h, root.entry, func(h snap.Hash) ([]entry, error) {
		if e, ok := kept[h]; ok {
			return e, nil
		}
		return nil, errs.New(errs.Internal, "read tree", "no folder %s", h)
	}}, nil
}

// loadManifest opens the stored manifest whose top is h.
func loadManifest(s *cas.Store, h snap.Hash) (*manifest, error) {
	return loadKnowing(s, h, nil)
}

// loadKnowing is loadManifest for one some of whose folders may be known. What it
// loads is known then, too.
func loadKnowing(s *cas.Store, h snap.Hash, known map[snap.Hash][]entry) (*manifest, error) {
	if known == nil {
		known = map[snap.Hash][]entry{}
	}
	top, err := loadEntries(s, sortTop, h)
	if err != nil {
		return nil, err
	}
	if !top[0].isDir() {
		return nil, damaged(h, errManifest)
	}
	return &manifest{h, top[0], func(h snap.Hash) ([]entry, error) {
		if e, ok := known[h]; ok {
			return e, nil
		}
		e, err := loadEntries(s, sortFolder, h)
		if err == nil {
			known[h] = e
		}
		return e, err
	}}, nil
}

func loadEntries(s *cas.Store, sort byte, h snap.Hash) ([]entry, error) {
	data, refs, err := s.Node(h)
	if errs.KindOf(err) == errs.NotFound {
		return nil, damaged(h, err)
	}
	if err != nil {
		return nil, err
	}
	out, err := decodeNode(sort, data, refs)
	if err != nil {
		return nil, damaged(h, err)
	}
	return out, nil
}

func damaged(h snap.Hash, err error) error {
	return &errs.Error{Kind: errs.Corrupt, Op: "read manifest", Message: h.String(), Err: err,
		Hint: "use another checkpoint; this one's record of files is damaged"}
}

// find gives m's entry at path, or nil.
func (m *manifest) find(path string) (*entry, error) {
	e := &m.root
	if path == "." {
		return e, nil
	}
	for rest := path; rest != ""; {
		if !e.isDir() {
			return nil, nil
		}
		entries, err := m.folder(e.hash)
		if err != nil {
			return nil, err
		}
		var name string
		name, rest = cutPath(rest)
		if e = search(entries, name); e == nil {
			return nil, nil
		}
	}
	return e, nil
}

// without loads m into memory, less what x excludes.
func (m *manifest) without(ctx context.Context, x *excluder) (*node, error) {
	var load func(e entry, path string) (*node, error)
	load = func(e entry, path string) (*node, error) {
		n := &node{entry: e, tie: e.group}
		if !e.isDir() {
			return n, ctx.Err()
		}
		n.loose = x.loose[path]
		if n.loose {
			n.mtime = instant{}
		}
		entries, err := m.folder(e.hash)
		if err != nil {
			return nil, err
		}
		for _, k := range entries {
			p := join(path, k.name)
			if x.excludes(p, k.kind() == dirKind) {
				continue
			}
			kid, err := load(k, p)
			if err != nil {
				return nil, err
			}
			n.kids = append(n.kids, kid)
		}
		return n, nil
	}
	return load(m.root, ".")
}

// part is the hash of what m has in the scope: the top's for all of it, else
// that of a list of the scope's paths, in which hard-link groups don't count.
func (m *manifest) part(s sink, sc scope) (snap.Hash, error) {
	if len(sc) == 0 {
		return m.hash, nil
	}
	var list []*entry
	for _, p := range sc {
		e, err := m.find(p)
		if err != nil {
			return snap.Hash{}, err
		}
		if e == nil {
			continue
		}
		n, err := m.ungrouped(*e)
		if err == nil {
			err = n.seal(s, nil)
		}
		if err != nil {
			return snap.Hash{}, err
		}
		n.name = p
		list = append(list, &n.entry)
	}
	data, refs := encodeNode(sortList, list)
	return s.Node(data, refs)
}

// ungrouped loads e and what is below it, without hard-link groups.
func (m *manifest) ungrouped(e entry) (*node, error) {
	n := &node{entry: e}
	n.group = ""
	if !e.isDir() {
		return n, nil
	}
	entries, err := m.folder(e.hash)
	if err != nil {
		return nil, err
	}
	for _, k := range entries {
		kid, err := m.ungrouped(k)
		if err != nil {
			return nil, err
		}
		n.kids = append(n.kids, kid)
	}
	return n, nil
}
