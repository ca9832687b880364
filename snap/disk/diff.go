package disk

import (
	"context"
	"slices"
	"strings"

	"github.com/dustin/go-humanize"

	"mulligan/snap"
	"mulligan/snap/disk/imagefile"
	"mulligan/snap/disk/layertree"
)

// Diff lists the disks that differ between two snapshots, or between a snapshot and the present state.
func (d *Driver) Diff(ctx context.Context, from, to snap.SnapshotID, paths []string) ([]snap.Change, error) {
	const op = "compare disks"
	if err := d.begin(ctx, op); err != nil {
		return nil, err
	}
	defer d.mu.Unlock()
	var ends [2]layertree.ID
	for i, id := range []snap.SnapshotID{from, to} {
		if id == "" && d.tree != nil {
			ends[i] = d.tree.Head
			continue
		}
		s, err := d.snapshot(op, id)
		if err != nil {
			return nil, err
		}
		ends[i] = s.Layer
	}
	list := d.changes(ends[0], ends[1])
	if len(paths) > 0 {
		list = slices.DeleteFunc(list, func(c snap.Change) bool { return !slices.Contains(paths, c.Path) })
	}
	return list, nil
}

// changes describes the disks that were written to between two layers and the nearest layer that is below both.
func (d *Driver) changes(a, b layertree.ID) (list []snap.Change) {
	ca, cb := d.tree.Chain(a), d.tree.Chain(b)
	for len(ca) > 0 && len(cb) > 0 && ca[len(ca)-1] == cb[len(cb)-1] {
		ca, cb = ca[:len(ca)-1], cb[:len(cb)-1]
	}
	for _, dev := range d.tree.Disks {
		if d.tree.Layers[a].Files[dev] == nil || d.tree.Layers[b].Files[dev] == nil {
			continue // a restore does not change it
		}
		words, err := d.changesOf(dev, a, b, append(slices.Clone(ca), cb...))
		if err != nil {
			words = "an image cannot be read"
		}
		if words != "" {
			list = append(list, snap.Change{Path: dev, Operation: snap.Modify, Summary: words})
		}
	}
	return list
}

// changesOf describes what differs on one disk between layers a and b; "" means nothing. between has the layers above the
// nearest layer that is below both.
func (d *Driver) changesOf(dev string, a, b layertree.ID, between []layertree.ID) (string, error) {
	var written []imagefile.Extent
	for _, id := range between {
		f := d.tree.Layers[id].Files[dev]
		if f == nil {
			continue
		}
		m, err := d.maps.MapOf(f.Path)
		if err != nil {
			return "", err
		}
		written = imagefile.Union(written, m.List)
	}
	var words []string
	if n := imagefile.Total(written); n > 0 {
		words = append(words, "up to "+humanize.IBytes(uint64(n))+" written in between")
	}
	was, err := imagefile.ImageSize(d.tree.Layers[b].Files[dev].Path)
	if err != nil {
		return "", err
	}
	now, err := imagefile.ImageSize(d.tree.Layers[a].Files[dev].Path)
	if err == nil && now != was {
		words = append(words, "size "+humanize.IBytes(uint64(was))+", and "+humanize.IBytes(uint64(now)))
	}
	return strings.Join(words, "; "), err
}
