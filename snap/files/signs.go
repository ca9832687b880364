package files

import (
	"context"
	"time"

	"mulligan/snap/files/diff"
	"mulligan/snap/files/inode"
	"mulligan/snap/files/manifest"
	"mulligan/snap/files/walk"
)

// signs is what a journal surely knows of some paths, for those who work while
// it goes on.
type signs map[string]*manifest.Node

// recall gives the memory of a walk of the deltas' paths.
func (d *Driver) recall(ctx context.Context, deltas []diff.Delta) walk.Memory {
	j := d.current()
	if j == nil {
		return d.walker.Cache
	}
	s := signs{}
	err := j.do(ctx, func() error {
		for i := range deltas {
			path := deltas[i].Path
			if n := j.live.find(path); n != nil && n.Sure {
				known := *n
				known.Children = nil
				s[path] = &known
			}
		}
		return nil
	})
	if err != nil {
		return d.walker.Cache
	}
	return s
}

func (s signs) Find(path string, st inode.Stat, e *manifest.Entry) bool {
	n := s[path]
	return n != nil && n.Recall(st, e)
}

func (signs) Add(inode.Stat, *manifest.Entry, time.Time) {}

// restoring lets the journal leave what changes alone until the call of what it gives.
func (d *Driver) restoring() (done func()) {
	j := d.current()
	if j == nil {
		return func() {}
	}
	j.restores.Add(1)
	return func() { j.restores.Add(-1) }
}
