package follow

import (
	"strings"
	"time"

	"mulligan/snap/files/watch"
)

// todo is the set of paths to be read.
type todo struct {
	paths, trees map[string]bool
	all          bool
	first, last  time.Time
}

func (t *todo) empty() bool { return !t.all && len(t.paths) == 0 && len(t.trees) == 0 }

// len returns the number of paths to be read.
func (t *todo) len() int {
	n := len(t.paths) + len(t.trees)
	if t.all {
		n++
	}
	return n
}

// take adds the set of a watcher.
func (t *todo) take(s watch.Set) {
	for _, p := range s.Paths {
		t.path(p)
	}
	for _, p := range s.Subtrees {
		t.tree(p)
	}
	t.all = t.all || s.All
	t.seen(s.First, s.Last)
}

// add adds the paths of u.
func (t *todo) add(u *todo) {
	for p := range u.paths {
		t.path(p)
	}
	for p := range u.trees {
		t.tree(p)
	}
	t.all = t.all || u.all
	t.seen(u.first, u.last)
}

func (t *todo) path(p string) {
	if t.paths == nil {
		t.paths = map[string]bool{}
	}
	t.paths[p] = true
}

func (t *todo) tree(p string) {
	if t.trees == nil {
		t.trees = map[string]bool{}
	}
	t.trees[p] = true
}

func (t *todo) seen(first, last time.Time) {
	if t.first.IsZero() || !first.IsZero() && first.Before(t.first) {
		t.first = first
	}
	if last.After(t.last) {
		t.last = last
	}
}

// some returns a few of the paths, for messages.
func (t *todo) some() []string {
	var out []string
	for _, m := range []map[string]bool{t.paths, t.trees} {
		for p := range m {
			if len(out) == 16 {
				return out
			}
			out = append(out, p)
		}
	}
	return out
}

// touchesRepository reports whether a path of the set may be in a repository.
func (t *todo) touchesRepository() bool {
	in := func(p string) bool {
		return strings.Contains(p, ".git") || strings.Contains(p, "objects") || strings.Contains(p, "refs")
	}
	for _, set := range []map[string]bool{t.paths, t.trees} {
		for p := range set {
			if in(p) {
				return true
			}
		}
	}
	return t.all
}
