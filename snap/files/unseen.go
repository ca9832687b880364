package files

import (
	"context"
	"errors"
	"maps"
	"time"

	"mulligan/snap/beneath"
	"mulligan/snap/files/inode"
	"mulligan/snap/files/parallel"
	"mulligan/snap/files/relpath"
)

// Some changes give no event in the workspace's folders: a new name outside of
// it for a file, a write through such a name, or through one inside that is gone
// before it is looked at, a store to a page that a process has mapped. What is captured by hand or for a restore, and a restore's proof,
// does not rest on events alone. A Flush, and so the checkpoint of a turn, does.

// doubt is how far a view goes beyond events. Each step includes those before it.
type doubt int

const (
	doubtNames  doubt = iota // compare the stat of files that have names outside of the workspace
	doubtStores              // read again what a process has mapped to write to it: a second store to a page shows in no stat
	doubtAll                 // compare the stat of every name but folders: only that finds a new name outside
)

// unseen puts on the list what events may have missed, and gives fresh with
// what must be read whatever it looks like.
func (j *journal) unseen(ctx context.Context, how doubt, fresh map[string]bool) (map[string]bool, error) {
	if j.live == nil {
		return fresh, nil
	}
	if how >= doubtStores {
		fresh = j.live.withMapped(fresh)
	}
	if j.todo.all {
		return fresh, nil
	}
	list := j.live.namedOutside()
	if how >= doubtAll {
		list = j.live.allNames()
	}
	if len(list) == 0 {
		return fresh, nil
	}
	root, err := j.open()
	if errors.Is(err, errReplaced) {
		j.live = nil // all of it is read anew
		return fresh, nil
	}
	if err != nil {
		return nil, err
	}
	defer root.Close()
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

// withMapped gives fresh with the files that a process may be writing to through a mapping.
func (l *live) withMapped(fresh map[string]bool) map[string]bool {
	inodes := mappedToWrite(l.root.id.Dev)
	if len(inodes) == 0 {
		return fresh
	}
	fresh = maps.Clone(fresh)
	for _, p := range l.root.filesOf(inodes) {
		fresh = with(fresh, p)
	}
	return fresh
}

// filesOf gives the paths below n of files with these inode numbers.
func (n *node) filesOf(inodes map[uint64]bool) (out []string) {
	for _, k := range n.kids {
		if k.isFile() && inodes[k.id.Ino] {
			out = append(out, k.name)
		}
		for _, p := range k.filesOf(inodes) {
			out = append(out, relpath.Join(k.name, p))
		}
	}
	return out
}

// named is some of the names in a folder.
type named struct {
	path  string // of the folder
	names []*node
}

// namedOutside lists the files that have more names than the tree knows.
func (l *live) namedOutside() (out []named) {
	for _, paths := range l.names {
		for p := range paths {
			if n := l.find(p); n != nil && int(n.nlink) > len(paths) {
				dir, _ := relpath.Split(p)
				out = append(out, named{dir, []*node{n}})
			}
		}
	}
	return out
}

// allNames lists all names but folders.
func (l *live) allNames() (out []named) {
	var visit func(path string, n *node)
	visit = func(path string, n *node) {
		f := named{path: path}
		for _, k := range n.kids {
			if k.isDir() {
				visit(relpath.Join(path, k.name), k)
			} else {
				f.names = append(f.names, k)
			}
		}
		if len(f.names) > 0 {
			out = append(out, f)
		}
	}
	visit(".", l.root)
	return out
}

// strays gives the paths in list whose stat is not surely as the tree has it.
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
		return []string{f.path} // whoever looks there says why
	}
	defer dir.Close()
	fd := dir.FD()
	for _, n := range f.names {
		if st, err := inode.StatAt(fd, n.name); err != nil || !n.mount && (!n.sure || !n.is(st)) {
			out = append(out, relpath.Join(f.path, n.name))
		}
	}
	return out
}
