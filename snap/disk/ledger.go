package disk

import (
	"slices"

	"mulligan/snap/disk/imagefile"
)

// ledger works out what collection would free, on a tree of its own.
type ledger struct {
	t       *tree
	owned   func(path string) bool // whether the file at path is one that the driver made
	foreign func(*layer) bool      // whether an image of the layer is not the driver's
	depth   int                    // how many images may lie upon each other
	known   *imagefile.MapCache
	maps    map[string]imagefile.Allocation // of merged images, by path
	freed   int64
}

func (l *ledger) mapOf(f *file) (imagefile.Allocation, error) {
	if a, ok := l.maps[f.Path]; ok {
		return a, nil
	}
	return l.known.MapOf(f.Path)
}

// settle does what Maintain would do, and adds up.
func (l *ledger) settle() error {
	for {
		for _, gone := range l.t.prune() {
			for _, f := range gone.all() {
				if !l.owned(f.Path) {
					continue
				}
				if a, ok := l.maps[f.Path]; ok {
					l.freed += a.Blocks
				} else {
					l.freed += imagefile.Blocks(f.Path)
				}
			}
		}
		j, gain, err := l.next()
		if err != nil || j == nil {
			return err
		}
		l.freed += gain
		l.t.put(j.into, j.from, j.parent)
		delete(l.t.Layers, j.from)
	}
}

// next finds a merge that is worth it, notes what the images become, and gives
// the bytes that it frees.
func (l *ledger) next() (*job, int64, error) {
	for _, j := range l.t.merges(l.foreign) {
		gain, cost, err := l.weigh(j)
		if err != nil {
			return nil, 0, err
		}
		if !worthwhile(gain, cost) && l.t.depthThrough(j.into) <= l.depth {
			continue
		}
		return &j, gain, l.apply(j)
	}
	return nil, 0, nil
}

// weigh gives what a merge frees and what it has to write, in bytes.
func (l *ledger) weigh(j job) (gain, cost int64, err error) {
	linked := l.t.linked(j)
	for dev, f := range l.t.Layers[j.from].Files {
		p, err := l.mapOf(f)
		if err != nil {
			return 0, 0, err
		}
		if !slices.Contains(linked, dev) {
			gain += p.Blocks
			continue
		}
		c, err := l.mapOf(l.t.Layers[j.into].Files[dev])
		if err != nil {
			return 0, 0, err
		}
		m := c.Over(p)
		gain += p.Blocks + c.Blocks - m.Blocks
		cost += m.Blocks
	}
	return gain, cost, nil
}

func (l *ledger) apply(j job) error {
	for _, dev := range l.t.linked(j) {
		p, err := l.mapOf(l.t.Layers[j.from].Files[dev])
		if err != nil {
			return err
		}
		into := l.t.Layers[j.into].Files[dev]
		c, err := l.mapOf(into)
		if err != nil {
			return err
		}
		l.maps[into.Path] = c.Over(p)
	}
	return nil
}

// worthwhile: small merges always are; large ones when they free an eighth of
// what they write.
func worthwhile(gain, cost int64) bool { return cost <= 64<<20 || gain*8 >= cost }
