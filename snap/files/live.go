package files

import (
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/files/inode"
	"mulligan/snap/files/parallel"
	"mulligan/snap/files/relpath"
)

// live is the workspace in memory, as it was last read. It belongs to the
// goroutine of Follow; while that waits for readers, they may look things up.
type live struct {
	root  *node
	names map[string]map[string]bool // of files that have, or had, several names: paths by tie
	files int64                      // how many names there are
	warn  map[string]bool            // paths at which something is mounted
	left  []*node                    // what went last: its other end may come with the next batch

	drafts map[*node][]entry // of the folders that are hashed and not stored: copies that nobody changes
}

// newLive takes over a tree that was just read.
func newLive(root *node) *live {
	l := &live{root: root, names: map[string]map[string]bool{}, warn: map[string]bool{}, drafts: map[*node][]entry{}}
	tieGroups(root)
	l.each(root, ".", l.enter)
	return l
}

// each calls do for n and everything below it, parents first.
func (l *live) each(n *node, path string, do func(string, *node)) {
	do(path, n)
	for _, k := range n.kids {
		l.each(k, relpath.Join(path, k.name), do)
	}
}

// enter notes what must be known of a new name beside the tree.
func (l *live) enter(path string, n *node) {
	l.files++
	if n.mount {
		l.warn[path] = true
	}
	if n.tie != "" {
		if l.names[n.tie] == nil {
			l.names[n.tie] = map[string]bool{}
		}
		l.names[n.tie][path] = true
	}
}

func (l *live) leave(path string, n *node) {
	l.files--
	delete(l.warn, path)
	if n.tie != "" {
		delete(l.names[n.tie], path)
		if len(l.names[n.tie]) == 0 {
			delete(l.names, n.tie)
		}
	}
}

// find gives the node at path, or nil.
func (l *live) find(path string) *node {
	n, rest := l.reach(path)
	if rest != "" {
		return nil
	}
	return n
}

// reach goes as far along path as there are nodes, and gives what is left of it.
func (l *live) reach(path string) (n *node, rest string) {
	n = l.root
	if path == "." {
		return n, ""
	}
	for rest = path; rest != ""; {
		name, more := relpath.Cut(rest)
		k := n.kid(name)
		if k == nil {
			return n, rest
		}
		n, rest = k, more
	}
	return n, ""
}

func (n *node) index(name string) (int, bool) {
	return slices.BinarySearchFunc(n.kids, name, func(k *node, s string) int { return strings.Compare(k.name, s) })
}

func (n *node) kid(name string) *node {
	if i, ok := n.index(name); ok {
		return n.kids[i]
	}
	return nil
}

// remembered is a tree as a walk's memory: what is in it and surely as it was
// need not be read.
type remembered struct {
	*live
	since time.Time // when what is looked at began to change

	index sync.Once
	files map[inode.ID]*node
}

func (r *remembered) find(path string, st inode.Stat, e *entry) bool {
	n := r.live.find(path)
	if (n == nil || n.id != st.ID) && st.Kind() == unix.S_IFREG && settled(st, r.since) {
		n = r.moved(st.ID)
	}
	return n != nil && n.tells(st, e)
}

// moved finds a file by its inode. One that is older than what changed, in a
// place where it was not, came with a folder that was moved: that leaves the
// files in it as they were. Where it was may have been taken out already.
func (r *remembered) moved(id inode.ID) *node {
	r.index.Do(func() {
		r.files = make(map[inode.ID]*node, r.live.files)
		var visit func(n *node)
		visit = func(n *node) {
			if n.isFile() {
				r.files[n.id] = n
			}
			for _, k := range n.kids {
				visit(k)
			}
		}
		for _, n := range r.left {
			visit(n)
		}
		visit(r.root)
	})
	return r.files[id]
}

func (*remembered) add(inode.Stat, *entry, time.Time) {}

// is reports whether st is of what the node was read from, unchanged.
func (n *node) is(st inode.Stat) bool {
	if n.mount || st.Mount {
		return n.mount == st.Mount && n.kind() == st.Kind()
	}
	size := n.size
	if !n.isFile() {
		size = st.Size
	}
	return n.id == st.ID && n.ctime == st.Ctime && n.mode == st.Mode && (n.mtime == st.Mtime || n.loose) &&
		size == st.Size && n.uid == st.Uid && n.gid == st.Gid
}

// seal gives the manifest of the tree as it is; the tree may move on. Nothing is
// stored: that takes much longer, and few ask for it.
func (l *live) seal(s *cas.Store) *manifest {
	var levels [][]*node
	l.root.notStored(0, &levels)
	known := map[snap.Hash][]entry{}
	for _, level := range slices.Backward(levels) { // a folder's hash asks for those below it
		l.hash(level)
		for _, n := range level {
			known[n.hash] = l.drafts[n]
		}
	}
	return newManifest(l.root.entry, newFolders(s, known))
}

// notStored puts the folders that the epoch does not hold into levels, by their depth.
func (n *node) notStored(depth int, levels *[][]*node) {
	if n.sealed == stored {
		return
	}
	if depth == len(*levels) {
		*levels = append(*levels, nil)
	}
	(*levels)[depth] = append((*levels)[depth], n)
	for _, k := range n.kids {
		if k.isDir() {
			k.notStored(depth+1, levels)
		}
	}
}

// hash sets the hashes of folders none of which is in another one.
func (l *live) hash(level []*node) {
	level = slices.Clone(level)
	level = slices.DeleteFunc(level, func(n *node) bool { return n.sealed == hashed && l.drafts[n] != nil })
	drafts := make([][]entry, len(level))
	_ = parallel.InRuns(len(level), func() (func(int) error, func()) { // none of it can fail
		return func(i int) error {
			n := level[i]
			n.hash, drafts[i] = cas.NodeHash(encodeNode(sortFolder, n.entries())), n.flat()
			return nil
		}, func() {}
	})
	for i, n := range level {
		n.sealed, l.drafts[n] = hashed, drafts[i]
	}
}

// begun notes that an epoch began with the tree as it was sealed last: the store
// holds all of it now.
func (l *live) begun() {
	clear(l.drafts)
	l.root.setStored()
}

func (n *node) setStored() {
	if n.sealed == stored {
		return
	}
	n.sealed = stored
	for _, k := range n.kids {
		if k.isDir() {
			k.setStored()
		}
	}
}
