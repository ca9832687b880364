package files

import (
	"context"
	"time"

	"mulligan/snap"
	"mulligan/snap/files/inode"
)

// signs is what a journal surely knows of some paths, for those who work while
// it goes on.
type signs map[string]*node

// recall gives the memory of a walk of the deltas' paths.
func (d *Driver) recall(ctx context.Context, deltas []delta) memory {
	j := d.current()
	if j == nil {
		return byInode{d.cache}
	}
	s := signs{}
	err := j.do(ctx, func() error {
		for i := range deltas {
			path := deltas[i].path
			if n := j.live.find(path); n != nil && n.sure {
				known := *n
				known.kids = nil
				s[path] = &known
			}
		}
		return nil
	})
	if err != nil {
		return byInode{d.cache}
	}
	return s
}

func (s signs) find(path string, st inode.Stat, e *entry) bool {
	n := s[path]
	return n != nil && n.tells(st, e)
}

func (signs) add(inode.Stat, *entry, time.Time) {}

// tells fills in what e needs beyond st, if n is surely of the same.
func (n *node) tells(st inode.Stat, e *entry) bool {
	if !n.sure || !n.is(st) {
		return false
	}
	e.setLink(n.link())
	e.setXattrs(n.xattrs())
	e.hash = n.hash
	if n.isDir() {
		e.hash = snap.Hash{}
	}
	return true
}

// restoring lets the journal leave what changes alone until the call of what it gives.
func (d *Driver) restoring() (done func()) {
	j := d.current()
	if j == nil {
		return func() {}
	}
	j.restores.Add(1)
	return func() { j.restores.Add(-1) }
}
