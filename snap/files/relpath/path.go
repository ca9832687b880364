// Package relpath handles the paths of a workspace. They are relative to its folder, separated by slashes, and consist of any
// bytes. "." is the workspace folder itself.
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

// Valid reports whether p is a path below the workspace folder. For "." it returns false.
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

// Split returns the folder of p, and p's name in that folder.
func Split(p string) (dir, name string) {
	i := strings.LastIndexByte(p, '/')
	if i < 0 {
		return ".", p
	}
	return p[:i], p[i+1:]
}

// Beginning returns the outermost folders of a long path, at least one: enough to find the rest.
func Beginning(p string) string {
	const most = 300
	for len(p) > most && strings.Contains(p, "/") {
		p, _ = Split(p)
	}
	return p
}

// Within reports whether p is top or lies below top.
func Within(p, top string) bool {
	return top == "." || p == top || len(p) > len(top) && p[len(top)] == '/' && p[:len(top)] == top
}

// Scope lists the paths that an operation is limited to, each with everything below it. An empty Scope is the whole workspace.
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

// Leads reports whether p lies in the scope, or is a folder above a path of the scope.
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

// Cut returns p's first component, and the rest of p after the slash.
func Cut(p string) (first, rest string) {
	first, rest, _ = strings.Cut(p, "/")
	return first, rest
}

// SortedKeys returns the keys of m in order.
func SortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
