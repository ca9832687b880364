// Package manifest records the state of a workspace as a Merkle tree of entries in the content store. It encodes and decodes
// the tree's nodes, finds entries by path, edits manifests, and hashes trees that were read. It does not access the workspace.
package manifest

import (
	"sync"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/files/relpath"
)

// Manifest is a tree whose folders are hashed: the top's hash, the entry of the workspace folder, and the entries of its
// folders. A manifest need not be in the store: most states that a restore begins or ends with are stored as links of the
// journal.
type Manifest struct {
	Hash   snap.Hash
	Root   Entry
	Source snap.Hash // the object in the store from which journal.Resolve makes this manifest; zero: none
	*Folders
}

// New returns the manifest of the workspace folder root. in has the folders below root.
func New(root Entry, in *Folders) *Manifest {
	root.Name = ""
	return &Manifest{Hash: cas.NodeHash(EncodeNode(SortTop, []*Entry{&root})), Root: root, Folders: in}
}

// Folders loads the entries of folders from the store by hash and keeps them. Safe for concurrent use.
type Folders struct {
	store *cas.Store
	mu    sync.Mutex
	known map[snap.Hash][]Entry // folders that were read, or are not stored
}

// NewFolders returns Folders that begin with the entries in known.
func NewFolders(s *cas.Store, known map[snap.Hash][]Entry) *Folders {
	return &Folders{store: s, known: known}
}

// Folder returns the entries of the folder with the hash h. The caller must not change them.
func (f *Folders) Folder(h snap.Hash) ([]Entry, error) {
	f.mu.Lock()
	e, ok := f.known[h]
	f.mu.Unlock()
	if ok {
		return e, nil
	}
	e, err := loadEntries(f.store, SortFolder, h)
	if err == nil {
		f.add(h, e)
	}
	return e, err
}

// Loaded returns the number of folders in memory.
func (f *Folders) Loaded() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.known)
}

func (f *Folders) add(h snap.Hash, e []Entry) {
	f.mu.Lock()
	f.known[h] = e
	f.mu.Unlock()
}

// SealTree hashes a tree that was just read or made, and returns its manifest. It adds the nodes to b, unless b is nil.
func SealTree(root *Node, s *cas.Store, b *cas.Batch) (*Manifest, error) {
	AssignGroups(root)
	known := map[snap.Hash][]Entry{}
	if err := root.Seal(b, known); err != nil {
		return nil, err
	}
	m := New(root.Entry, NewFolders(s, known))
	if b == nil {
		return m, nil
	}
	return m, m.Save(b)
}

// Load returns the stored manifest whose top has the hash h.
func Load(s *cas.Store, h snap.Hash) (*Manifest, error) {
	top, err := loadEntries(s, SortTop, h)
	if err != nil {
		return nil, err
	}
	if !top[0].IsDir() {
		return nil, Damaged(h, ErrFormat)
	}
	return &Manifest{Hash: h, Root: top[0], Source: h, Folders: NewFolders(s, map[snap.Hash][]Entry{})}, nil
}

// Save adds to b the nodes of m that the store lacks.
func (m *Manifest) Save(b *cas.Batch) error {
	if err := m.saveFolder(b, &m.Root); err != nil {
		return err
	}
	if _, err := b.Series(folderName("")).Node(EncodeNode(SortTop, []*Entry{&m.Root})); err != nil {
		return err
	}
	m.Source = m.Hash
	return nil
}

func (m *Manifest) saveFolder(b *cas.Batch, e *Entry) error {
	if b.Keep(e.Hash) {
		return nil
	}
	entries, err := m.Folder(e.Hash)
	if err != nil {
		return err
	}
	list := make([]*Entry, len(entries))
	for i := range entries {
		if list[i] = &entries[i]; list[i].IsDir() {
			if err := m.saveFolder(b, list[i]); err != nil {
				return err
			}
		}
	}
	_, err = b.Series(folderName(e.Name)).Node(EncodeNode(SortFolder, list))
	return err
}

func loadEntries(s *cas.Store, sort byte, h snap.Hash) ([]Entry, error) {
	data, refs, err := s.Node(h)
	if errs.KindOf(err) == errs.NotFound {
		return nil, Damaged(h, err)
	}
	if err != nil {
		return nil, err
	}
	out, err := decodeNode(sort, data, refs)
	if err != nil {
		return nil, Damaged(h, err)
	}
	return out, nil
}

// Damaged returns an error of kind errs.Corrupt for the object h.
func Damaged(h snap.Hash, err error) error {
	return &errs.Error{Kind: errs.Corrupt, Op: "read manifest", Message: h.String(), Err: err,
		Hint: "use another checkpoint; this one's record of files is damaged"}
}

// Find returns the entry at path, or nil if there is none.
func (m *Manifest) Find(path string) (*Entry, error) {
	e := &m.Root
	if path == "." {
		return e, nil
	}
	for rest := path; rest != ""; {
		if !e.IsDir() {
			return nil, nil
		}
		entries, err := m.Folder(e.Hash)
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

// PartHash returns the hash of the part of m in the scope. For the whole workspace this is the top's hash, and otherwise the
// hash of a list of the scope's paths, which ignores hard-link groups.
func (m *Manifest) PartHash(sc relpath.Scope) (snap.Hash, error) {
	if len(sc) == 0 {
		return m.Hash, nil
	}
	var list []*Entry
	for _, p := range sc {
		e, err := m.Find(p)
		if err != nil {
			return snap.Hash{}, err
		}
		if e == nil {
			continue
		}
		n, err := m.ungrouped(*e)
		if err == nil {
			err = n.Seal(nil, nil)
		}
		if err != nil {
			return snap.Hash{}, err
		}
		n.Name = p
		list = append(list, &n.Entry)
	}
	return cas.NodeHash(EncodeNode(sortList, list)), nil
}

// ungrouped loads e and everything below it, without hard-link groups.
func (m *Manifest) ungrouped(e Entry) (*Node, error) {
	n := &Node{Entry: e}
	n.SetGroup("")
	if !e.IsDir() {
		return n, nil
	}
	entries, err := m.Folder(e.Hash)
	if err != nil {
		return nil, err
	}
	for _, k := range entries {
		kid, err := m.ungrouped(k)
		if err != nil {
			return nil, err
		}
		n.children = append(n.children, kid)
	}
	return n, nil
}
