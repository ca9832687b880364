package cas

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"sort"

	"golang.org/x/sys/unix"

	"mulligan/durable"
	"mulligan/errs"
)

const opCollect = "collect the store's garbage"

// collector moves the objects of a store's segments, and frees segments. The caller of its methods must hold gc, unless the
// store is not yet shared.
type collector struct{ *Store }

// Collect frees the space of garbage: of objects that are reachable from no root and no open batch. It works on segments of
// which more than half is garbage. It copies the live objects of such a segment elsewhere, makes the copies durable, and
// removes the segment. This needs free space for the live objects of one segment at a time. If there is none, Collect punches
// holes into the segment instead. Batches and reads continue meanwhile. Collect returns the bytes freed, also with an error. A segment
// that cannot be collected keeps no other one from it; the error is that of the first. It does nothing if there is an error of Unread.
func (s *Store) Collect(ctx context.Context) (freed int64, err error) {
	s.gc.Lock()
	defer s.gc.Unlock() // Close waits for Collect
	if s.isClosed() {
		return 0, closedError(opCollect)
	}
	if err := s.Unread(); err != nil {
		return 0, errs.Wrap(errs.Corrupt, opCollect, err)
	}
	c := collector{s}
	note := func(e error) {
		if err == nil {
			err = e
		}
	}
	collect := func(g *segment, how func(context.Context, *segment) (int64, error)) {
		if ctx.Err() != nil {
			note(errs.Wrap(errs.Unavailable, opCollect, ctx.Err()))
			return
		}
		n, e := how(ctx, g)
		freed += n
		note(e)
	}
	// Segments without live objects go first: their space may be needed for the copies.
	for _, g := range c.candidates(func(g *segment) bool { return g.live == 0 }) {
		collect(g, c.vacateSegment)
	}
	note(c.retire())
	for _, g := range c.candidates(func(g *segment) bool { return 2*g.live < g.onDisk() }) {
		collect(g, c.vacateOrPunch)
	}
	note(s.ioError(opCollect, durable.Sync(s.dir)))
	return freed, err
}

// vacateOrPunch does the same as vacateSegment, and punches holes into g if there is no space for that.
func (c collector) vacateOrPunch(ctx context.Context, g *segment) (freed int64, err error) {
	freed, err = c.vacateSegment(ctx, g)
	if !noSpace(err) {
		return freed, err
	}
	n, err := c.punch(g)
	return freed + n, err
}

// vacateSegment moves the live objects of g elsewhere and removes g.
func (c collector) vacateSegment(ctx context.Context, g *segment) (freed int64, err error) {
	if !g.isPack() {
		return c.evacuate(ctx, g)
	}
	before := c.DiskUsage()
	err = c.repack(ctx, []*segment{g})
	return before - c.DiskUsage(), err
}

// candidates returns the sealed segments for which want returns true, those with the fewest live bytes first.
func (c collector) candidates(want func(*segment) bool) []*segment {
	c.mu.RLock()
	defer c.mu.RUnlock()
	var list []*segment
	live := map[*segment]int64{}
	for _, g := range c.segs {
		if g != c.active && want(g) {
			list, live[g] = append(list, g), g.live
		}
	}
	sort.Slice(list, func(i, j int) bool {
		a, b := list[i], list[j]
		return live[a] < live[b] || live[a] == live[b] && a.seq < b.seq
	})
	return list
}

// retire seals the active segment if more than half of the bytes of its objects are dead, so that it can be collected like the
// others.
func (c collector) retire() error {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	var held int64
	for i := range c.active.objects {
		held += c.active.objects[i].size()
	}
	c.mu.RLock()
	live := c.active.live
	c.mu.RUnlock()
	if held == 0 || 2*live >= held {
		return nil
	}
	return c.ioError(opCollect, c.roll())
}

// evacuate copies the live objects of the sealed segment g to the log's end and removes g. If live objects of g are damaged,
// they and the segment stay, because a part of their content may still be recoverable.
func (c collector) evacuate(ctx context.Context, g *segment) (freed int64, err error) {
	objects, err := c.objectsOf(g)
	if err != nil {
		return 0, c.ioError(opCollect, err)
	}
	var copied int64
	for {
		live, gone := c.vacate(g, objects)
		if gone {
			break
		}
		if len(live) == 0 {
			return -copied, nil
		}
		n, err := c.copyAll(ctx, g, live)
		copied += n
		if err != nil {
			return -copied, err
		}
	}
	if err := c.opt.Failpoint.At("remove-segment"); err != nil {
		return -copied, c.ioError(opCollect, err)
	}
	freed = g.onDisk() + g.indexSize.Load() - copied
	if err := g.remove(); err != nil {
		return -copied, c.ioError(opCollect, err)
	}
	return freed, nil
}

// vacate returns the undamaged live objects of g. If g has no live objects, not even damaged ones, vacate removes g and its
// dead objects from the index in the same step, and gone is true.
func (c collector) vacate(g *segment, objects []object) (live []object, gone bool) {
	c.refMu.Lock() // so that no release is reading a dead node of g
	defer c.refMu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	here := func(o *object) (entry, bool) {
		e, ok := c.index[o.hash]
		return e, ok && e.is(o, g.seq)
	}
	damaged := false
	for i := range objects {
		switch e, ok := here(&objects[i]); {
		case !ok || e.refs == 0:
		case e.has(isBad):
			damaged = true
		default:
			live = append(live, objects[i])
		}
	}
	if len(live) > 0 || damaged {
		return live, false
	}
	for i := range objects {
		if _, ok := here(&objects[i]); ok {
			delete(c.index, objects[i].hash)
		}
	}
	delete(c.segs, g.seq)
	return nil, true
}

// move is the move of one object out of a segment.
type move struct {
	from, to object
	src, seg *segment
}

// copyAll copies objects of g to the log's end, makes the copies durable, and only then lets the index point to them. Objects
// that turn out to be damaged stay. After an error of copying, the index points to the copies made so far.
func (c collector) copyAll(ctx context.Context, g *segment, objects []object) (copied int64, err error) {
	c.mu.RLock()
	epoch := c.epoch
	c.mu.RUnlock()
	moves, failure := c.copyEach(ctx, g, objects)
	for _, m := range moves {
		copied += m.to.size()
	}
	c.wmu.Lock()
	defer c.wmu.Unlock()
	if err := c.opt.Failpoint.At("sync-copies"); err != nil {
		return copied, c.ioError(opCollect, err)
	}
	if err := c.sync(); err != nil {
		return copied, c.ioError(opCollect, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.epoch != epoch {
		return copied, errs.New(errs.Failed, opCollect, "copies were lost when the disk failed")
	}
	for _, m := range moves {
		c.relocate(m)
	}
	return copied, failure
}

// copyEach copies objects until copying one fails. It skips damaged ones.
func (c collector) copyEach(ctx context.Context, g *segment, objects []object) (moves []move, err error) {
	for i := range objects {
		if err := ctx.Err(); err != nil {
			return moves, errs.Wrap(errs.Unavailable, opCollect, err)
		}
		m, err := c.copyOne(g, objects[i])
		if errs.KindOf(err) == errs.Corrupt {
			continue
		}
		if err != nil {
			return moves, err
		}
		moves = append(moves, m)
	}
	return moves, nil
}

// copyOne copies one object of g to the log's end.
func (c collector) copyOne(g *segment, o object) (m move, err error) {
	r, err := c.loadRecord(g, o.hash, entry{off: o.off, stored: o.stored})
	if err != nil {
		if ioFailure(err) {
			return m, c.ioError(opCollect, err)
		}
		c.markBad(o.hash, entry{seg: g.seq, off: o.off})
		return m, &errs.Error{Kind: errs.Corrupt, Op: opCollect, Message: "object " + o.hash.String(), Err: err}
	}
	c.wmu.Lock()
	defer c.wmu.Unlock()
	to, err := c.appendObject(r)
	if err != nil {
		return m, c.ioError(opCollect, err)
	}
	return move{from: o, to: to, src: g, seg: c.active}, nil
}

// relocate lets the index point to a durable copy. The caller must hold mu.
func (c collector) relocate(m move) {
	e, ok := c.index[m.from.hash]
	if !ok || !e.is(&m.from, m.src.seq) || e.has(isBad) {
		return
	}
	was := e.size()
	e.seg, e.off, e.slot, e.stored = m.seg.seq, m.to.off, m.to.slot, m.to.stored
	if e.refs > 0 {
		m.src.live -= was
		m.seg.live += e.size()
	}
	c.index[m.from.hash] = e
}

// punch frees the space of the dead objects of the sealed segment g by punching holes into it. It is for a disk without space
// for copies of the live ones.
func (c collector) punch(g *segment) (freed int64, err error) {
	objects, err := c.objectsOf(g)
	if err != nil {
		return 0, c.ioError(opCollect, err)
	}
	before := g.onDisk()
	kept, dead := c.bury(g, objects)
	if g.isPack() {
		dead, err = c.deadGroups(g, kept)
		if err != nil {
			return 0, c.ioError(opCollect, err)
		}
	}
	// The index file must not name the objects that are freed now, not even after a power cut.
	if err := os.Remove(g.indexPath()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0, c.ioError(opCollect, err)
	}
	g.indexSize.Store(0)
	if err := durable.Sync(c.dir); err != nil {
		return 0, c.ioError(opCollect, err)
	}
	if err := c.opt.Failpoint.At("punch-segment"); err != nil {
		return 0, c.ioError(opCollect, err)
	}
	for len(dead) > 0 {
		n, off, end := 1, int64(dead[0].off), int64(dead[0].off)+dead[0].size()
		for ; n < len(dead) && int64(dead[n].off) == end; n++ {
			end += dead[n].size()
		}
		dead = dead[n:]
		if err := unix.Fallocate(int(g.f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, end-off); err != nil {
			return 0, c.ioError(opCollect, err)
		}
	}
	if !g.isPack() {
		_ = c.writeIndex(g, kept) // without an index file, the next Open scans the segment
	}
	return before - g.measure(), nil
}

// deadGroups returns the groups of a pack that have none of the objects in kept. Each group is returned as one object.
func (c collector) deadGroups(g *segment, kept []object) (dead []object, err error) {
	spans, err := c.scanPack(g, false)
	needed := map[uint32]bool{}
	for i := range kept {
		needed[kept[i].off] = true
	}
	for _, sp := range spans {
		if !needed[uint32(sp.off)] {
			dead = append(dead, object{off: uint32(sp.off), stored: uint32(sp.size - headerSize)})
		}
	}
	return dead, err
}

// bury removes the dead objects of g from the index. kept are the objects whose live copy is in g, and dead are the others.
func (c collector) bury(g *segment, objects []object) (kept, dead []object) {
	c.refMu.Lock()
	defer c.refMu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, o := range objects {
		e, ok := c.index[o.hash]
		here := ok && e.is(&o, g.seq)
		if here && e.refs > 0 {
			kept = append(kept, o)
			continue
		}
		if here {
			delete(c.index, o.hash)
		}
		dead = append(dead, o)
	}
	return kept, dead
}
