package follow

import (
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/files/inode"
	"mulligan/snap/files/manifest"
	"mulligan/snap/files/parallel"
	"mulligan/snap/files/relpath"
	"mulligan/snap/files/walk"
)

// live is the workspace in memory, as it was read last. It belongs to the goroutine of Follow. While that waits for reading
// workers, these may read it.
type live struct {
	root    *manifest.Node
	names   map[string]map[string]bool // paths of files that have, or had, several names, by tie
	files   int64                      // number of names
	paths   int64                      // bytes of their paths
	linked  map[inode.ID]int           // how many ties names has of each inode
	doubted map[inode.ID]bool          // inodes of files of which the tree may have paths that names lacks
	warn    map[string]bool            // mount points
	removed []*manifest.Node           // nodes that were removed last; if they were moved, their new names may come with the next batch
	open    map[*manifest.Node]bool    // folders that are not packed
	inodes  map[uint64]struct{}        // the numbers of all files' inodes that the tree has, or had, each divided by inodeBlock

	drafts map[*manifest.Node][]manifest.Entry // unchanging copies of the folders that are hashed and not stored
}

// newLive returns the state for a tree that was just read.
func newLive(root *manifest.Node) *live {
	l := &live{root: root, names: map[string]map[string]bool{}, linked: map[inode.ID]int{}, doubted: map[inode.ID]bool{}, warn: map[string]bool{}, open: map[*manifest.Node]bool{}, inodes: map[uint64]struct{}{}, drafts: map[*manifest.Node][]manifest.Entry{}}
	manifest.AssignGroups(root)
	l.each(root, ".", l.enter)
	return l
}

// doubtful returns the names in a tree that was just read of files that may have been changed meanwhile through another name, and the names
// that were read before their file had another one, or after that was gone. It adds the files of the latter to doubted.
func (l *live) doubtful() (out []string) {
	few := map[inode.ID]bool{} // files with more names than are known
	for _, paths := range l.names {
		for p := range paths {
			n := l.find(p)
			if !n.Sure {
				out = append(out, p)
			}
			if int(n.Nlink) > len(paths) {
				few[n.ID] = true
			}
		}
	}
	if len(few) == 0 {
		return out
	}
	l.each(l.root, ".", func(path string, n *manifest.Node) {
		if n.Single() && few[n.ID] {
			out = append(out, path)
			l.doubted[n.ID] = true
		}
	})
	return out
}

// each calls do for n and everything below it, parents first. The node of a packed file is valid until do returns.
func (l *live) each(n *manifest.Node, path string, do func(string, *manifest.Node)) {
	do(path, n)
	for k := range n.All {
		l.each(k, relpath.Join(path, k.Name), do)
	}
}

// inodeBlock is a number of inodes that filesystems place together. Files of one workspace are mostly in the same blocks.
const inodeBlock = 64

// meet records the inode of the file n. Once most of what is recorded is of files that are gone, only the tree's files stay.
func (l *live) meet(n *manifest.Node) {
	record := func(_ string, n *manifest.Node) {
		if !n.IsDir() {
			l.inodes[n.ID.Ino/inodeBlock] = struct{}{}
		}
	}
	if int64(len(l.inodes)) > 2*l.files+1024 {
		clear(l.inodes)
		l.each(l.root, ".", record)
	}
	record("", n)
}

// mayHave reports whether a file of the tree may have that inode. It is false for most that the tree does not have, and for none that it has.
func (l *live) mayHave(ino uint64) bool {
	_, ok := l.inodes[ino/inodeBlock]
	return ok
}

// enter records a new name in the indexes beside the tree.
func (l *live) enter(path string, n *manifest.Node) {
	l.files++
	l.paths += int64(len(path))
	if n.IsDir() {
		l.open[n] = true
	} else {
		l.meet(n)
	}
	if n.Mount {
		l.warn[path] = true
	}
	if n.LinkKey != "" {
		l.addName(path, n)
	}
}

// addName records in names a path of a file that has several.
func (l *live) addName(path string, n *manifest.Node) {
	if l.names[n.LinkKey] == nil {
		l.names[n.LinkKey] = map[string]bool{}
		l.linked[n.ID]++
	}
	l.names[n.LinkKey][path] = true
}

func (l *live) leave(path string, n *manifest.Node) {
	l.files--
	l.paths -= int64(len(path))
	delete(l.warn, path)
	delete(l.open, n)
	if paths := l.names[n.LinkKey]; paths[path] {
		delete(paths, path)
		if len(paths) == 0 {
			delete(l.names, n.LinkKey)
			l.linked[n.ID]--
		}
	}
	if l.linked[n.ID] == 0 {
		delete(l.linked, n.ID)
		delete(l.doubted, n.ID) // a file without paths in names is looked for in the whole tree anyway
	}
}

// unpack makes the entries of a folder nodes that may be changed.
func (l *live) unpack(n *manifest.Node) {
	if n.Unpack() {
		l.open[n] = true
	}
}

// pack packs the folders that changed since the last call.
func (l *live) pack() {
	for n := range l.open {
		n.Pack()
	}
	clear(l.open)
}

// find returns the node at path, or nil. The node of a file may be a copy: the folder must be unpacked before it is changed.
func (l *live) find(path string) *manifest.Node {
	n, rest := l.reach(path)
	if rest != "" {
		return nil
	}
	return n
}

// reach returns the deepest node on the way to path, and the rest of the path.
func (l *live) reach(path string) (n *manifest.Node, rest string) {
	n = l.root
	if path == "." {
		return n, ""
	}
	for rest = path; rest != ""; {
		name, more := relpath.Cut(rest)
		k := n.Child(name)
		if k == nil {
			return n, rest
		}
		n, rest = k, more
	}
	return n, ""
}

// remembered is a tree used as the memory of a walk: entries that are reliably unchanged need not be read.
type remembered struct {
	*live
	since time.Time // when the paths that are read began to change

	index sync.Once
	files map[inode.ID]*manifest.Node
}

func (r *remembered) Find(path string, st inode.Stat, e *manifest.Entry) bool {
	n := r.live.find(path)
	if (n == nil || n.ID != st.ID) && st.Kind() == unix.S_IFREG && walk.Reliable(st, r.since) {
		n = r.moved(st.ID)
	}
	return n != nil && n.Recall(st, e)
}

// moved finds a file by its inode. If the file is at a new path and is older than the changes, it was moved together with a
// folder, which does not change it. Its old node may already have been removed from the tree.
func (r *remembered) moved(id inode.ID) *manifest.Node {
	r.index.Do(func() {
		r.files = make(map[inode.ID]*manifest.Node, r.live.files)
		var visit func(n *manifest.Node)
		visit = func(n *manifest.Node) {
			if n.IsFile() {
				r.files[n.ID] = n
			}
			for _, k := range n.Children() {
				visit(k)
			}
		}
		for _, n := range r.removed {
			visit(n)
		}
		visit(r.root)
	})
	return r.files[id]
}

func (*remembered) Add(inode.Stat, *manifest.Entry, time.Time) {}

// seal returns the manifest of the present tree, which may change afterwards. It stores nothing, because that takes much longer
// and is rarely needed.
func (l *live) seal(s *cas.Store) *manifest.Manifest {
	notStored := func(n *manifest.Node) bool { return n.HashState != manifest.Stored }
	known := map[snap.Hash][]manifest.Entry{}
	for _, level := range slices.Backward(l.root.Levels(notStored)) { // a folder's hash depends on those of the folders below
		l.hash(level)
		for _, n := range level {
			known[n.Hash] = l.drafts[n]
		}
	}
	return manifest.New(l.root.Entry, manifest.NewFolders(s, known))
}

// hash sets the hashes of folders, none of which may be below another.
func (l *live) hash(level []*manifest.Node) {
	level = slices.Clone(level)
	level = slices.DeleteFunc(level, func(n *manifest.Node) bool { return n.HashState == manifest.Hashed && l.drafts[n] != nil })
	drafts := make([][]manifest.Entry, len(level))
	_ = parallel.InRuns(len(level), func() (func(int) error, func()) { // this cannot fail
		return func(i int) error {
			n := level[i]
			entries := n.Entries()
			n.Hash, drafts[i] = cas.NodeHash(manifest.EncodeNode(manifest.SortFolder, entries)), manifest.Copies(entries)
			return nil
		}, func() {}
	})
	for i, n := range level {
		n.HashState, l.drafts[n] = manifest.Hashed, drafts[i]
	}
}

// begun records that an epoch began with the tree that was sealed last. The store now has all of this tree.
func (l *live) begun() {
	clear(l.drafts)
	setStored(l.root)
}

func setStored(n *manifest.Node) {
	if n.HashState == manifest.Stored {
		return
	}
	n.HashState = manifest.Stored
	for k := range n.Folders {
		setStored(k)
	}
}

// mountWarnings returns the warnings for mount points, which are not captured.
func mountWarnings(shown func(path string) string, paths []string) []string {
	var out []string
	for _, p := range paths {
		out = append(out, walk.MountWarning(shown(p)))
	}
	slices.Sort(out)
	return slices.Compact(out)
}
