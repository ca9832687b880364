package files

import (
	"context"
	"strings"
	"time"
)

// moving lists the repositories in the tree that are not as they were read, the reading of which
// began then, and those that are locked.
func (j *follower) moving(ctx context.Context, began time.Time) (moved, held []string, err error) {
	root, err := j.open()
	if err != nil {
		return nil, nil, err
	}
	defer root.Close()
	return j.d.walker.NewScan(ctx, "look at files", nil, nil).Moving(root, j.live.root, began)
}

// touchesRepository reports whether what is on the list may lie in a repository.
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
