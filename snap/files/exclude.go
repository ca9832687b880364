package files

import (
	"strings"

	"github.com/go-git/go-git/v5/plumbing/format/gitignore"

	"mulligan/snap/files/relpath"
)

// excluder knows what is none of this driver's business.
type excluder struct {
	match gitignore.Matcher // nil: no patterns
	skip  map[string]bool   // paths of other drivers
	loose map[string]bool   // the folders that they lie in
	print string            // tells one configuration from another
}

func newExcluder(patterns, skip []string) *excluder {
	x := &excluder{skip: map[string]bool{}, loose: map[string]bool{}}
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
		x.skip[p], x.loose[dir] = true, true
	}
	x.print = strings.Join(patterns, "\n") + "\x00" + strings.Join(skip, "\x00")
	return x
}

// excludes reports whether path, whose parents are not excluded, is left out.
func (x *excluder) excludes(path string, isDir bool) bool {
	if x.skip[path] {
		return true
	}
	return x.match != nil && x.match.Match(strings.Split(path, "/"), isDir)
}
