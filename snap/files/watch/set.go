package watch

import (
	"slices"
	"strings"
	"time"
)

// Set is the set of paths that may have changed since the last Take. It is a hint: a path may be unchanged, or may not exist.
type Set struct {
	// Paths are relative to the workspace, of raw bytes, sorted; "." is the
	// workspace itself. A folder among them means its own entry and its list of
	// names, not what lies below it.
	Paths []string
	// Subtrees are new folders, which must be walked. No path and no subtree is below another subtree.
	Subtrees []string
	// All means that the whole workspace must be walked; Paths and Subtrees are then empty.
	All bool
	// First and Last are the times of the set's first and last change.
	First, Last time.Time
}

// Empty reports whether the set is empty.
func (s Set) Empty() bool { return !s.All && len(s.Paths) == 0 && len(s.Subtrees) == 0 }

// maxPaths bounds the paths of a set, and maxBytes what they have together, so that a workspace cannot fill the daemon's memory. A larger set becomes All.
const (
	maxPaths = 200_000
	maxBytes = 32 << 20
)

// set is a Set that is being filled.
type set struct {
	paths, trees map[string]struct{}
	all          bool
	bytes        int // of paths and trees
	first, last  time.Time
}

func (s *set) size() int {
	n := len(s.paths) + len(s.trees)
	if s.all {
		n++
	}
	return n
}

// has reports whether path need not be added as one of the paths.
func (s *set) has(path string) bool {
	if s.all {
		return true
	}
	_, there := s.paths[path]
	return there
}

// covers reports whether path is to be walked anyway.
func (s *set) covers(path string) bool {
	for !s.all {
		if _, there := s.trees[path]; there {
			return true
		}
		if path == "." {
			return false
		}
		path = parent(path)
	}
	return true
}

func parent(path string) string {
	i := strings.LastIndexByte(path, '/')
	if i < 0 {
		return "."
	}
	return path[:i]
}

// add adds path to paths or trees, whichever m is.
func (s *set) add(m *map[string]struct{}, path string) {
	if *m == nil {
		*m = map[string]struct{}{}
	}
	(*m)[path] = struct{}{}
	s.bytes += len(path)
	if s.size() > maxPaths || s.bytes > maxBytes {
		s.fill()
	}
}

// fill turns the set into All.
func (s *set) fill() { s.all, s.paths, s.trees, s.bytes = true, nil, nil, 0 }

// mark records that the entry of path changed.
func (w *Watcher) mark(path string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.set.has(path) {
		w.set.add(&w.set.paths, path)
	}
	w.changed()
}

// marked reports whether mark(path) would change nothing.
func (w *Watcher) marked(path string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	there := w.set.has(path)
	if there {
		w.changed()
	}
	return there
}

// markTree records that path must be walked with everything below it.
func (w *Watcher) markTree(path string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.set.covers(path) {
		w.set.add(&w.set.trees, path)
	}
	w.changed()
}

// everything marks the whole workspace as changed, so that it is walked. The caller must hold w.mu.
func (w *Watcher) everything() {
	w.set.fill()
	w.changed()
}

// changed records the time and wakes the reader. The caller must hold w.mu.
func (w *Watcher) changed() {
	w.set.last = time.Now()
	if w.set.first.IsZero() {
		w.set.first = w.set.last
		select {
		case w.dirty <- struct{}{}:
		default:
		}
	}
}

// Take returns the set and empties it.
func (w *Watcher) Take() Set {
	w.mu.Lock()
	taken := w.set
	w.set = set{}
	w.mu.Unlock()

	out := Set{All: taken.all, First: taken.first, Last: taken.last}
	for p := range taken.trees {
		if p == "." || !taken.covers(parent(p)) {
			out.Subtrees = append(out.Subtrees, p)
		}
	}
	for p := range taken.paths {
		if !taken.covers(p) {
			out.Paths = append(out.Paths, p)
		}
	}
	slices.Sort(out.Subtrees)
	slices.Sort(out.Paths)
	return out
}
