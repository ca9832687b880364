package cas

import (
	"errors"

	"mulligan/errs"
)

// insert adds an object that was just written to the index. The caller must hold mu.
func (s *Store) insert(o object, g *segment) {
	e := s.index[o.hash]
	if old := s.segs[e.seg]; old != nil && e.refs > 0 {
		old.live -= e.size() // the copy there is damaged
	}
	e.seg, e.off, e.slot, e.stored = g.seq, o.off, o.slot, o.stored
	e.flags &^= isBad | isNode
	if o.kind == kindNode {
		e.flags |= isNode
	}
	s.index[o.hash] = e
	if e.refs > 0 {
		g.live += e.size()
		s.countRefs(o.hash, o.refs)
	}
}

// countRefs counts the refs of a live node, once. The caller must hold mu.
func (s *Store) countRefs(h Hash, refs []Hash) {
	e := s.index[h]
	if !e.has(isNode) || e.has(counted) {
		return
	}
	e.flags |= counted
	s.index[h] = e
	for _, ref := range refs {
		s.incref(ref)
	}
}

// incref adds one reference to h. h must be a blob or live (or, in a damaged store, missing), so the counts of objects below it
// do not change. The caller must hold mu.
func (s *Store) incref(h Hash) {
	if h.IsZero() {
		return
	}
	e := s.index[h]
	e.refs++
	s.index[h] = e
	if g := s.segs[e.seg]; g != nil && e.refs == 1 {
		g.live += e.size()
	}
}

// release removes one reference to each hash of list, and the references of the nodes that become dead. Meanwhile counts are
// too high and never too low, so mu need not be held while nodes are read. A node that cannot be read keeps its references: the
// space is lost until the node's content is stored again.
func (s *Store) release(list []Hash) {
	s.refMu.Lock()
	defer s.refMu.Unlock()
	for _, h := range list {
		if s.decref(h) {
			s.uncount(h)
		}
	}
}

// uncount removes the references of the dead node h, and those of the nodes that become dead by this. The caller must hold
// refMu, unless the store is not yet shared.
func (s *Store) uncount(h Hash) {
	for work := []Hash{h}; len(work) > 0; {
		h := work[len(work)-1]
		work = work[:len(work)-1]
		c, err := s.read("count references", h)
		s.mu.Lock()
		e, ok := s.index[h]
		again := ok && e.refs > 0 // the node is live again and keeps its references
		if ok && !again {
			e.flags &^= counted
			s.index[h] = e
		}
		s.mu.Unlock()
		if err != nil || !ok || again || !e.has(isNode) {
			continue
		}
		for _, ref := range c.refs {
			if s.decref(ref) {
				work = append(work, ref)
			}
		}
	}
}

// decref removes one reference to h. It returns true if h is a node that is dead now and whose refs are counted.
func (s *Store) decref(h Hash) (died bool) {
	if h.IsZero() {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	e, ok := s.index[h]
	if !ok || e.refs == 0 {
		return false
	}
	e.refs--
	s.index[h] = e
	if e.refs > 0 {
		return false
	}
	if g := s.segs[e.seg]; g != nil {
		g.live -= e.size()
	} else {
		delete(s.index, h)
	}
	return e.has(counted)
}

// forget removes the object o, which is no longer in g, from the index, and returns its refs if they were counted. The caller
// must hold mu.
func (s *Store) forget(o *object, g *segment) []Hash {
	e, ok := s.index[o.hash]
	if !ok || !e.is(o, g.seq) {
		return nil
	}
	if e.refs > 0 {
		g.live -= e.size()
	}
	was := e
	e.seg, e.off, e.slot, e.stored, e.flags = 0, 0, 0, 0, 0
	if s.index[o.hash] = e; e.refs == 0 {
		delete(s.index, o.hash)
	}
	if was.has(counted) {
		return o.refs
	}
	return nil
}

// Delete drops roots durably. Unknown names are no error. Delete works even if the disk is full. Collect frees the space.
func (s *Store) Delete(names ...string) error {
	return s.commit("delete from the store", func(c *change) error {
		s.mu.RLock()
		defer s.mu.RUnlock()
		if s.closed {
			return closedError("")
		}
		seen := map[string]bool{}
		for _, name := range names {
			if _, ok := s.roots[name]; ok && !seen[name] {
				seen[name] = true
				c.drop = append(c.drop, name)
			}
		}
		if len(c.drop) == 0 {
			return errNothing
		}
		return nil
	})
}

// errNothing is the error of the prepare function of commit if there is nothing to write.
var errNothing = errors.New("nothing to do")

// commit writes a change, makes it durable together with everything written before, and only then makes it visible. commit
// calls prepare with wmu held, and prepare fills in the change.
func (s *Store) commit(op string, prepare func(*change) error) error {
	gone, err := s.append(prepare)
	s.release(gone) // without wmu, so that the log need not wait
	if errors.Is(err, errNothing) {
		return nil
	}
	var e *errs.Error
	if errors.As(err, &e) {
		return errs.Wrap(e.Kind, op, err)
	}
	return s.ioError(op, err)
}

// append does the part of commit that writes to the log. gone are the former objects of replaced and deleted roots.
func (s *Store) append(prepare func(*change) error) (gone []Hash, err error) {
	s.wmu.Lock()
	defer s.wmu.Unlock()
	c := change{id: s.changeID + 1, durable: s.active.durable}
	if err := prepare(&c); err != nil {
		return nil, err
	}
	if err := s.opt.Failpoint.At("append-change"); err != nil {
		return nil, err
	}
	if _, err := s.write(c.record()); err != nil {
		return nil, err
	}
	if err := s.sync(); err != nil {
		return nil, err
	}
	s.changeID++
	gone = s.apply(c)
	s.again(c)
	return gone, nil
}

// again writes a second copy of a durable change. The copy protects the roots if one place is damaged, and records up to which
// offset the log is durable, by which a scan after a power cut distinguishes damage from a torn end. again does not sync the
// copy: the store is complete without it.
func (s *Store) again(c change) {
	if s.opt.Failpoint.At("append-again") != nil {
		return
	}
	c.durable = s.active.durable
	_, _ = s.write(c.record())
}

// apply makes a durable change visible. gone are the former objects of replaced and deleted roots.
func (s *Store) apply(c change) (gone []Hash) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range c.set {
		s.incref(r.Hash)
		if old, ok := s.roots[r.Name]; ok {
			gone = append(gone, old.Hash)
		}
		s.roots[r.Name] = r
	}
	for _, name := range c.drop {
		gone = append(gone, s.roots[name].Hash)
		delete(s.roots, name)
	}
	return gone
}

// Unique returns the bytes on disk that deleting exactly these roots would free. It ignores unknown names.
func (s *Store) Unique(names ...string) (int64, error) {
	const op = "measure roots"
	s.mu.RLock()
	var work []Hash
	seen := map[string]bool{}
	for _, name := range names {
		if r, ok := s.roots[name]; ok && !seen[name] {
			seen[name] = true
			work = append(work, r.Hash)
		}
	}
	s.mu.RUnlock()
	var total int64
	taken := map[Hash]uint32{}
	for len(work) > 0 {
		h := work[len(work)-1]
		work = work[:len(work)-1]
		if h.IsZero() {
			continue
		}
		taken[h]++
		s.mu.RLock()
		e, ok := s.index[h]
		s.mu.RUnlock()
		if !ok || e.seg == 0 || taken[h] != e.refs {
			continue
		}
		total += e.size()
		if !e.has(counted) {
			continue
		}
		c, err := s.read(op, h)
		if errs.KindOf(err) == errs.Corrupt {
			continue // release cannot read the node either, and would keep its references
		}
		if err != nil {
			return 0, errs.Wrap(errs.Failed, op, err)
		}
		work = append(work, c.refs...)
	}
	return total, nil
}
