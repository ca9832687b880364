package cas

import (
	"context"
	"slices"
	"time"

	"mulligan/durable"
	"mulligan/errs"
)

const opPack = "pack the store"

// packAtMost is how much lies loose at most before it is packed, in bytes. It
// is less where an eighth of what is packed already is less.
const packAtMost = 64 << 20

// When a group is full, in bytes of its stream: at the next series, or anyhow when
// it is longer than that and twice the object that would come next.
const groupBytes = 64 << 10

// Pack makes what lies loose in the log smaller, if there is enough of it to be
// worth the work: versions of the same thing (see [Batch.Series]) are kept as
// differences, and all is compressed together in groups. It is for times when
// nothing else happens, and gives way to batches; reads go on. It needs room for
// a segment or two at a time, and leaves everything as it was where there is
// none. It returns the bytes saved, also with an error.
func (s *Store) Pack(ctx context.Context) (saved int64, err error) {
	s.gc.Lock()
	defer s.gc.Unlock()
	if s.isClosed() {
		return 0, closedError(opPack)
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

// seal begins a new active segment, unless this one is empty.
func (c collector) seal() error {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	if len(c.active.objects) == 0 {
		return nil
	}
	return c.ioError(opPack, c.roll())
}

// smallPacks lists the packs that are not much larger than what is being packed
// anyhow: written anew with it, there are never many packs.
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

// repack moves what lives in the victims, sealed segments and packs, into new
// packs, and removes them. Groups of other packs that hold versions of the same
// things move with it. After an error each object is where it was, or in a pack.
func (c collector) repack(ctx context.Context, victims []*segment) (err error) {
	p := &packing{s: c, ctx: ctx, commits: c.commits.Load()}
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

// removeEmpty removes a sealed segment with nothing alive in it; another stays.
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
	whole []wholeGroup // of victims: these are copied as they are

	out     *packWriter
	moves   []move // of what is in out
	commits uint64
}

// item is an object to be packed.
type item struct {
	object
	src   *segment
	first int // the rank of the oldest item that it is a version of the same thing with
}

// wholeGroup is a group in which nothing changes.
type wholeGroup struct {
	src *segment
	span
}

func (p *packing) close() {
	if p.out != nil {
		p.out.abandon()
	}
}

// run writes everything.
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

// copyGroup takes over a group as it is. A damaged one stays where it is.
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

// write puts a group into the pack, beginning a new one when it is full.
func (p *packing) write(r *record, moved func(off int64)) error {
	if err := p.ctx.Err(); err != nil {
		return errs.Wrap(errs.Unavailable, opPack, err)
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

// publish makes the pack durable, and lets the index point into it.
func (p *packing) publish() error {
	if p.out == nil {
		return nil
	}
	if err := p.out.finish(); err != nil {
		return err
	}
	s, g := p.s, p.out.g
	if err := s.opt.Failpoint.At("publish-pack"); err != nil {
		// It is there, and of no use: the next opening would find copies.
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

// giveWay lets others at the processor, after work that took a while, when
// somebody is using the store.
func (p *packing) giveWay(began time.Time) {
	now := p.s.commits.Load()
	if now == p.commits {
		return
	}
	p.commits = now
	select {
	case <-time.After(min(4*time.Since(began), 100*time.Millisecond)):
	case <-p.ctx.Done():
	}
}
