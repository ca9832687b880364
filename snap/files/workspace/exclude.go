package workspace

import (
	"strings"

	"github.com/go-git/go-git/v5/plumbing/format/gitignore"
	"github.com/zeebo/blake3"

	"mulligan/snap/files/manifest"
	"mulligan/snap/files/relpath"
)

// Rules says which paths of a workspace the files driver leaves out.
type Rules struct {
	match gitignore.Matcher // the user's patterns; nil: none
	skip  map[string]bool   // paths of other drivers
	Loose map[string]bool   // the folders that have paths of skip as entries
	print string            // identifies the configuration
}

// NewRules returns the rules that exclude what patterns (gitignore syntax) match, and the paths in skip.
func NewRules(patterns, skip []string) *Rules {
	x := &Rules{skip: map[string]bool{}, Loose: map[string]bool{}}
	var ps []gitignore.Pattern
	for _, p := range patterns {
		if p = strings.TrimRight(p, "\r\n"); strings.TrimSpace(p) != "" && p[0] != '#' {
			ps = append(ps, gitignore.ParsePattern(p, nil))
		}
	}
	if len(ps) > 0 {
		x.match = gitignore.NewMatcher(ps)
	}
	for _, p := range skip {
		dir, _ := relpath.Split(p)
		x.skip[p], x.Loose[dir] = true, true
	}
	x.print = strings.Join(patterns, "\n") + "\x00" + strings.Join(skip, "\x00")
	return x
}

// Excludes reports whether path is left out. The caller must know that no folder above path is excluded.
func (x *Rules) Excludes(path string, isDir bool) bool {
	if x.skip[path] {
		return true
	}
	return x.match != nil && x.match.Match(strings.Split(path, "/"), isDir)
}

// Skips reports whether path belongs to another driver.
func (x *Rules) Skips(path string) bool { return x.skip[path] }

// Covers reports whether the file path, or a folder above it, is left out.
func (x *Rules) Covers(path string) bool {
	for i := range len(path) {
		if path[i] == '/' && x.Excludes(path[:i], true) {
			return true
		}
	}
	return x.Excludes(path, false)
}

// Hash returns a hash that identifies the set of exclusions.
func (x *Rules) Hash() manifest.HexHash { return manifest.HexHash(blake3.Sum256([]byte(x.print))) }
