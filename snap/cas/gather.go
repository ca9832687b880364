package cas

import (
	"cmp"
	"slices"
)

// seriesKey identifies a series: the objects of one kind that are versions of one thing.
type seriesKey struct {
	kind   byte
	series uint32
}

// groupAddr is where a group is stored: the number of its pack, and its offset there.
type groupAddr struct {
	seq uint32
	off int64
}

// gather lists the objects to pack: the live objects of the victims, and those of the groups that
// hold the newest versions of the same series. It sorts them so that the versions of a
// series follow each other, the oldest first. Other objects keep the order in which they were stored.
func (p *packing) gather(victims []*segment) error {
	touched := map[seriesKey]groupAddr{}
	for _, g := range victims {
		if g.isPack() {
			continue
		}
		objects, err := p.s.objectsOf(g)
		if err != nil {
			return err
		}
		live := p.s.living(g, objects)
		for i := range live {
			p.items = append(p.items, item{object: live[i], src: g})
			if live[i].series != 0 {
				touched[seriesKey{live[i].kind, live[i].series}] = groupAddr{}
			}
		}
	}
	packs := p.s.candidates((*segment).isPack)
	slices.SortFunc(packs, func(a, b *segment) int { return cmp.Compare(a.seq, b.seq) })
	if err := p.find(packs, touched); err != nil {
		return err
	}
	pulled := map[groupAddr]bool{}
	for _, at := range touched {
		pulled[at] = true
	}
	for _, g := range packs {
		if err := p.pull(g, slices.Contains(victims, g), pulled); err != nil {
			return err
		}
	}
	p.order()
	return nil
}

// find sets touched to the addresses of the groups that hold the newest versions of each series.
func (p *packing) find(packs []*segment, touched map[seriesKey]groupAddr) error {
	if len(touched) == 0 {
		return nil
	}
	for _, g := range packs {
		spans, err := p.s.scanPack(g, false)
		if err != nil {
			return err
		}
		for _, sp := range spans {
			for _, o := range sp.objects {
				k := seriesKey{o.kind, o.series}
				if _, ok := touched[k]; ok {
					touched[k] = groupAddr{g.seq, sp.off}
				}
			}
		}
	}
	return nil
}

// pull adds the live objects of g's groups in pulled to the items. If goes is set, the pack g will be removed. Then pull also
// adds the live objects of groups that have dead ones, and adds the remaining groups to whole, to be copied as they are.
func (p *packing) pull(g *segment, goes bool, pulled map[groupAddr]bool) error {
	spans, err := p.s.scanPack(g, false)
	if err != nil {
		return err
	}
	for _, sp := range spans {
		here := pulled[groupAddr{g.seq, sp.off}]
		if !here && !goes {
			continue
		}
		live := p.s.living(g, sp.objects)
		if !here && len(live) == len(sp.objects) {
			p.whole = append(p.whole, wholeGroup{g, sp})
			continue
		}
		for i := range live {
			p.items = append(p.items, item{object: live[i], src: g})
		}
	}
	return nil
}

// living returns those of objects that are live in g and not damaged.
func (c collector) living(g *segment, objects []object) (live []object) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	for i := range objects {
		o := &objects[i]
		if e, ok := c.index[o.hash]; ok && e.is(o, g.seq) && e.refs > 0 && !e.has(isBad) {
			x := *o
			x.refs = nil
			live = append(live, x)
		}
	}
	return live
}

// order sorts the items by kind, then by the age of their series, then by their own age.
func (p *packing) order() {
	slices.SortFunc(p.items, func(a, b item) int { // by age
		if a.grouped != b.grouped {
			return map[bool]int{true: -1, false: 1}[a.grouped]
		}
		return cmp.Or(cmp.Compare(a.src.seq, b.src.seq), cmp.Compare(a.off, b.off), cmp.Compare(a.slot, b.slot))
	})
	first := map[seriesKey]int{}
	for i := range p.items {
		x := &p.items[i]
		x.first = i
		if x.series == 0 {
			continue
		}
		k := seriesKey{x.kind, x.series}
		if rank, ok := first[k]; ok {
			x.first = rank
		} else {
			first[k] = i
		}
	}
	slices.SortStableFunc(p.items, func(a, b item) int {
		return cmp.Or(cmp.Compare(a.kind, b.kind), cmp.Compare(a.first, b.first))
	})
}
