package cas

import (
	"errors"

	"mulligan/errs"
)

// insert enters an object just written. mu is held.
func (s *Store) insert(o object, g *segment) {
	e := s.index[o.hash]
	if old := s.segs[e.seg]; old != nil && e.refs > 0 {
		old.live -= e.size() // it was damaged there
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

// countRefs counts the refs of a node that is live. mu is held.
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

// incref counts one more reference to h, which is a blob or live (or, in a
// damaged store, missing): so nothing below it changes. mu is held.
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

// release removes one reference to each hash of list, and the references of nodes that have none left. Meanwhile counts are too
// high and never too low, so mu need not be held while nodes are read. A node that cannot be read keeps its references: the
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

// uncount takes back the refs of the dead node h, and of the nodes that die of
// it. refMu is held, or the store not yet shared.
func (s *Store) uncount(h Hash) {
	for work := []Hash{h}; len(work) > 0; {
		h := work[len(work)-1]
		work = work[:len(work)-1]
		c, err := s.read("count references", h)
		s.mu.Lock()
		e, ok := s.index[h]
		again := ok && e.refs > 0 // somebody refers to it anew: leave its counts
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

// decref takes back one reference to h and reports whether a node died whose
// refs are counted.
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

// forget takes the object o, which is no longer in g, out of the index and
// returns the refs that it counted. mu is held.
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

// Delete drops roots, durably; names that are unknown are no error. It works
// when the disk is full. The space comes back with Collect.
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

// errNothing is what a prepare answers with when there is nothing to write.
var errNothing = errors.New("nothing to do")

// commit writes a change, makes it durable together with all that was written
// before it, and only then lets it be seen. prepare fills the change in, with
// the log held still.
func (s *Store) commit(op string, prepare func(*change) error) error {
	gone, err := s.append(prepare)
	s.release(gone) // the log need not wait for it
	if errors.Is(err, errNothing) {
		return nil
	}
	var e *errs.Error
	if errors.As(err, &e) {
		return errs.Wrap(e.Kind, op, err)
	}
	return s.ioError(op, err)
}

// append does the log's part of commit and returns what is no longer referred to.
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
	s.commits.Add(1)
	gone = s.apply(c)
	s.again(c)
	return gone, nil
}

// again writes a second copy of a change that is durable. It protects the roots
// from damage to one place, and says how far the log is durable: after a
// power cut that is what tells damage from a torn end. It is not waited for,
// and the store is whole without it.
func (s *Store) again(c change) {
	if s.opt.Failpoint.At("append-again") != nil {
		return
	}
	c.durable = s.active.durable
	_, _ = s.write(c.record())
}

// apply makes a durable change visible, and returns what is no longer referred to.
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

// Unique is the number of bytes on disk that deleting exactly these roots would
// free. Names that are unknown count nothing.
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
			continue // what it refers to is not freed either
		}
		if err != nil {
			return 0, errs.Wrap(errs.Failed, op, err)
		}
		work = append(work, c.refs...)
	}
	return total, nil
}
