package follow

import (
	"errors"
	"runtime"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"mulligan/snap/beneath"
	"mulligan/snap/files/inode"
	"mulligan/snap/files/manifest"
	"mulligan/snap/files/relpath"
	"mulligan/snap/files/walk"
)

// observer reads the entries at some paths. It does not read entries that are reliably as in the tree.
type observer struct {
	l     *live
	s     *walk.Scan
	root  *beneath.Root
	fresh map[string]bool // these are always read
	dirty func()          // called before the first changed entry is read

	mu      sync.Mutex
	finds   []observation
	skipped map[string]error
	again   map[string]bool // folders that were found missing
}

// target is a path to be read.
type target struct {
	path string
	deep bool
}

// targets returns the paths to be read for t. Of a path with folders that the tree does not have, the first of these is read
// with everything below it.
func (l *live) targets(t *todo) []target {
	deep := map[string]bool{}
	place := func(path string, whole bool) {
		n, rest := l.reach(path)
		if rest != "" {
			path = path[:len(path)-len(rest)]
			if !n.IsDir() { // an entry that was, or will be, a folder
				path = path[:len(path)-1]
			} else {
				first, _ := relpath.Cut(rest)
				path += first
			}
		}
		deep[path] = deep[path] || whole && rest == ""
	}
	for p := range t.trees {
		place(p, true)
	}
	for p := range t.paths {
		place(p, false)
	}
	out := make([]target, 0, len(deep))
	for p, d := range deep {
		out = append(out, target{p, d})
	}
	slices.SortFunc(out, func(a, b target) int { return walkOrder(a.path, b.path) })
	kept := out[:0]
	top := "" // the last deep one
	for _, x := range out {
		if top != "" && relpath.Within(x.path, top) {
			continue
		}
		if x.deep {
			top = x.path
		}
		kept = append(kept, x)
	}
	return kept
}

// fewPlaces is the maximal number of paths that are read by one worker.
const fewPlaces = 16

// look reads the targets folder by folder, with several workers if there are many.
func (g *observer) look(list []target) error {
	var groups [][]target
	for i := 0; i < len(list); {
		dir, _ := relpath.Split(list[i].path)
		n := i + 1
		for n < len(list) && n-i < 256 {
			if d, _ := relpath.Split(list[n].path); d != dir || list[n].path == "." || list[i].path == "." {
				break
			}
			n++
		}
		groups, i = append(groups, list[i:n]), n
	}
	workers := 1
	if len(list) > fewPlaces {
		workers = min(runtime.GOMAXPROCS(0), 4, len(groups))
	}
	next := make(chan []target, len(groups))
	for _, x := range groups {
		next <- x
	}
	close(next)
	var wg sync.WaitGroup
	var failed error
	for range workers {
		wg.Go(func() {
			for group := range next {
				if err := g.group(group); err != nil {
					g.mu.Lock()
					failed = errors.Join(failed, err)
					g.mu.Unlock()
					return
				}
			}
		})
	}
	wg.Wait()
	return failed
}

// group reads targets of one folder.
func (g *observer) group(list []target) error {
	if list[0].path == "." {
		return g.top(list[0])
	}
	dir, _ := relpath.Split(list[0].path)
	in, err := g.root.OpenDir(dir)
	if err != nil {
		err = g.s.Failed(dir, err)
		if errors.Is(err, walk.ErrMoved) || errors.Is(err, unix.EXDEV) {
			g.mu.Lock()
			g.again[dir] = true
			g.mu.Unlock()
			return nil
		}
		return g.s.Passes(dir, err)
	}
	defer in.Close()
	for _, t := range list {
		if err := g.s.Ctx.Err(); err != nil {
			return err
		}
		_, name := relpath.Split(t.path)
		if err := g.s.Passes(t.path, g.one(in, t, name)); err != nil {
			return err
		}
	}
	return nil
}

// top reads the entry of the workspace folder itself.
func (g *observer) top(t target) error {
	n := &manifest.Node{}
	if t.deep {
		g.dirty()
		if err := g.s.ReadTree(g.root, ".", n); err != nil {
			return err
		}
	} else {
		st, err := inode.StatAt(g.root.FD(), "")
		if err == nil {
			err = g.s.ReadFolder(g.root.FD(), ".", n, st)
		}
		if err != nil {
			return err
		}
	}
	g.found(observation{".", n, t.deep})
	return nil
}

func (g *observer) found(f observation) {
	g.mu.Lock()
	g.finds = append(g.finds, f)
	g.mu.Unlock()
}

func (g *observer) skip(path string, err error) {
	g.mu.Lock()
	g.skipped[path] = err
	g.mu.Unlock()
}

// one reads one name.
func (g *observer) one(in *beneath.Root, t target, name string) error {
	old := g.l.find(t.path)
	st, err := inode.StatAt(in.FD(), name)
	if err == unix.ENOENT {
		if old != nil {
			g.dirty()
			g.found(observation{path: t.path})
		}
		return nil
	}
	if err != nil {
		return g.s.Failed(t.path, err)
	}
	if g.s.W.Workspace.Exclude.Excludes(t.path, st.Kind() == manifest.DirKind) {
		return g.excluded(t, old)
	}
	if old != nil && !t.deep && old.Sure && old.Unchanged(st) && !g.fresh[t.path] {
		return nil
	}
	g.dirty()
	n, err := g.s.ReadEntry(in, t.path, name, st)
	if err != nil || !n.IsDir() {
		if err == nil {
			g.found(observation{path: t.path, node: n})
		}
		return err
	}
	return g.folder(in, t, old, n, st)
}

// excluded removes a former folder from the tree that is a file now and is excluded.
func (g *observer) excluded(t target, old *manifest.Node) error {
	if old != nil {
		g.dirty()
		g.found(observation{path: t.path})
	}
	return nil
}

// folder reads a folder: only its own entry if the tree has the folder, and otherwise everything in it.
func (g *observer) folder(in *beneath.Root, t target, old, n *manifest.Node, st inode.Stat) error {
	if old != nil && old.IsDir() && old.ID == st.ID && !t.deep {
		dir, err := in.OpenDir(n.Name)
		if errors.Is(err, unix.EXDEV) {
			g.s.Mounted(t.path, n)
			g.found(observation{path: t.path, node: n})
			return nil
		}
		if err != nil {
			return g.s.Failed(t.path, err)
		}
		defer dir.Close()
		if err := g.s.ReadFolder(dir.FD(), t.path, n, st); err != nil {
			return err
		}
		g.found(observation{path: t.path, node: n})
		return nil
	}
	if err := g.s.Subfolder(in, t.path, n); err != nil {
		return err
	}
	g.found(observation{path: t.path, node: n, deep: true})
	return nil
}
