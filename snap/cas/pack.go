package cas

import (
	"context"
	"slices"
	"time"

	"mulligan/durable"
	"mulligan/errs"
)

const opPack = "pack the store"

// packAtMost is the size of unpacked objects, in bytes, at which Pack packs them in any store. Pack packs them earlier if they
// reach an eighth of the size of the packed ones.
const packAtMost = 64 << 20

// groupBytes is the length of the stream, in bytes, at which a group is full. A full group ends before the next series, or when
// the stream is longer than groupBytes by twice the size of its last object. No stream is longer than maxStream.
const groupBytes = 64 << 10

// Pack moves objects from the log into packs, where they are smaller, if there are enough of them to be worth the work. It stores
// versions of the same thing (see [Batch.Series]) as deltas, and compresses objects together in groups. It goes on slowly while a
// batch is open; reads continue. Pack needs free space for one or two segments at a time; without it, the objects stay where they
// are. Pack returns the bytes saved, also with an error.
func (s *Store) Pack(ctx context.Context) (saved int64, err error) {
	s.gc.Lock()
	defer s.gc.Unlock()
	if s.isClosed() {
		return 0, closedError(opPack)
	}
	if err := s.Unread(); err != nil { // what is packed is deleted where it was
		return 0, errs.Wrap(errs.Corrupt, opPack, err)
	}
	c := collector{s}
	before := s.DiskUsage()
	defer func() { saved = before - s.DiskUsage() }()
	if !c.worthPacking() {
		return 0, nil
	}
	if err := c.seal(); err != nil {
		return 0, err
	}
	loose := c.candidates(func(g *segment) bool { return !g.isPack() && g.live > 0 })
	slices.SortFunc(loose, func(a, b *segment) int { return int(int64(a.seq) - int64(b.seq)) })
	for g := range slices.Chunk(loose, 2) {
		if err := c.repack(ctx, append(slices.Clone(g), c.smallPacks(g)...)); err != nil {
			return 0, err
		}
	}
	return 0, s.ioError(opPack, durable.Sync(s.dir))
}

func (c collector) worthPacking() bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	var loose, packed int64
	for _, g := range c.segs {
		if g.isPack() {
			packed += g.live
		} else {
			loose += g.live
		}
	}
	return loose > 0 && loose >= max(min(packed/8, packAtMost), c.opt.PackBytes)
}

// seal begins a new active segment, unless the present one has no objects.
func (c collector) seal() error {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	if len(c.active.objects) == 0 {
		return nil
	}
	return c.ioError(opPack, c.roll())
}

// smallPacks returns the packs that are not much larger than the segments in loose. They are rewritten together with these, so
// that the store never has many packs.
func (c collector) smallPacks(loose []*segment) (small []*segment) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	var sum int64
	for _, g := range loose {
		sum += g.live
	}
	var packs []*segment
	for _, g := range c.segs {
		if g.isPack() && g.live < c.opt.SegmentBytes/2 {
			packs = append(packs, g)
		}
	}
	slices.SortFunc(packs, func(a, b *segment) int { return int(a.live - b.live) })
	for _, g := range packs {
		if g.live > 2*sum {
			break
		}
		small, sum = append(small, g), sum+g.live
	}
	return small
}

// repack moves the live objects of the victims, which are sealed segments and packs, into new packs, and removes the victims.
// It also moves groups of other packs that have versions of the same things. After an error, each object is where it was, or in
// a new pack.
func (c collector) repack(ctx context.Context, victims []*segment) (err error) {
	p := &packing{s: c, ctx: ctx}
	defer p.close()
	if err := p.gather(victims); err != nil {
		return c.ioErrorOr(opPack, err)
	}
	if err := p.run(); err != nil {
		return c.ioErrorOr(opPack, err)
	}
	for _, g := range victims {
		if err := c.removeEmpty(g); err != nil {
			return err
		}
	}
	return nil
}

// removeEmpty removes a sealed segment if it has no live objects.
func (c collector) removeEmpty(g *segment) error {
	objects, err := c.objectsOf(g)
	if err != nil {
		return c.ioError(opPack, err)
	}
	if _, gone := c.vacate(g, objects); !gone {
		return nil
	}
	if err := c.opt.Failpoint.At("remove-segment"); err != nil {
		return c.ioError(opPack, err)
	}
	return c.ioError(opPack, g.remove())
}

// packing is one run of repack.
type packing struct {
	s   collector
	ctx context.Context

	items []item
	whole []wholeGroup // groups of victims that are copied as they are

	out   *packWriter
	moves []move // the moves of the objects in out
}

// item is an object to be packed.
type item struct {
	object
	src   *segment
	first int // rank of the oldest item of the same series
}

// wholeGroup is a group that is copied as it is.
type wholeGroup struct {
	src *segment
	span
}

func (p *packing) close() {
	if p.out != nil {
		p.out.abandon()
	}
}

// run writes all groups and items into packs.
func (p *packing) run() error {
	for _, w := range p.whole {
		if err := p.copyGroup(w); err != nil {
			return err
		}
	}
	b := &builder{p: p}
	for i := range p.items {
		if err := b.add(&p.items[i]); err != nil {
			return err
		}
	}
	if err := b.flush(); err != nil {
		return err
	}
	return p.publish()
}

// copyGroup copies a group as it is. A damaged group stays where it is.
func (p *packing) copyGroup(w wholeGroup) error {
	r, err := p.s.groupRecord(w.src, w.off)
	if err == nil && !r.intact() {
		err = errGroup
	}
	if err != nil {
		if ioFailure(err) {
			return err
		}
		for i := range w.objects {
			p.s.markBad(w.objects[i].hash, entry{seg: w.src.seq, off: w.objects[i].off, slot: w.objects[i].slot})
		}
		return nil
	}
	return p.write(r, func(off int64) {
		for _, o := range w.objects {
			to := o
			to.off = uint32(off)
			p.moves = append(p.moves, move{from: o, to: to, src: w.src, seg: p.out.g})
		}
	})
}

// write appends a group to the pack, or to a new pack if this one is full. It calls moved with the group's offset.
func (p *packing) write(r *record, moved func(off int64)) error {
	if err := p.ctx.Err(); err != nil {
		return errs.Wrap(errs.Unavailable, opPack, err)
	}
	if r.raw > maxPayload || r.stored > maxPayload {
		return errs.New(errs.Internal, opPack, "a record of %d bytes, %d in all, is over the limit of %d", r.raw, r.stored, maxPayload)
	}
	if p.out != nil && p.out.g.size.Load()+r.size() > p.s.opt.SegmentBytes {
		if err := p.publish(); err != nil {
			return err
		}
	}
	if p.out == nil {
		out, err := p.s.newPack()
		if err != nil {
			return err
		}
		p.out = out
	}
	off, err := p.out.add(r)
	if err != nil {
		return err
	}
	moved(off)
	return nil
}

// publish makes the pack durable, and lets the index point to its objects.
func (p *packing) publish() error {
	if p.out == nil {
		return nil
	}
	if err := p.out.finish(); err != nil {
		return err
	}
	s, g := p.s, p.out.g
	if err := s.opt.Failpoint.At("publish-pack"); err != nil {
		// Nothing points to the pack. Without its removal, the next Open would find copies in it.
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.segs[g.seq] = g
	for _, m := range p.moves {
		s.relocate(m)
	}
	p.out, p.moves = nil, nil
	return nil
}

// giveWay pauses while batches are open, so that others get the processor: a capture and a restore keep one open while they look
// at files. After five pauses packing goes on nevertheless. began is the time at which the present piece of work began.
func (p *packing) giveWay(began time.Time) {
	pause := min(4*time.Since(began), 100*time.Millisecond)
	for i := 0; i < 5 && p.s.open.Load() > 0; i++ {
		select {
		case <-time.After(pause):
		case <-p.ctx.Done():
			return
		}
	}
}
