package follow

import (
	"slices"
	"strings"

	"mulligan/snap/files/journal"
	"mulligan/snap/files/manifest"
	"mulligan/snap/files/relpath"
)

// observation is the result of reading one path.
type observation struct {
	path string
	node *manifest.Node // nil if the path does not exist
	deep bool           // node is a folder with everything in it; otherwise only its own entry was read
}

// shallow reports whether the observation is only the entry of a folder, without its contents.
func (f *observation) shallow() bool { return f.node != nil && f.node.IsDir() && !f.deep }

// merger applies observations to the tree and records the changes that result, for the journal.
type merger struct {
	l       *live
	skipped map[string]error // paths that could not be read, and stay unchanged in the tree
	records []journal.Record
	undo    []func()         // functions that revert the changes of the tree, to be called in reverse order
	tied    map[string]bool  // ties whose names or contents may have changed
	unsure  []string         // names of files that changed while they were read: they are read again
	removed []*manifest.Node // nodes that were removed, with those below
}

// apply applies one observation. Its folder must be in the tree.
func (m *merger) apply(f observation) {
	if f.path == "." {
		m.reconcile(nil, f.path, m.l.root, f.node, f.deep)
		return
	}
	dir, name := relpath.Split(f.path)
	in := m.l.find(dir)
	if in == nil || !in.IsDir() {
		return // its folder was removed meanwhile, with everything in it
	}
	m.l.unpack(in)
	m.reconcile(in, f.path, in.Child(name), f.node, f.deep)
}

// reconcile changes the tree's entry at path from old to new and records the difference. in is its folder.
func (m *merger) reconcile(in *manifest.Node, path string, old, new *manifest.Node, deep bool) {
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
	case old.IsDir() && new.IsDir():
		if deep {
			m.names(path, old, new)
		}
		m.change(path, old, new)
	default:
		if old.IsDir() {
			for _, k := range old.Children() {
				m.gone(relpath.Join(path, k.Name), k)
			}
		}
		m.replace(in, path, old, new)
	}
}

// names compares the entries of two folders.
func (m *merger) names(path string, old, new *manifest.Node) {
	m.l.unpack(old)
	was, is := slices.Clone(old.Children()), new.Children()
	for len(was) > 0 || len(is) > 0 {
		var a, b *manifest.Node
		if len(is) == 0 || len(was) > 0 && was[0].Name <= is[0].Name {
			a = was[0]
		}
		if len(was) == 0 || len(is) > 0 && is[0].Name <= was[0].Name {
			b = is[0]
		}
		name := ""
		if a != nil {
			name, was = a.Name, was[1:]
		}
		if b != nil {
			name, is = b.Name, is[1:]
		}
		m.reconcile(old, relpath.Join(path, name), a, b, true)
	}
}

// change copies new's metadata and content hash into old, which keeps its place in the tree.
func (m *merger) change(path string, old, new *manifest.Node) {
	before := *old
	fresh := new.Entry
	fresh.Hash = old.Hash
	fresh.SetGroup(old.Group())
	fresh.Name = old.Name
	same := old.Entry.SameMeta(&fresh) && old.Entry.SameBody(&fresh)
	old.Entry, old.ID, old.Ctime, old.Sure = fresh, new.ID, new.Ctime, new.Sure
	m.undo = append(m.undo, func() {
		old.Become(&before)
		old.HashState = manifest.Outdated
	})
	if !same {
		m.record(path, &before.Entry, &old.Entry)
		if path != "." {
			m.unseal(path)
		}
	}
}

// replace replaces old by new. At most one of them is a folder.
func (m *merger) replace(in *manifest.Node, path string, old, new *manifest.Node) {
	m.prune(path, new)
	new.SetGroup("")
	if new.LinkKey == old.LinkKey && new.LinkKey != "" {
		new.SetGroup(old.Group()) // regroup examines it again
	}
	if !old.IsDir() && old.LinkKey == new.LinkKey && old.Entry.Equal(&new.Entry) {
		old.ID, old.Ctime, old.Nlink, old.Sure = new.ID, new.Ctime, new.Nlink, new.Sure
		m.l.meet(old)
		m.note(old.LinkKey)
		return
	}
	in.Put(new)
	m.removed = append(m.removed, old)
	m.l.leave(path, old)
	m.l.enter(path, new)
	m.note(old.LinkKey)
	m.note(new.LinkKey)
	m.undo = append(m.undo, func() {
		m.l.leave(path, new)
		m.l.enter(path, old)
		in.Put(old)
	})
	if old.IsDir() || !old.Entry.Equal(&new.Entry) {
		m.record(path, &old.Entry, &new.Entry)
		m.unseal(path)
	}
	for _, k := range new.Children() {
		m.came(relpath.Join(path, k.Name), k)
	}
}

func (m *merger) link(in *manifest.Node, path string, n *manifest.Node) {
	in.Put(n)
	m.unseal(path)
	m.undo = append(m.undo, func() { in.Remove(n.Name) })
}

func (m *merger) unlink(in *manifest.Node, path string, n *manifest.Node) {
	in.Remove(n.Name)
	m.removed = append(m.removed, n)
	m.unseal(path)
	m.undo = append(m.undo, func() { in.Put(n) })
}

// came records n, which is new, and everything below it.
func (m *merger) came(path string, n *manifest.Node) {
	m.prune(path, n)
	n.SetGroup("")
	m.l.enter(path, n)
	m.note(n.LinkKey)
	m.undo = append(m.undo, func() { m.l.leave(path, n) })
	m.record(path, nil, &n.Entry)
	for _, k := range n.Children() {
		m.came(relpath.Join(path, k.Name), k)
	}
}

// gone records that n and everything below it were removed.
func (m *merger) gone(path string, n *manifest.Node) {
	for _, k := range n.Children() {
		m.gone(relpath.Join(path, k.Name), k)
	}
	m.l.leave(path, n)
	m.note(n.LinkKey)
	m.undo = append(m.undo, func() { m.l.enter(path, n) })
	m.record(path, &n.Entry, nil)
}

// prune removes from the new node n the entries that could not be read.
func (m *merger) prune(path string, n *manifest.Node) {
	if len(m.skipped) == 0 {
		return
	}
	n.SetChildren(slices.DeleteFunc(n.Children(), func(k *manifest.Node) bool {
		_, skip := m.skipped[relpath.Join(path, k.Name)]
		return skip
	}))
}

func (m *merger) note(tie string) {
	if tie != "" {
		m.tied[tie] = true
	}
}

func (m *merger) record(path string, before, after *manifest.Entry) {
	r := journal.Record{Path: path, Before: before.Digest()}
	if after != nil {
		r.After = after.Bare()
	}
	m.records = append(m.records, r)
}

// unseal marks the folder of path, and those above it, as changed.
func (m *merger) unseal(path string) {
	n := m.l.root
	n.HashState = manifest.Outdated
	dir, _ := relpath.Split(path)
	if dir == "." {
		return
	}
	for rest := dir; rest != ""; {
		var name string
		name, rest = relpath.Cut(rest)
		if n = n.Child(name); n == nil {
			return
		}
		n.HashState = manifest.Outdated
	}
}

// regroup assigns new names to the hard-link groups whose paths changed, and unifies the names of each.
func (m *merger) regroup() {
	for _, tie := range relpath.SortedKeys(m.tied) {
		paths := relpath.SortedKeys(m.l.names[tie])
		slices.SortFunc(paths, walkOrder)
		m.unify(paths)
		group := ""
		if len(paths) > 1 {
			group = paths[0]
		}
		for _, p := range paths {
			n := m.l.find(p)
			if n == nil || n.Group() == group {
				continue
			}
			before := n.Entry
			n.SetGroup(group)
			m.undo = append(m.undo, func() { n.SetGroup(before.Group()) })
			m.record(p, &before, &n.Entry)
			m.unseal(p)
		}
	}
}

// unify unifies the names of one file, except those that could not be read.
func (m *merger) unify(paths []string) {
	if len(paths) < 2 {
		return
	}
	var names []string
	var nodes []*manifest.Node
	var before []manifest.Node
	for _, p := range paths {
		if n := m.l.find(p); n != nil && m.skipped[p] == nil {
			names, nodes, before = append(names, p), append(nodes, n), append(before, *n)
		}
	}
	if len(nodes) < 2 || !manifest.Unify(nodes) {
		return
	}
	m.unsure = append(m.unsure, names...)
	for i, n := range nodes {
		m.undo = append(m.undo, func() { n.Become(&before[i]) })
		if !n.Entry.Equal(&before[i].Entry) {
			m.record(names[i], &before[i].Entry, &n.Entry)
			m.unseal(names[i])
		}
	}
}

// doubt adds to doubted the files of which one path was read when the file had no other name, while the tree still has another path of it. That path is gone,
// or the file came back to it, and the path is still to be read. The tie of a further name that comes before does not lead to the path that was read.
func (m *merger) doubt(finds []observation) {
	if len(m.l.names) == 0 {
		return
	}
	visit := func(path string, n *manifest.Node) {
		if n.Single() && m.l.linked[n.ID] > 0 {
			m.unsure = append(m.unsure, path)
			m.l.doubted[n.ID] = true
		}
	}
	for _, f := range finds {
		if n := m.l.find(f.path); n != nil && !f.shallow() {
			m.l.each(n, f.path, visit)
		}
	}
}

// walkOrder compares two paths in the order of a walk: folder by folder.
func walkOrder(a, b string) int {
	return slices.Compare(strings.Split(a, "/"), strings.Split(b, "/"))
}

// revert restores the tree to its state before the merge.
func (m *merger) revert() {
	for _, u := range slices.Backward(m.undo) {
		u()
	}
	for i := range m.records {
		m.unseal(m.records[i].Path)
	}
}
