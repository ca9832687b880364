package layertree

import (
	"slices"

	"mulligan/snap/disk/imagefile"
)

// Ledger computes the space that Maintain would free, on its own copy of the tree.
type Ledger struct {
	Tree    *Tree
	Owned   func(path string) bool // reports whether the driver made the file at path
	Foreign func(*Layer) bool      // reports whether an image of the layer was not made by the driver
	Depth   int                    // the length of a backing chain above which images are merged
	Known   *imagefile.MapCache
	Maps    map[string]imagefile.Allocation // of merged images, by path
	Skip    func(Job) bool                  // reports whether a merge is left out; nil: none is
	Freed   int64
}

func (l *Ledger) mapOf(f *File) (imagefile.Allocation, error) {
	if a, ok := l.Maps[f.Path]; ok {
		return a, nil
	}
	return l.Known.MapOf(f.Path)
}

// Maintain changes the tree in memory as Driver.Maintain would change the disks, and adds up the bytes that this would free.
func (l *Ledger) Maintain() error {
	for {
		for _, gone := range l.Tree.Prune() {
			for _, f := range gone.All() {
				if !l.Owned(f.Path) {
					continue
				}
				if a, ok := l.Maps[f.Path]; ok {
					l.Freed += a.Blocks
				} else {
					l.Freed += imagefile.Blocks(f.Path)
				}
			}
		}
		j, gain, err := l.Next()
		if err != nil || j == nil {
			return err
		}
		l.Freed += gain
		l.Tree.Put(j.Into, j.From, j.Parent)
		delete(l.Tree.Layers, j.From)
	}
}

// Next applies the next worthwhile merge to the tree and the allocations, and returns the bytes that it frees. With an error,
// it returns the merge that cannot be weighed.
func (l *Ledger) Next() (*Job, int64, error) {
	for _, j := range l.Tree.merges(l.Foreign) {
		if l.Skip != nil && l.Skip(j) {
			continue
		}
		gain, cost, err := l.weigh(j)
		if err != nil {
			return &j, 0, err
		}
		if !worthwhile(gain, cost) && l.Tree.depthThrough(j.Into) <= l.Depth {
			continue
		}
		return &j, gain, l.apply(j)
	}
	return nil, 0, nil
}

// weigh returns the bytes that a merge frees and the bytes that it writes.
func (l *Ledger) weigh(j Job) (gain, cost int64, err error) {
	linked := l.Tree.Linked(j)
	for dev, f := range l.Tree.Layers[j.From].Files {
		p, err := l.mapOf(f)
		if err != nil {
			return 0, 0, err
		}
		if !slices.Contains(linked, dev) {
			gain += p.Blocks
			continue
		}
		c, err := l.mapOf(l.Tree.Layers[j.Into].Files[dev])
		if err != nil {
			return 0, 0, err
		}
		m := c.Over(p)
		gain += p.Blocks + c.Blocks - m.Blocks
		cost += m.Blocks
	}
	return gain, cost, nil
}

func (l *Ledger) apply(j Job) error {
	for _, dev := range l.Tree.Linked(j) {
		p, err := l.mapOf(l.Tree.Layers[j.From].Files[dev])
		if err != nil {
			return err
		}
		into := l.Tree.Layers[j.Into].Files[dev]
		c, err := l.mapOf(into)
		if err != nil {
			return err
		}
		l.Maps[into.Path] = c.Over(p)
	}
	return nil
}

// worthwhile reports whether a merge should be done: a small one always, a large one if it frees an eighth of the bytes that it
// writes.
func worthwhile(gain, cost int64) bool { return cost <= 64<<20 || gain*8 >= cost }
