package files

import (
	"context"
	"strings"

	"github.com/go-git/go-git/v5/plumbing/format/gitignore"

	"mulligan/snap/files/inode"
	"mulligan/snap/files/manifest"
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

// without loads m into memory, less what x excludes.
func without(ctx context.Context, m *manifest.Manifest, x *excluder) (*manifest.Node, error) {
	var load func(e manifest.Entry, path string) (*manifest.Node, error)
	load = func(e manifest.Entry, path string) (*manifest.Node, error) {
		n := &manifest.Node{Entry: e, LinkKey: e.Group()}
		if !e.IsDir() {
			return n, ctx.Err()
		}
		n.Loose = x.loose[path]
		if n.Loose {
			n.Mtime = inode.Time{}
		}
		entries, err := m.Folder(e.Hash)
		if err != nil {
			return nil, err
		}
		for _, k := range entries {
			p := relpath.Join(path, k.Name)
			if x.excludes(p, k.Kind() == manifest.DirKind) {
				continue
			}
			kid, err := load(k, p)
			if err != nil {
				return nil, err
			}
			n.Children = append(n.Children, kid)
		}
		return n, nil
	}
	return load(m.Root, ".")
}
