package files

import (
	"maps"
	"slices"
	"strings"
)

// Paths are relative to the workspace, slash-separated, of raw bytes; "." is
// the workspace folder itself.

func validName(s string) bool {
	return s != "" && s != "." && s != ".." && !strings.ContainsAny(s, "/\x00")
}

func validPath(p string) bool {
	for _, s := range strings.Split(p, "/") {
		if !validName(s) {
			return false
		}
	}
	return true
}

// join puts name below dir.
func join(dir, name string) string {
	if dir == "." {
		return name
	}
	return dir + "/" + name
}

// parent is the folder that p lies in, and p's own name there.
func parent(p string) (dir, name string) {
	i := strings.LastIndexByte(p, '/')
	if i < 0 {
		return ".", p
	}
	return p[:i], p[i+1:]
}

// below reports whether p is top or lies below it.
func below(p, top string) bool {
	return top == "." || p == top || len(p) > len(top) && p[len(top)] == '/' && p[:len(top)] == top
}

// scope is the part of the workspace that is meant; an empty one is all of it.
type scope []string

// holds reports whether p belongs to the scope.
func (s scope) holds(p string) bool {
	if len(s) == 0 {
		return true
	}
	for _, top := range s {
		if below(p, top) {
			return true
		}
	}
	return false
}

// leads reports whether p belongs to the scope or is on the way to a part of it.
func (s scope) leads(p string) bool {
	if s.holds(p) {
		return true
	}
	for _, top := range s {
		if below(top, p) {
			return true
		}
	}
	return false
}

// cutPath splits off p's first component.
func cutPath(p string) (first, rest string) {
	first, rest, _ = strings.Cut(p, "/")
	return first, rest
}

// sortedKeys lists a map's keys in order.
func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
