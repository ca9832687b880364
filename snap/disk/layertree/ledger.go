package layertree

import (
	"slices"

	"mulligan/snap/disk/imagefile"
)

// ledger works out what collection would free, on a tree of its own.
type Ledger struct {
	Tree    *Tree
	Owned   func(path string) bool // whether the file at path is one that the driver made
	Foreign func(*Layer) bool      // whether an image of the layer is not the driver's
	Depth   int                    // how many images may lie upon each other
	Known   *imagefile.MapCache
	Maps    map[string]imagefile.Allocation // of merged images, by path
	Freed   int64
}

func (l *Ledger) mapOf(f *File) (imagefile.Allocation, error) {
	if a, ok := l.Maps[f.Path]; ok {
		return a, nil
	}
	return l.Known.MapOf(f.Path)
}

// Maintain does to the tree in memory what Driver.Maintain would do to the disks, and adds up the bytes that it would free.
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

// next finds a merge that is worth it, notes what the images become, and gives
// the bytes that it frees.
func (l *Ledger) Next() (*Job, int64, error) {
	for _, j := range l.Tree.merges(l.Foreign) {
		gain, cost, err := l.weigh(j)
		if err != nil {
			return nil, 0, err
		}
		if !worthwhile(gain, cost) && l.Tree.depthThrough(j.Into) <= l.Depth {
			continue
		}
		return &j, gain, l.apply(j)
	}
	return nil, 0, nil
}

// weigh gives what a merge frees and what it has to write, in bytes.
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

// worthwhile: small merges always are; large ones when they free an eighth of
// what they write.
func worthwhile(gain, cost int64) bool { return cost <= 64<<20 || gain*8 >= cost }
