package files

import (
	"context"
	"strings"

	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/files/relpath"
)

// edits says what is at some paths; all others are as they were.
type edits struct {
	set  bool
	to   *entry // nil: nothing. A folder's hash is not looked at
	kids map[string]*edits
}

// at gives the edits' node for path, making it.
func (t *edits) at(path string) *edits {
	if path == "." {
		return t
	}
	for rest := path; rest != ""; {
		var name string
		name, rest = relpath.Cut(rest)
		k := t.kids[name]
		if k == nil {
			if t.kids == nil {
				t.kids = map[string]*edits{}
			}
			k = &edits{}
			t.kids[strings.Clone(name)] = k
		}
		t = k
	}
	return t
}

// put says what is at path.
func (t *edits) put(path string, e *entry) {
	k := t.at(path)
	k.set, k.to = true, e
}

// newest gathers what a chain, newest link first, leads to.
func newest(links []*link) *edits {
	t := &edits{}
	for _, l := range links {
		for i := len(l.records) - 1; i >= 0; i-- {
			if k := t.at(l.records[i].path); !k.set {
				k.set, k.to = true, l.records[i].after
			}
		}
	}
	return t
}

// resolve gives the manifest of the state that h, a link or a manifest, stands for.
func resolve(ctx context.Context, s *cas.Store, h snap.Hash) (*manifest, error) {
	links, base, err := chain(s, h)
	if err != nil {
		return nil, err
	}
	m, err := loadManifest(s, base)
	if err != nil || len(links) == 0 {
		return m, err
	}
	if m, err = m.edited(ctx, newest(links)); err != nil {
		return nil, err
	}
	m.at = h
	return m, nil
}

// edited gives the manifest that t makes of m. The two share what they know.
func (m *manifest) edited(ctx context.Context, t *edits) (*manifest, error) {
	ed := &editor{ctx: ctx, m: m}
	root, err := ed.entry(t, &m.root, "")
	if err != nil {
		return nil, err
	}
	if root == nil || !root.isDir() {
		return nil, damaged(m.hash, errManifest)
	}
	return newManifest(*root, m.folders), nil
}

// editor makes one manifest of another; folders that nothing is changed in are shared.
type editor struct {
	ctx context.Context
	m   *manifest
}

// entry gives what t makes of old, either of which may be nothing.
func (ed *editor) entry(t *edits, old *entry, name string) (*entry, error) {
	e := old
	if t.set {
		if e = t.to; e != nil {
			x := *e
			x.name = name
			e = &x
		}
	}
	if e == nil || !e.isDir() || len(t.kids) == 0 && isFolder(old) {
		if isFolder(e) && t.set {
			e.hash = old.hash
		}
		return e, ed.ctx.Err()
	}
	x := *e
	var err error
	x.hash, err = ed.folder(t, old)
	return &x, err
}

// folder makes a folder of old's entries and what t says of them.
func (ed *editor) folder(t *edits, old *entry) (snap.Hash, error) {
	have, err := entriesOf(ed.m, old)
	if err != nil {
		return snap.Hash{}, err
	}
	names := relpath.SortedKeys(t.kids)
	out := make([]entry, 0, len(have)+len(names))
	for len(have) > 0 || len(names) > 0 {
		if len(names) == 0 || len(have) > 0 && have[0].name < names[0] {
			out, have = append(out, have[0]), have[1:]
			continue
		}
		var was *entry
		name := names[0]
		names = names[1:]
		if len(have) > 0 && have[0].name == name {
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
	list := make([]*entry, len(out))
	for i := range out {
		list[i] = &out[i]
	}
	h := cas.NodeHash(encodeNode(sortFolder, list))
	ed.m.add(h, out)
	return h, nil
}
