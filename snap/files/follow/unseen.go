package follow

import (
	"context"
	"errors"
	"iter"
	"maps"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"mulligan/snap/beneath"
	"mulligan/snap/files/inode"
	"mulligan/snap/files/manifest"
	"mulligan/snap/files/parallel"
	"mulligan/snap/files/relpath"
	"mulligan/snap/files/walk"
)

// Some changes cause no event in the workspace's folders: a new name of a file outside of the workspace, a write through such a
// name or through one inside that is removed before it is read, and a store to a mapped page. Captures by hand or for a
// restore, and the proof of a restore, do not depend on events alone. A Flush does, and so the checkpoint of a turn.

// Depth is how far a view goes beyond events. Each step includes those before it.
type Depth int

const (
	CheckNames     Depth = iota // compare the stat of files that have names outside of the workspace
	CheckPatrolled              // do as CheckAll does, unless the patrol does so all the time
	CheckStores                 // read files again that a process has mapped for writing, because a second store to a page does not change the stat
	CheckAll                    // compare the stat of every file, and on FUSE of every folder too: only this finds a new name outside
)

// unseen adds paths that may have changed without an event to the dirty set, and returns fresh with the paths that must always
// be read.
func (j *Session) unseen(ctx context.Context, how Depth, fresh map[string]bool) (map[string]bool, error) {
	if j.live == nil {
		return fresh, nil
	}
	if j.noting() && how >= CheckPatrolled {
		how = CheckAll // there is no patrol
	}
	if how >= CheckStores {
		fresh = j.live.withMapped(fresh)
	}
	if j.todo.all {
		return fresh, nil
	}
	list := j.live.namedOutside()
	if how < CheckAll && len(list) == 0 {
		return fresh, nil
	}
	root, err := j.open()
	if errors.Is(err, errReplaced) {
		j.live = nil // everything is read again
		return fresh, nil
	}
	if err != nil {
		return nil, err
	}
	defer root.Close()
	if how >= CheckAll {
		list = j.live.allNames(servedByProgram(root))
	}
	strays, err := strays(ctx, root, list)
	if len(strays) > 0 {
		now := time.Now()
		j.todo.seen(now, now)
	}
	for _, p := range strays {
		j.todo.path(p)
	}
	return fresh, err
}

// withMapped returns fresh with the files that a process may be writing to through a mapping.
func (l *live) withMapped(fresh map[string]bool) map[string]bool {
	inodes := walk.MappedToWrite(l.root.ID.Dev)
	maps.DeleteFunc(inodes, func(ino uint64, _ bool) bool { return !l.mayHave(ino) }) // most are other programs' files
	if len(inodes) == 0 {
		return fresh
	}
	fresh = maps.Clone(fresh)
	for _, p := range filesOf(l.root, inodes) {
		fresh = with(fresh, p)
	}
	return fresh
}

// filesOf returns the paths below n of files with these inode numbers.
func filesOf(n *manifest.Node, inodes map[uint64]bool) (out []string) {
	for k := range n.All {
		if k.IsFile() && inodes[k.ID.Ino] {
			out = append(out, k.Name)
		}
		for _, p := range filesOf(k, inodes) {
			out = append(out, relpath.Join(k.Name, p))
		}
	}
	return out
}

// named has some names of a folder.
type named struct {
	path  string // of the folder
	names iter.Seq[*manifest.Node]
}

// namedOutside returns the files that have more names than the tree has.
func (l *live) namedOutside() (out []named) {
	for _, paths := range l.names {
		for p := range paths {
			if n := l.find(p); n != nil && int(n.Nlink) > len(paths) {
				dir, _ := relpath.Split(p)
				out = append(out, named{dir, slices.Values([]*manifest.Node{n})})
			}
		}
	}
	return out
}

// servedByProgram reports whether the workspace lies on FUSE. There a folder's time can change without an event: fuse-overlayfs
// copies a file up when it is first opened to be written.
func servedByProgram(root *beneath.Root) bool {
	var st unix.Statfs_t
	return unix.Fstatfs(root.FD(), &st) == nil && st.Type == unix.FUSE_SUPER_MAGIC
}

// withFolders adds to t the folders of its paths.
func (t *todo) withFolders() {
	for _, m := range []map[string]bool{maps.Clone(t.paths), t.trees} {
		for p := range m {
			for p != "." {
				p, _ = relpath.Split(p)
				t.path(p)
			}
		}
	}
}

// allNames returns all names, with or without folders, whose changes cause events.
func (l *live) allNames(folders bool) (out []named) {
	var visit func(path string, n *manifest.Node)
	visit = func(path string, n *manifest.Node) {
		for k := range n.Folders {
			visit(relpath.Join(path, k.Name), k)
		}
		names := func(yield func(*manifest.Node) bool) {
			for k := range n.All {
				if (folders || !k.IsDir()) && !yield(k) {
					return
				}
			}
		}
		for range names {
			out = append(out, named{path, names})
			break
		}
	}
	visit(".", l.root)
	return out
}

// strays returns the paths in list whose stat is not reliably as in the tree.
func strays(ctx context.Context, root *beneath.Root, list []named) (out []string, err error) {
	found := make([][]string, len(list))
	err = parallel.InRuns(len(list), func() (func(int) error, func()) {
		return func(i int) error {
			found[i] = list[i].strays(root)
			return ctx.Err()
		}, func() {}
	})
	for _, f := range found {
		out = append(out, f...)
	}
	return out, err
}

func (f named) strays(root *beneath.Root) (out []string) {
	dir, err := root.OpenDir(f.path)
	if err != nil {
		return []string{f.path} // reading this path returns the error
	}
	defer dir.Close()
	for n := range f.names {
		if st, err := inode.StatAt(dir.FD(), n.Name); err != nil || n.Mount != st.Mount || !n.Mount && (!n.Sure || !n.Unchanged(st)) {
			out = append(out, relpath.Join(f.path, n.Name))
		}
	}
	return out
}
