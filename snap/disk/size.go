package disk

import (
	"context"
	"os"
	"slices"
	"sync"

	"mulligan/errs"
	"mulligan/snap"
)

// allocation is what an image holds itself.
type allocation struct {
	list    []extent // what it has a word on
	data    []extent // what of it takes room; the rest reads as zeros
	tables  int      // L2 tables
	cluster int64    // bytes
	span    int64    // bytes that one L2 table describes
	blocks  int64    // bytes on disk
}

// mapCache remembers the allocations of frozen images.
type mapCache struct {
	mu sync.Mutex
	of map[string]cachedMap // by path
}

type cachedMap struct {
	stat stat
	allocation
}

// mapOf reads what an image holds, or remembers it.
func (d *Driver) mapOf(f *file) (allocation, error) {
	st, err := statOf(f.Path)
	if err != nil {
		return allocation{}, err
	}
	d.maps.mu.Lock()
	known, ok := d.maps.of[f.Path]
	d.maps.mu.Unlock()
	if ok && known.stat == st {
		return known.allocation, nil
	}
	img, r, err := openImage(f.Path)
	if err != nil {
		return allocation{}, err
	}
	defer r.Close() // only read
	a := allocation{cluster: img.Cluster, span: img.span(), blocks: blocks(f.Path)}
	if a.list, a.data, a.tables, err = img.allocated(r); err != nil {
		return allocation{}, errs.New(errs.Corrupt, "", "%s: %v", f.Path, err)
	}
	d.maps.mu.Lock()
	defer d.maps.mu.Unlock()
	if d.maps.of == nil {
		d.maps.of = map[string]cachedMap{}
	}
	d.maps.of[f.Path] = cachedMap{st, a}
	return a, nil
}

// page is the piece of a file that takes room or is a hole, in bytes.
const page = 4 << 10

// over is what an image becomes when p, which it rests on, is merged into it.
func (a allocation) over(p allocation) allocation {
	m := a
	brought := without(p.data, a.list)
	m.list, m.data = union(a.list, p.list), union(a.data, brought)
	m.tables = windows(m.list, a.span)
	full := max(a.blocks-total(a.data), 0) + int64(m.tables-a.tables)*a.cluster
	m.blocks = total(m.data) + min(full, m.thin(brought))
	return m
}

// thin is what the tables of an image take, in bytes, that was copied with holes where the
// original has zeros, and then had brought written to it: QEMU writes the header and the tables
// that it changes as whole clusters.
func (a allocation) thin(brought []extent) int64 {
	pages := 2 + windows(a.list, a.span*page/a.cluster) // of the two top tables, and the L2 tables
	pages += int((total(a.data)/a.cluster)*2/page) + 1  // of the reference counts, 2 bytes each
	written := 0
	if len(brought) > 0 {
		written = 1 + windows(brought, a.span)
	}
	return a.cluster + int64(pages)*page + int64(written)*(a.cluster-page)
}

// windows counts the windows of size bytes, one behind the other, that extents reach into.
func windows(list []extent, size int64) (n int) {
	last := int64(-1)
	for _, e := range list {
		first, end := max(e.from/size, last+1), (e.to-1)/size
		if end >= first {
			n += int(end - first + 1)
			last = end
		}
	}
	return n
}

// ledger works out what collection would free, on a tree of its own.
type ledger struct {
	d     *Driver
	t     *tree
	maps  map[string]allocation // of merged images, by path
	freed int64
}

func (l *ledger) mapOf(f *file) (allocation, error) {
	if a, ok := l.maps[f.Path]; ok {
		return a, nil
	}
	return l.d.mapOf(f)
}

// settle does what Maintain would do, and adds up.
func (l *ledger) settle() error {
	for {
		for _, gone := range l.t.prune() {
			for _, f := range gone.all() {
				if !l.d.owns(f.Path) {
					continue
				}
				if a, ok := l.maps[f.Path]; ok {
					l.freed += a.blocks
				} else {
					l.freed += blocks(f.Path)
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
	for _, j := range l.t.merges(l.d.foreign) {
		gain, cost, err := l.weigh(j)
		if err != nil {
			return nil, 0, err
		}
		if !worthwhile(gain, cost) && l.t.depthThrough(j.into) <= l.d.cfg.Depth {
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
			gain += p.blocks
			continue
		}
		c, err := l.mapOf(l.t.Layers[j.into].Files[dev])
		if err != nil {
			return 0, 0, err
		}
		m := c.over(p)
		gain += p.blocks + c.blocks - m.blocks
		cost += m.blocks
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
		l.maps[into.Path] = c.over(p)
	}
	return nil
}

// worthwhile: small merges always are; large ones when they free an eighth of
// what they write.
func worthwhile(gain, cost int64) bool { return cost <= 64<<20 || gain*8 >= cost }

// Size is the number of bytes that deleting exactly these snapshots frees, once
// Maintain has been. What the domain's present disks rest on, what other
// snapshots hold, and the images that the domain came with free nothing.
func (d *Driver) Size(ctx context.Context, ids ...snap.SnapshotID) (int64, error) {
	const op = "measure disk snapshots"
	if err := d.begin(ctx, op); err != nil {
		return 0, err
	}
	defer d.mu.Unlock()
	for _, id := range ids {
		if _, err := d.snapshot(op, id); err != nil {
			return 0, err
		}
	}
	if d.tree == nil || len(ids) == 0 {
		return 0, nil
	}
	before, err := d.freedWithout(nil)
	if err != nil {
		return 0, errs.Wrap(errs.Failed, op, err)
	}
	after, err := d.freedWithout(ids)
	return max(0, after-before), errs.Wrap(errs.Failed, op, err)
}

func (d *Driver) freedWithout(ids []snap.SnapshotID) (int64, error) {
	t, err := d.tree.clone()
	if err != nil {
		return 0, err
	}
	l := &ledger{d: d, t: t, maps: map[string]allocation{}}
	for _, id := range ids {
		if s := t.Snapshots[id]; s != nil && s.Memory != nil {
			l.freed += blocks(s.Memory.Path)
		}
		delete(t.Snapshots, id)
	}
	err = l.settle()
	return l.freed, err
}

// Delete drops a snapshot. What only it held goes at once where nothing rests
// on it, and with the next Maintain where something does.
func (d *Driver) Delete(ctx context.Context, id snap.SnapshotID) error {
	const op = "delete disk snapshot"
	if err := d.begin(ctx, op); err != nil {
		return err
	}
	defer d.mu.Unlock()
	s, err := d.snapshot(op, id)
	if err != nil {
		return nil // it is gone
	}
	if err := d.cfg.Failpoint.At("delete"); err != nil {
		return errs.Wrap(errs.Failed, op, err)
	}
	if err := d.update(func(t *tree) { delete(t.Snapshots, id) }); err != nil {
		return errs.Wrap(errs.Failed, op, err)
	}
	err = d.dropOrphans()
	if s.Memory != nil && (d.tree.Resume == nil || d.tree.Resume.Memory.Path != s.Memory.Path) && !d.switchNeeds(s.Memory.Path) {
		err = errs.Also(err, remove(s.Memory.Path))
	}
	return errs.Wrap(errs.Failed, op, err)
}

// switchNeeds reports whether a restore under way is going to use a memory image.
func (d *Driver) switchNeeds(path string) bool {
	for _, p := range d.tree.Switches {
		if p.TargetMemory != nil && p.TargetMemory.Path == path {
			return true
		}
	}
	return false
}

// exists reports whether a path is there, as far as one can see.
func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
