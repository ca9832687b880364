package follow

import (
	"context"
	"slices"
	"time"

	"mulligan/snap/files/manifest"
	"mulligan/snap/files/relpath"
)

// The patrol looks for changes without an event: stores through a shared mapping, and writes through names outside of the
// workspace. While nothing else happens it examines the whole workspace in small steps, for some milliseconds in
// each half second, so that no operation waits for it.

const (
	PatrolNames = 1000            // names in a step
	PatrolPause = 5 * time.Minute // pause between two rounds
)

// Patrol examines the next names, and returns the pause before the next step.
func (j *Session) Patrol(ctx context.Context, now time.Time) time.Duration {
	if j.noting() { // views look at everything themselves
		return PatrolPause
	}
	if left := PatrolPause - now.Sub(j.patrolDone); j.patrolAt == "" && left > 0 {
		return left
	}
	if j.live == nil || j.restores.Load() > 0 || !j.todo.empty() {
		return IdleAfter
	}
	paths := j.live.after(j.patrolAt, PatrolNames)
	work := todo{}
	for _, p := range paths {
		work.path(p)
	}
	work.seen(now, now)
	failed, err := j.read(ctx, &work, nil)
	if err != nil {
		return IdleAfter // the next Flush gets and reports the same error
	}
	j.notified = false
	for p := range failed {
		j.missed(p)
	}
	if !j.todo.empty() {
		j.todo.seen(now, now)
		j.next.Reset(retryAfter)
	}
	if len(paths) < PatrolNames {
		j.patrolAt, j.patrolDone = "", now
		return PatrolPause
	}
	j.patrolAt = paths[len(paths)-1]
	return IdleAfter
}

// after returns up to most paths after path in the order of a walk. "" is before all paths.
func (l *live) after(path string, most int) (out []string) {
	var visit func(n *manifest.Node, at, rest string)
	visit = func(n *manifest.Node, at, rest string) {
		name, below := relpath.Cut(rest)
		for _, k := range n.Children() {
			if rest != "" && k.Name <= name {
				if k.Name == name {
					visit(k, relpath.Join(at, name), below)
				}
				continue
			}
			if len(out) >= most {
				return
			}
			p := relpath.Join(at, k.Name)
			out = append(out, p)
			visit(k, p, "")
		}
	}
	visit(l.root, ".", path)
	return slices.Clip(out)
}
