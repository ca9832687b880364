package files

import (
	"context"
	"slices"
	"time"

	"mulligan/snap/files/relpath"
)

// The patrol looks for changes that no event told of: stores through a shared
// mapping, writes through names outside of the workspace, mounts. While nothing
// else happens it looks at everything, a little at a time, so that nobody waits
// for it: some milliseconds in half a second.

const (
	patrolNames = 1000            // at a time
	patrolPause = 5 * time.Minute // between two rounds
)

// patrol looks at the next names, and says when to come again.
func (j *journal) patrol(ctx context.Context, now time.Time) time.Duration {
	if left := patrolPause - now.Sub(j.home); j.beat == "" && left > 0 {
		return left
	}
	if j.live == nil || j.restores.Load() > 0 || !j.todo.empty() {
		return idleAfter
	}
	paths := j.live.after(j.beat, patrolNames)
	work := todo{}
	for _, p := range paths {
		work.path(p)
	}
	work.seen(now, now)
	failed, err := j.read(ctx, &work, nil)
	if err != nil {
		return idleAfter // whatever it is, the next Flush meets it as well, and says so
	}
	j.told = false
	for p := range failed {
		j.todo.path(p)
	}
	if !j.todo.empty() {
		j.todo.seen(now, now)
		j.next.Reset(retryAfter)
	}
	if len(paths) < patrolNames {
		j.beat, j.home = "", now
		return patrolPause
	}
	j.beat = paths[len(paths)-1]
	return idleAfter
}

// after lists up to most paths that come after path in the order of a walk,
// folder by folder; "" is before all.
func (l *live) after(path string, most int) (out []string) {
	var visit func(n *node, at, rest string)
	visit = func(n *node, at, rest string) {
		from := 0
		if rest != "" {
			name, below := relpath.Cut(rest)
			i, ok := n.index(name)
			if from = i; ok {
				from++
				visit(n.kids[i], relpath.Join(at, name), below)
			}
		}
		for _, k := range n.kids[from:] {
			if len(out) >= most {
				return
			}
			p := relpath.Join(at, k.name)
			out = append(out, p)
			visit(k, p, "")
		}
	}
	visit(l.root, ".", path)
	return slices.Clip(out)
}
