package manifest

import (
	"context"
	"strings"

	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/files/relpath"
)

// Edits says what is at some paths; all others are as they were.
type Edits struct {
	Set  bool
	To   *Entry // nil: nothing. A folder's hash is not looked at
	kids map[string]*Edits
}

// At gives the edits' node for path, making it.
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

// Put says what is at path.
func (t *Edits) Put(path string, e *Entry) {
	k := t.At(path)
	k.Set, k.To = true, e
}

// Edit gives the manifest that t makes of m. The two share what they know.
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

// editor makes one manifest of another; folders that nothing is changed in are shared.
type editor struct {
	ctx context.Context
	m   *Manifest
}

// entry gives what t makes of old, either of which may be nothing.
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

// folder makes a folder of old's entries and what t says of them.
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
