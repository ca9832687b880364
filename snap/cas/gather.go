package cas

import (
	"cmp"
	"slices"
)

// kinship names a thing that objects are versions of.
type kinship struct {
	kind byte
	kin  uint32
}

// place is one group of one pack.
type place struct {
	seq uint32
	off int64
}

// gather lists what is to be packed: what lives in the victims and, of all packs,
// the groups that hold the newest versions of the same things, in an order in
// which versions follow each other, the oldest first, and all else stays beside
// what it was stored with.
func (p *packing) gather(victims []*segment) error {
	touched := map[kinship]place{}
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
			if live[i].kin != 0 {
				touched[kinship{live[i].kind, live[i].kin}] = place{}
			}
		}
	}
	packs := p.s.candidates((*segment).isPack)
	slices.SortFunc(packs, func(a, b *segment) int { return cmp.Compare(a.seq, b.seq) })
	if err := p.find(packs, touched); err != nil {
		return err
	}
	pulled := map[place]bool{}
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

// find fills in where the newest group with versions of each touched thing is.
func (p *packing) find(packs []*segment, touched map[kinship]place) error {
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
				k := kinship{o.kind, o.kin}
				if _, ok := touched[k]; ok {
					touched[k] = place{g.seq, sp.off}
				}
			}
		}
	}
	return nil
}

// pull takes the groups of a pack apart that are pulled or, where the pack is
// to go, hold what is dead; the others of such a pack are taken over whole.
func (p *packing) pull(g *segment, goes bool, pulled map[place]bool) error {
	spans, err := p.s.scanPack(g, false)
	if err != nil {
		return err
	}
	for _, sp := range spans {
		here := pulled[place{g.seq, sp.off}]
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

// living lists the objects that live in g and are not damaged.
func (s *Store) living(g *segment, objects []object) (live []object) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for i := range objects {
		o := &objects[i]
		if e, ok := s.index[o.hash]; ok && e.is(o, g.seq) && e.refs > 0 && !e.has(isBad) {
			x := *o
			x.refs = nil
			live = append(live, x)
		}
	}
	return live
}

// order sorts the items.
func (p *packing) order() {
	slices.SortFunc(p.items, func(a, b item) int { // by age
		return cmp.Or(compareBool(a.grouped, b.grouped), cmp.Compare(a.src.seq, b.src.seq), cmp.Compare(a.off, b.off), cmp.Compare(a.slot, b.slot))
	})
	first := map[kinship]int{}
	for i := range p.items {
		x := &p.items[i]
		x.first = i
		if x.kin == 0 {
			continue
		}
		k := kinship{x.kind, x.kin}
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

// compareBool puts true first.
func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}
