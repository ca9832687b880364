package manifest

import (
	"context"
	"strings"

	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/files/relpath"
)

// Edits is a tree of the paths that an edit sets. All other paths stay as they are.
type Edits struct {
	Set  bool
	To   *Entry // the new entry; nil removes it. A folder's hash is ignored
	kids map[string]*Edits
}

// At returns the node of t for path, and makes it if it is missing.
func (t *Edits) At(path string) *Edits {
	if path == "." {
		return t
	}
	for rest := path; rest != ""; {
		var name string
		name, rest = relpath.Cut(rest)
		k := t.kids[name]
		if k == nil {
			if t.kids == nil {
				t.kids = map[string]*Edits{}
			}
			k = &Edits{}
			t.kids[strings.Clone(name)] = k
		}
		t = k
	}
	return t
}

// Put sets the entry at path to e. A nil e removes it.
func (t *Edits) Put(path string, e *Entry) {
	k := t.At(path)
	k.Set, k.To = true, e
}

// Edit returns the manifest that results from m and the edits t. Both share the folders that are in memory.
func (m *Manifest) Edit(ctx context.Context, t *Edits) (*Manifest, error) {
	ed := &editor{ctx: ctx, m: m}
	root, err := ed.entry(t, &m.Root, "")
	if err != nil {
		return nil, err
	}
	if root == nil || !root.IsDir() {
		return nil, Damaged(m.Hash, ErrFormat)
	}
	return New(*root, m.Folders), nil
}

// editor makes a manifest from another one. Unchanged folders are shared.
type editor struct {
	ctx context.Context
	m   *Manifest
}

// entry returns the result of the edits t for the entry old. Both old and the result may be nil.
func (ed *editor) entry(t *Edits, old *Entry, name string) (*Entry, error) {
	e := old
	if t.Set {
		if e = t.To; e != nil {
			x := *e
			x.Name = name
			e = &x
		}
	}
	if e == nil || !e.IsDir() || len(t.kids) == 0 && IsFolder(old) {
		if IsFolder(e) && t.Set {
			e.Hash = old.Hash
		}
		return e, ed.ctx.Err()
	}
	x := *e
	var err error
	x.Hash, err = ed.folder(t, old)
	return &x, err
}

// folder makes the folder that results from old's entries and the edits t, and returns its hash.
func (ed *editor) folder(t *Edits, old *Entry) (snap.Hash, error) {
	have, err := EntriesOf(ed.m, old)
	if err != nil {
		return snap.Hash{}, err
	}
	names := relpath.SortedKeys(t.kids)
	out := make([]Entry, 0, len(have)+len(names))
	for len(have) > 0 || len(names) > 0 {
		if len(names) == 0 || len(have) > 0 && have[0].Name < names[0] {
			out, have = append(out, have[0]), have[1:]
			continue
		}
		var was *Entry
		name := names[0]
		names = names[1:]
		if len(have) > 0 && have[0].Name == name {
			was, have = &have[0], have[1:]
		}
		e, err := ed.entry(t.kids[name], was, name)
		if err != nil {
			return snap.Hash{}, err
		}
		if e != nil {
			out = append(out, *e)
		}
	}
	list := make([]*Entry, len(out))
	for i := range out {
		list[i] = &out[i]
	}
	h := cas.NodeHash(EncodeNode(SortFolder, list))
	ed.m.add(h, out)
	return h, nil
}
