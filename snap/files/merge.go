package files

import (
	"slices"
	"strings"

	"mulligan/snap/files/relpath"
)

// find is what looking at one path told.
type find struct {
	path string
	node *node // nil: nothing is there
	deep bool  // node is a folder read whole, else only its own entry was
}

// shallow reports whether the find is a folder's own entry, and no more of what is in it.
func (f *find) shallow() bool { return f.node != nil && f.node.isDir() && !f.deep }

// merge takes finds into the tree and keeps account of what that changes.
type merge struct {
	l       *live
	skipped map[string]error // paths that could not be read: they stay as they are
	records []record
	undo    []func()        // takes the tree back, last first
	tied    map[string]bool // ties whose names, or contents, may have changed
	left    []*node         // what was taken out, with what was below it
}

// apply takes one find in. Its folder must be known.
func (m *merge) apply(f find) {
	if f.path == "." {
		m.pair(nil, f.path, m.l.root, f.node, f.deep)
		return
	}
	dir, name := relpath.Split(f.path)
	in := m.l.find(dir)
	if in == nil || !in.isDir() {
		return // its folder went meanwhile, with everything in it
	}
	m.pair(in, f.path, in.kid(name), f.node, f.deep)
}

// pair makes of old, the kid of in at path, what new says.
func (m *merge) pair(in *node, path string, old, new *node, deep bool) {
	if _, ok := m.skipped[path]; ok {
		return
	}
	switch {
	case old == nil && new == nil:
	case new == nil:
		m.gone(path, old)
		m.unlink(in, path, old)
	case old == nil:
		m.link(in, path, new)
		m.came(path, new)
	case old.isDir() && new.isDir():
		if deep {
			m.names(path, old, new)
		}
		m.change(path, old, new)
	default:
		if old.isDir() {
			for _, k := range old.kids {
				m.gone(relpath.Join(path, k.name), k)
			}
		}
		m.replace(in, path, old, new)
	}
}

// names compares the kids of two folders.
func (m *merge) names(path string, old, new *node) {
	was, is := slices.Clone(old.kids), new.kids
	for len(was) > 0 || len(is) > 0 {
		var a, b *node
		if len(is) == 0 || len(was) > 0 && was[0].name <= is[0].name {
			a = was[0]
		}
		if len(was) == 0 || len(is) > 0 && is[0].name <= was[0].name {
			b = is[0]
		}
		name := ""
		if a != nil {
			name, was = a.name, was[1:]
		}
		if b != nil {
			name, is = b.name, is[1:]
		}
		m.pair(old, relpath.Join(path, name), a, b, true)
	}
}

// change gives the node that stays new's entry.
func (m *merge) change(path string, old, new *node) {
	before := *old
	fresh := new.entry
	fresh.hash = old.hash
	fresh.setGroup(old.group())
	fresh.name = old.name
	same := old.entry.sameMeta(&fresh) && old.entry.sameBody(&fresh)
	old.entry, old.id, old.ctime, old.sure = fresh, new.id, new.ctime, new.sure
	m.undo = append(m.undo, func() {
		kids := old.kids
		*old = before
		old.kids, old.sealed = kids, unsealed
	})
	if !same {
		m.record(path, &before.entry, &old.entry)
		if path != "." {
			m.unseal(path)
		}
	}
}

// replace puts new in the place of old, both not folders, or one of them not.
func (m *merge) replace(in *node, path string, old, new *node) {
	m.prune(path, new)
	new.setGroup("")
	if new.tie == old.tie && new.tie != "" {
		new.setGroup(old.group()) // regroup looks at it again
	}
	if !old.isDir() && old.tie == new.tie && old.entry.equal(&new.entry) {
		old.id, old.ctime, old.nlink, old.sure = new.id, new.ctime, new.nlink, new.sure
		return
	}
	i, _ := in.index(old.name)
	in.kids[i] = new
	m.left = append(m.left, old)
	m.l.leave(path, old)
	m.l.enter(path, new)
	m.note(old.tie)
	m.note(new.tie)
	m.undo = append(m.undo, func() {
		m.l.leave(path, new)
		m.l.enter(path, old)
		i, _ := in.index(old.name)
		in.kids[i] = old
	})
	if old.isDir() || !old.entry.equal(&new.entry) {
		m.record(path, &old.entry, &new.entry)
		m.unseal(path)
	}
	for _, k := range new.kids {
		m.came(relpath.Join(path, k.name), k)
	}
}

func (m *merge) link(in *node, path string, n *node) {
	i, _ := in.index(n.name)
	in.kids = slices.Insert(in.kids, i, n)
	m.unseal(path)
	m.undo = append(m.undo, func() {
		i, _ := in.index(n.name)
		in.kids = slices.Delete(in.kids, i, i+1)
	})
}

func (m *merge) unlink(in *node, path string, n *node) {
	i, _ := in.index(n.name)
	in.kids = slices.Delete(in.kids, i, i+1)
	m.left = append(m.left, n)
	m.unseal(path)
	m.undo = append(m.undo, func() {
		i, _ := in.index(n.name)
		in.kids = slices.Insert(in.kids, i, n)
	})
}

// came records n, which is new, and everything below it.
func (m *merge) came(path string, n *node) {
	m.prune(path, n)
	n.setGroup("")
	m.l.enter(path, n)
	m.note(n.tie)
	m.undo = append(m.undo, func() { m.l.leave(path, n) })
	m.record(path, nil, &n.entry)
	for _, k := range n.kids {
		m.came(relpath.Join(path, k.name), k)
	}
}

// gone records that n, and everything below it, is there no more.
func (m *merge) gone(path string, n *node) {
	for _, k := range n.kids {
		m.gone(relpath.Join(path, k.name), k)
	}
	m.l.leave(path, n)
	m.note(n.tie)
	m.undo = append(m.undo, func() { m.l.enter(path, n) })
	m.record(path, &n.entry, nil)
}

// prune takes out of the new node n what could not be read.
func (m *merge) prune(path string, n *node) {
	if len(m.skipped) == 0 {
		return
	}
	n.kids = slices.DeleteFunc(n.kids, func(k *node) bool {
		_, skip := m.skipped[relpath.Join(path, k.name)]
		return skip
	})
}

func (m *merge) note(tie string) {
	if tie != "" {
		m.tied[tie] = true
	}
}

func (m *merge) record(path string, before, after *entry) {
	r := record{path: path, before: before.digest()}
	if after != nil {
		r.after = after.bare()
	}
	m.records = append(m.records, r)
}

// unseal notes that the folder that path lies in, and those above, are changed.
func (m *merge) unseal(path string) {
	n := m.l.root
	n.sealed = unsealed
	dir, _ := relpath.Split(path)
	if dir == "." {
		return
	}
	for rest := dir; rest != ""; {
		var name string
		name, rest = relpath.Cut(rest)
		if n = n.kid(name); n == nil {
			return
		}
		n.sealed = unsealed
	}
}

// regroup names the hard-link groups anew whose names changed.
func (m *merge) regroup() {
	for _, tie := range relpath.SortedKeys(m.tied) {
		paths := relpath.SortedKeys(m.l.names[tie])
		slices.SortFunc(paths, walkOrder)
		group := ""
		if len(paths) > 1 {
			group = paths[0]
		}
		for _, p := range paths {
			n := m.l.find(p)
			if n == nil || n.group() == group {
				continue
			}
			before := n.entry
			n.setGroup(group)
			m.undo = append(m.undo, func() { n.setGroup(before.group()) })
			m.record(p, &before, &n.entry)
			m.unseal(p)
		}
	}
}

// walkOrder compares two paths as a walk meets them: folder by folder.
func walkOrder(a, b string) int {
	return slices.Compare(strings.Split(a, "/"), strings.Split(b, "/"))
}

// revert takes the tree back to before the merge.
func (m *merge) revert() {
	for _, u := range slices.Backward(m.undo) {
		u()
	}
	for i := range m.records {
		m.unseal(m.records[i].path)
	}
}
