package files

import (
	"context"
	"sync"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/files/inode"
	"mulligan/snap/files/relpath"
)

// node is one name of a tree in memory, on its way into a manifest.
type node struct {
	entry
	kids []*node // of a folder, sorted by name
	tie  string  // equal for the names of one file; "" when it has but one

	// Of what was read from disk: what it can be recognised by, and whether
	// nothing can have been written since without showing in it.
	id     inode.ID
	ctime  inode.Time
	nlink  uint32
	sure   bool
	sealed sealing // of a folder. Journal only
}

// sealing is what is known of a folder's hash.
type sealing uint8

const (
	unsealed sealing = iota // it is of entries that are no longer so
	hashed                  // it is that of the entries
	stored                  // and so are its node, and those below it, in the epoch that is being written
)

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
		n.setGroup("")
		if n.tie != "" {
			g := groups[n.tie]
			if g == nil {
				g = &group{first: path}
				groups[n.tie] = g
			}
			g.nodes = append(g.nodes, n)
		}
		for _, k := range n.kids {
			visit(k, relpath.Join(path, k.name))
		}
	}
	visit(root, ".")
	for _, g := range groups {
		for _, n := range g.nodes {
			if len(g.nodes) > 1 {
				n.setGroup(g.first)
			}
		}
	}
}

// seal sets the hashes of n and the folders below it, deepest first. b, where
// not nil, gets their nodes, and kept, where not nil, their entries by hash.
func (n *node) seal(b *cas.Batch, kept map[snap.Hash][]entry) error {
	if !n.isDir() {
		return nil
	}
	for _, k := range n.kids {
		if err := k.seal(b, kept); err != nil {
			return err
		}
	}
	data, refs := encodeNode(sortFolder, n.entries())
	if b == nil {
		n.hash = cas.NodeHash(data, refs)
	} else {
		h, err := b.Kin(folderName(n.name)).Node(data, refs)
		if err != nil {
			return err
		}
		n.hash = h
	}
	if kept != nil {
		kept[n.hash] = n.flat()
	}
	return nil
}

// entries are those of a folder.
func (n *node) entries() []*entry {
	list := make([]*entry, len(n.kids))
	for i, k := range n.kids {
		list[i] = &k.entry
	}
	return list
}

// flat is a copy of a folder's entries.
func (n *node) flat() []entry {
	list := make([]entry, len(n.kids))
	for i, k := range n.kids {
		list[i] = k.entry
	}
	return list
}

// manifest is a sealed tree: its top's hash, the workspace folder's entry, and
// its folders' entries. It need not be in the store: of a restore's ends most are
// there already, as links of the journal.
type manifest struct {
	hash snap.Hash
	root entry
	at   snap.Hash // the object in the store that it can be had from again: see resolve; zero: there is none
	*folders
}

// newManifest is a manifest in memory.
func newManifest(root entry, in *folders) *manifest {
	root.name = ""
	return &manifest{hash: cas.NodeHash(encodeNode(sortTop, []*entry{&root})), root: root, folders: in}
}

// folders gives folders' entries by their hashes. Several may ask.
type folders struct {
	store *cas.Store
	mu    sync.Mutex
	known map[snap.Hash][]entry // what was read, or is not stored
}

func newFolders(s *cas.Store, known map[snap.Hash][]entry) *folders {
	return &folders{store: s, known: known}
}

func (f *folders) folder(h snap.Hash) ([]entry, error) {
	f.mu.Lock()
	e, ok := f.known[h]
	f.mu.Unlock()
	if ok {
		return e, nil
	}
	e, err := loadEntries(f.store, sortFolder, h)
	if err == nil {
		f.add(h, e)
	}
	return e, err
}

func (f *folders) add(h snap.Hash, e []entry) {
	f.mu.Lock()
	f.known[h] = e
	f.mu.Unlock()
}

// sealTop seals a tree that was just read or made. b, where not nil, gets the manifest.
func sealTop(root *node, s *cas.Store, b *cas.Batch) (*manifest, error) {
	tieGroups(root)
	known := map[snap.Hash][]entry{}
	if err := root.seal(b, known); err != nil {
		return nil, err
	}
	m := newManifest(root.entry, newFolders(s, known))
	if b == nil {
		return m, nil
	}
	return m, m.save(b)
}

// loadManifest opens the stored manifest whose top is h.
func loadManifest(s *cas.Store, h snap.Hash) (*manifest, error) {
	top, err := loadEntries(s, sortTop, h)
	if err != nil {
		return nil, err
	}
	if !top[0].isDir() {
		return nil, damaged(h, errManifest)
	}
	return &manifest{hash: h, root: top[0], at: h, folders: newFolders(s, map[snap.Hash][]entry{})}, nil
}

// save puts into b what the store does not hold of m.
func (m *manifest) save(b *cas.Batch) error {
	if err := m.saveFolder(b, &m.root); err != nil {
		return err
	}
	if _, err := b.Kin(folderName("")).Node(encodeNode(sortTop, []*entry{&m.root})); err != nil {
		return err
	}
	m.at = m.hash
	return nil
}

func (m *manifest) saveFolder(b *cas.Batch, e *entry) error {
	if b.Keep(e.hash) {
		return nil
	}
	entries, err := m.folder(e.hash)
	if err != nil {
		return err
	}
	list := make([]*entry, len(entries))
	for i := range entries {
		if list[i] = &entries[i]; list[i].isDir() {
			if err := m.saveFolder(b, list[i]); err != nil {
				return err
			}
		}
	}
	_, err = b.Kin(folderName(e.name)).Node(encodeNode(sortFolder, list))
	return err
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
		name, rest = relpath.Cut(rest)
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
		n := &node{entry: e, tie: e.group()}
		if !e.isDir() {
			return n, ctx.Err()
		}
		n.loose = x.loose[path]
		if n.loose {
			n.mtime = inode.Time{}
		}
		entries, err := m.folder(e.hash)
		if err != nil {
			return nil, err
		}
		for _, k := range entries {
			p := relpath.Join(path, k.name)
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
func (m *manifest) part(sc relpath.Scope) (snap.Hash, error) {
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
			err = n.seal(nil, nil)
		}
		if err != nil {
			return snap.Hash{}, err
		}
		n.name = p
		list = append(list, &n.entry)
	}
	return cas.NodeHash(encodeNode(sortList, list)), nil
}

// ungrouped loads e and what is below it, without hard-link groups.
func (m *manifest) ungrouped(e entry) (*node, error) {
	n := &node{entry: e}
	n.setGroup("")
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
