package rbd

import (
	"cmp"
	"context"
	"slices"
	"sync"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/disk/imagefile"
)

// diffCache keeps what was written between two snapshots of an image, which does not change.
type diffCache struct {
	mu sync.Mutex
	of map[[3]string]extents
}

// written returns what was written to an image between two of its snapshots; to "" is the present.
func (d *Driver) written(ctx context.Context, image, from, to string) (extents, error) {
	key := [3]string{image, from, to}
	d.diffs.mu.Lock()
	e, known := d.diffs.of[key]
	d.diffs.mu.Unlock()
	if known {
		return e, nil
	}
	e, err := d.cluster.diff(ctx, image, from, to, false)
	if err == nil && to != "" {
		d.diffs.mu.Lock()
		defer d.diffs.mu.Unlock()
		if d.diffs.of == nil {
			d.diffs.of = map[[3]string]extents{}
		}
		d.diffs.of[key] = e
	}
	return e, err
}

// between returns at most how many bytes differ between two states of a disk: what was written to the images from each down to the nearest
// snapshot that is below both. A point without a snapshot is the image's present.
func (d *Driver) between(ctx context.Context, a, b point) (int64, error) {
	down := func(p point) (list []point) {
		for len(list) <= len(d.rec.Images) {
			list = append(list, p)
			i := d.rec.Images[p.Image]
			if i == nil || i.Parent.Image == "" {
				return list
			}
			p = i.Parent
		}
		return list
	}
	la, lb := down(a), down(b)
	for len(la) > 1 && len(lb) > 1 && la[len(la)-1].at() == lb[len(lb)-1].at() && la[len(la)-2].Image == lb[len(lb)-2].Image {
		la, lb = la[:len(la)-1], lb[:len(lb)-1]
	}
	meet, other := la[len(la)-1], lb[len(lb)-1]
	var all []imagefile.Extent
	add := func(image, from, to string) error {
		e, err := d.written(ctx, image, from, to)
		if errs.KindOf(err) == errs.NotFound { // a snapshot that was deleted, and that Ceph keeps without its name for clones
			e.all, err = []imagefile.Extent{imagefile.NewExtent(0, max(a.Size, b.Size))}, nil
		}
		all = imagefile.Union(all, e.all)
		return err
	}
	switch {
	case meet.Image != other.Image:
		return max(a.Size, b.Size), nil // they have nothing in common
	case meet.at() != other.at():
		older, newer := meet, other
		if older.ID == 0 || newer.ID != 0 && newer.ID < older.ID { // 0 is the present
			older, newer = newer, older
		}
		if err := add(older.Image, older.Snap, newer.Snap); err != nil {
			return 0, err
		}
	}
	for _, p := range slices.Concat(la[:len(la)-1], lb[:len(lb)-1]) {
		if err := add(p.Image, d.rec.Images[p.Image].Base, p.Snap); err != nil {
			return 0, err
		}
	}
	return min(imagefile.Total(all), max(a.Size, b.Size)), nil
}

// at names a point.
func (p point) at() string { return p.Image + "@" + p.Snap }

// Size returns the number of bytes that Ceph frees, once, when exactly these snapshots are deleted: what was written before the last of
// them and after the one before the first, and overwritten before the one that follows. What clones read, and the domain's present images, free nothing.
// With copies, the cluster frees that many times more.
func (d *Driver) Size(ctx context.Context, ids ...snap.SnapshotID) (int64, error) {
	const op = "measure disk snapshots on Ceph"
	if err := d.begin(ctx, op); err != nil {
		return 0, err
	}
	defer d.mu.Unlock()
	gone := map[string]bool{}
	images := map[string]bool{}
	for _, id := range ids {
		s, err := d.snapshot(op, id)
		if err != nil {
			return 0, err
		}
		for _, p := range s.Disks {
			gone[p.at()], images[p.Image] = true, true
		}
	}
	if len(ids) == 0 {
		return 0, nil
	}
	total := int64(0)
	for name := range images {
		n, err := d.freed(ctx, name, gone)
		if err != nil {
			return 0, errs.Wrap(errs.Failed, op, err)
		}
		total += n
	}
	return total, nil
}

// freed returns the bytes of an image that are free once the snapshots in gone are.
func (d *Driver) freed(ctx context.Context, name string, gone map[string]bool) (n int64, err error) {
	line := d.line(name)
	i := d.rec.Images[name]
	kept := func(p point) bool { return !gone[p.at()] || d.hasClone(p) }
	whole := i.Ours && !i.Out && !slices.Contains(headNames(d.rec), name)
	for _, p := range line {
		whole = whole && !kept(p)
	}
	first := i.Base
	if !i.Ours {
		first = ""
	}
	if whole { // then the image goes too
		e, err := d.written(ctx, name, first, "")
		n = imagefile.Total(e.data)
		for at, p := range line {
			before := first
			if at > 0 {
				before = line[at-1].Snap
			}
			w, e2 := d.written(ctx, name, before, p.Snap)
			n += imagefile.Total(imagefile.Without(w.data, e.data))
			err = errs.Also(err, e2)
		}
		return n, err
	}
	for at, p := range line {
		if kept(p) {
			continue
		}
		before := first
		if at > 0 {
			before = line[at-1].Snap
		}
		born, err := d.written(ctx, name, before, p.Snap)
		if err != nil {
			return 0, err
		}
		var over []imagefile.Extent
		for next := at; ; next++ { // overwritten in the run of snapshots that go, or right after it
			to := ""
			if next+1 < len(line) {
				to = line[next+1].Snap
			}
			w, err := d.written(ctx, name, line[next].Snap, to)
			if err != nil {
				return 0, err
			}
			over = imagefile.Union(over, w.all)
			if to == "" || kept(line[next+1]) {
				break
			}
		}
		n += imagefile.Total(born.data) - imagefile.Total(imagefile.Without(born.data, over))
	}
	return n, nil
}

// line lists the snapshots of an image that something needs, oldest first.
func (d *Driver) line(name string) (list []point) {
	for _, s := range d.rec.live() {
		for _, p := range s.Disks {
			if p.Image == name && !slices.ContainsFunc(list, func(q point) bool { return q.Snap == p.Snap }) {
				list = append(list, p)
			}
		}
	}
	slices.SortFunc(list, func(a, b point) int { return cmp.Compare(a.ID, b.ID) })
	return list
}

// hasClone reports whether a snapshot has a clone.
func (d *Driver) hasClone(p point) bool {
	for _, i := range d.rec.Images {
		if i.Parent.at() == p.at() {
			return true
		}
	}
	return false
}

func headNames(r *record) (list []string) {
	for _, name := range r.Head {
		list = append(list, name)
	}
	return list
}
