// Package relpath handles the paths of a workspace: relative to its folder, separated by
// slashes, of raw bytes. "." is the workspace folder itself.
package relpath

import (
	"maps"
	"slices"
	"strings"
)

// ValidName reports whether s can be the name of a file in a folder.
func ValidName(s string) bool {
	return s != "" && s != "." && s != ".." && !strings.ContainsAny(s, "/\x00")
}

// Valid reports whether p is a path below the workspace folder. "." is none.
func Valid(p string) bool {
	for _, s := range strings.Split(p, "/") {
		if !ValidName(s) {
			return false
		}
	}
	return true
}

// Join returns the path of name in the folder dir.
func Join(dir, name string) string {
	if dir == "." {
		return name
	}
	return dir + "/" + name
}

// Split returns the folder that p lies in, and p's own name there.
func Split(p string) (dir, name string) {
	i := strings.LastIndexByte(p, '/')
	if i < 0 {
		return ".", p
	}
	return p[:i], p[i+1:]
}

// Within reports whether p is top or lies below it.
func Within(p, top string) bool {
	return top == "." || p == top || len(p) > len(top) && p[len(top)] == '/' && p[:len(top)] == top
}

// Scope lists the paths that an operation is about, each with all below it. An empty Scope is the whole workspace.
type Scope []string

// Holds reports whether p lies in the scope.
func (s Scope) Holds(p string) bool {
	if len(s) == 0 {
		return true
	}
	for _, top := range s {
		if Within(p, top) {
			return true
		}
	}
	return false
}

// Leads reports whether p lies in the scope, or is a folder above a path of it.
func (s Scope) Leads(p string) bool {
	if s.Holds(p) {
		return true
	}
	for _, top := range s {
		if Within(top, p) {
			return true
		}
	}
	return false
}

// Cut splits off p's first component.
func Cut(p string) (first, rest string) {
	first, rest, _ = strings.Cut(p, "/")
	return first, rest
}

// SortedKeys lists a map's keys in order.
func SortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
