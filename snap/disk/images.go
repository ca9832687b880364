package disk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"mulligan/durable"
	"mulligan/errs"
	"mulligan/snap/disk/imagefile"
	"mulligan/snap/disk/layertree"
)

// images creates, freezes, examines and removes the files of layers: overlays, and copies of NVRAM. The caller of each method
// holds the driver's lock.
type images struct {
	*record
	dom *domain
}

// addLayer adds a layer above parent to the tree. It does not create the layer's files.
func (im *images) addLayer(t *layertree.Tree, parent layertree.ID) layertree.ID {
	t.Seq++
	id := layertree.ID(fmt.Sprintf("L%06d-%s", t.Seq, imagefile.Random()))
	l := &layertree.Layer{Parent: parent, Files: map[string]*layertree.File{}}
	for _, dev := range t.Disks {
		l.Files[dev] = &layertree.File{Path: filepath.Join(im.pools().Folder(t, dev), string(id)+"-"+dev+".qcow2")}
	}
	t.Layers[id] = l
	return id
}

// room creates the folders of the pools and checks that they have free space.
func (im *images) room(op string) error {
	for _, dev := range im.tree.Disks {
		dir := im.pools().Folder(im.tree, dev)
		if err := os.MkdirAll(dir, 0o711); err != nil {
			return err
		}
		free, err := imagefile.FreeBytes(dir)
		if err != nil {
			return err
		}
		if free < imagefile.MinFree {
			return errs.New(errs.Failed, op, "no space left for overlays: %d MiB in %s", free>>20, dir).
				WithHint(imagefile.MakeRoom)
		}
	}
	return nil
}

// createOverlays creates the files of a layer durably and checks them. size returns the size of a disk in bytes.
func (im *images) createOverlays(ctx context.Context, op string, id layertree.ID, size func(dev string) (int64, error)) error {
	l := im.tree.Layers[id]
	for _, dev := range l.Devices() {
		backing, _ := im.tree.Backing(l, dev)
		n, err := size(dev)
		if err != nil {
			return err
		}
		if err := im.cfg.Failpoint.At("overlay " + dev); err != nil {
			return err
		}
		if err := imagefile.CreateOverlay(ctx, l.Files[dev].Path, backing, n, im.dom.giveToQEMU); err != nil {
			return errs.Wrap(errs.Failed, op, err)
		}
	}
	return nil
}

// sizeBelow returns the size of a disk in bytes, from the header of the frozen image that is the backing file of the layer's
// image.
func (im *images) sizeBelow(id layertree.ID) func(dev string) (int64, error) {
	l, in := im.tree.Layers[id], im.tree.Intent
	if p := im.tree.Layers[l.Parent]; p != nil && (p.Raw || in != nil && in.Raw && in.New == id) {
		return func(dev string) (int64, error) { return im.rawSize(l.Parent, dev), nil }
	}
	return func(dev string) (int64, error) {
		path, _ := im.tree.Backing(l, dev)
		return imagefile.ImageSize(path)
	}
}

// freezeFiles makes the files of a layer immutable and returns their size, times and identity. Nothing writes to them any
// longer. Files of a raw layer may be missing.
func (im *images) freezeFiles(id layertree.ID, raw bool) (map[string]imagefile.Stat, error) {
	stats := map[string]imagefile.Stat{}
	for dev, f := range im.tree.Layers[id].Files {
		if raw && !imagefile.Exists(f.Path) {
			continue
		}
		if err := im.dom.giveToQEMU(f.Path); err != nil && !errors.Is(err, os.ErrPermission) { // it was frozen before
			return nil, err
		}
		if err := errors.Join(durable.Sync(f.Path), imagefile.SetImmutable(f.Path, true)); err != nil {
			return nil, err
		}
		st, err := imagefile.StatOf(f.Path)
		if err != nil {
			return nil, err
		}
		stats[dev] = st
	}
	return stats, nil
}

// dropOrphans removes the files of layers that nothing needs.
func (im *images) dropOrphans() error {
	if im.tree == nil {
		return nil
	}
	next, err := im.tree.Clone()
	if err != nil {
		return err
	}
	gone := next.Prune()
	if len(gone) == 0 {
		return nil
	}
	if err := im.save(next); err != nil {
		return err
	}
	if err := im.cfg.Failpoint.At("unlink"); err != nil {
		return err
	}
	var all []error
	for _, l := range gone {
		all = append(all, im.unlink(l))
	}
	return errors.Join(all...)
}

// unlink removes the files of a layer that was removed from the tree. Images that the driver did not make stay, and become
// writable again.
func (im *images) unlink(l *layertree.Layer) error {
	var all []error
	for _, f := range l.Files {
		if l.Borrowed {
			continue
		}
		if im.pools().Owns(f.Path) {
			all = append(all, imagefile.Remove(f.Path))
		} else {
			all = append(all, imagefile.SetImmutable(f.Path, false))
		}
	}
	if l.NVRAM != nil {
		all = append(all, imagefile.Remove(l.NVRAM.Path))
	}
	return errors.Join(all...)
}

// replace removes the files of a layer that was merged away, like unlink. An image that the running domain has open is replaced by an empty
// overlay on the image below it, because a guest that is saved with its memory needs all images that it had, by name.
func (im *images) replace(l *layertree.Layer, below map[string]string) error {
	rest := *l
	rest.Files = map[string]*layertree.File{}
	var all []error
	for dev, f := range l.Files {
		if slices.Contains(im.tree.Open, f.Path) {
			all = append(all, imagefile.Hollow(f.Path, below[dev]))
		} else {
			rest.Files[dev] = f
		}
	}
	return errors.Join(append(all, im.unlink(&rest))...)
}

// headEmpty reports whether nothing was written to any of a layer's images.
func (im *images) headEmpty(id layertree.ID) (bool, error) {
	for _, f := range im.tree.Layers[id].Files {
		if empty, err := imagefile.EmptyImage(f.Path); err != nil || !empty {
			return false, err
		}
	}
	return true, nil
}

// headFresh reports whether the head is unchanged since its overlays were created: nothing was written to it, and no disk was
// resized.
func (im *images) headFresh() (bool, error) {
	if empty, err := im.headEmpty(im.tree.Head); err != nil || !empty {
		return false, err
	}
	head := im.tree.Layers[im.tree.Head]
	for _, dev := range head.Devices() {
		below, _ := im.tree.Backing(head, dev)
		if below == "" {
			return false, nil
		}
		if im.tree.Rests(head) {
			continue // its backing file has no size
		}
		was, err := imagefile.ImageSize(below)
		if err != nil {
			return false, err
		}
		if now, err := imagefile.ImageSize(head.Files[dev].Path); err != nil || now != was {
			return false, err
		}
	}
	return true, nil
}

// copyNVRAM copies the domain's NVRAM, and returns nil if the domain has none yet.
func (im *images) copyNVRAM(path string, id layertree.ID) (*layertree.File, error) {
	if path == "" {
		return nil, nil
	}
	if err := im.dom.TrustedNVRAM("", path); err != nil {
		return nil, err
	}
	dir := im.pools().Folder(im.tree, im.tree.Disks[0])
	return layertree.CopyNVRAM(path, filepath.Join(dir, string(id)+".nvram"))
}

// sameNVRAM compares the domain's NVRAM with the copy of a layer.
func (im *images) sameNVRAM(path string, l *layertree.Layer) (bool, error) {
	hash, err := imagefile.HashOrNone(path)
	if err != nil {
		return false, err
	}
	return hash == l.NVRAMHash(), nil
}

// rawSize is the size that a disk had, in bytes: as the nearest image says that is a layer's,
// from id down, and can be read.
func (im *images) rawSize(id layertree.ID, dev string) int64 {
	for _, id := range im.tree.Chain(id) {
		if f := im.tree.Layers[id].Files[dev]; f != nil {
			if size, err := imagefile.ImageSize(f.Path); err == nil {
				return size
			}
		}
	}
	return 1 << 20 // nothing can be read of it
}

// wroteTo reports whether the guest has written to the images of a layer whose creation was interrupted. The images may be
// missing.
func (im *images) wroteTo(id layertree.ID) (bool, error) {
	empty, err := im.headEmpty(id)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, imagefile.ErrNotQcow2) {
		return false, nil
	}
	return !empty, err
}

// sweepPools removes files in the daemon's own folders that belong to no layer: those of a capture or a merge that a crash
// interrupted.
func (im *images) sweepPools() error {
	known := map[string]bool{}
	for _, f := range slices.Concat(im.tree.Files(), im.tree.Open) {
		known[f] = true
	}
	var all []error
	seen := map[string]bool{}
	for _, dev := range im.tree.Disks {
		dir := im.pools().Folder(im.tree, dev)
		if seen[dir] {
			continue
		}
		seen[dir] = true
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			all = append(all, err)
		}
		for _, e := range entries {
			path := filepath.Join(dir, e.Name())
			if layertree.Ours(e.Name()) && !known[path] {
				all = append(all, imagefile.Remove(path))
			}
		}
	}
	return errors.Join(all...)
}
