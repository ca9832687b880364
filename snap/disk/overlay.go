package disk

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"mulligan/durable"
	"mulligan/errs"
	"mulligan/snap/disk/imagefile"
	"mulligan/snap/disk/layertree"
)

// minFree is the room that must be left on a pool's filesystem for a new
// overlay: the guest is going to write to it.
const minFree = 64 << 20

const makeRoom = "make room, or delete checkpoints: mulligan prune"

// pool is the folder where a disk's overlays lie.
func (d *Driver) pool(t *layertree.Tree, dev string) string {
	if d.cfg.PoolDir != "" {
		return filepath.Join(d.cfg.PoolDir, d.cfg.App)
	}
	dir := ""
	for _, id := range t.Chain(t.Head) { // the lowest layer that has the disk
		if f := t.Layers[id].Files[dev]; f != nil {
			dir = filepath.Dir(f.Path)
		}
	}
	own := filepath.Join("mulligan", d.cfg.App)
	if strings.HasSuffix(dir, "/"+own) {
		return dir // the root was merged into an overlay
	}
	return filepath.Join(dir, own)
}

// owns reports whether the file at path is one that the driver made.
func (d *Driver) owns(path string) bool { return ours(filepath.Base(path)) && d.inPool(path) }

// inPool reports whether a file lies in a folder of the app's layers.
func (d *Driver) inPool(path string) bool { return filepath.Base(filepath.Dir(path)) == d.cfg.App }

// foreign reports whether an image of the layer is not the driver's.
func (d *Driver) foreign(l *layertree.Layer) bool {
	for _, f := range l.Files {
		if !d.owns(f.Path) {
			return true
		}
	}
	return false
}

// random is what makes a name one that never was.
func random() string {
	var b [3]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// addLayer adds a layer on top of parent to the tree; its files do not exist yet.
func (d *Driver) addLayer(t *layertree.Tree, parent layertree.ID) layertree.ID {
	t.Seq++
	id := layertree.ID(fmt.Sprintf("L%06d-%s", t.Seq, random()))
	l := &layertree.Layer{Parent: parent, Files: map[string]*layertree.File{}}
	for _, dev := range t.Disks {
		l.Files[dev] = &layertree.File{Path: filepath.Join(d.pool(t, dev), string(id)+"-"+dev+".qcow2")}
	}
	t.Layers[id] = l
	return id
}

// room makes the folders of the pools and checks that they have some room.
func (d *Driver) room(op string) error {
	for _, dev := range d.tree.Disks {
		dir := d.pool(d.tree, dev)
		if err := os.MkdirAll(dir, 0o711); err != nil {
			return err
		}
		free, err := imagefile.FreeBytes(dir)
		if err != nil {
			return err
		}
		if free < minFree {
			return errs.New(errs.Failed, op, "no space left for overlays: %d MiB in %s", free>>20, dir).
				WithHint(makeRoom)
		}
	}
	return nil
}

// createOverlays makes the files of a layer, durably, and checks them. size
// tells how big a disk is.
func (d *Driver) createOverlays(ctx context.Context, op string, id layertree.ID, size func(dev string) (int64, error)) error {
	l := d.tree.Layers[id]
	for _, dev := range l.Devices() {
		backing, _ := d.tree.Backing(l, dev)
		n, err := size(dev)
		if err != nil {
			return err
		}
		if err := d.cfg.Failpoint.At("overlay " + dev); err != nil {
			return err
		}
		if err := imagefile.CreateOverlay(ctx, l.Files[dev].Path, backing, n, d.giveToQEMU); err != nil {
			return errs.Wrap(errs.Failed, op, err)
		}
	}
	return nil
}

// giveToQEMU makes QEMU's user the owner of a file. libvirt does this itself
// for images that it opens for writing, but cannot for immutable ones.
func (d *Driver) giveToQEMU(path string) error {
	if os.Geteuid() != 0 {
		return nil
	}
	if d.owner == nil {
		uid, gid, ok := d.conn.Owner()
		if !ok {
			return nil
		}
		d.owner = &owner{uid, gid}
	}
	return os.Chown(path, d.owner.uid, d.owner.gid)
}

// owner is whom QEMU runs as.
type owner struct{ uid, gid int }

// sizeBelow gives the size of a disk as the header of the frozen image has it that the
// layer's image rests on.
func (d *Driver) sizeBelow(id layertree.ID) func(dev string) (int64, error) {
	l, in := d.tree.Layers[id], d.tree.Intent
	if p := d.tree.Layers[l.Parent]; p != nil && (p.Raw || in != nil && in.Raw && in.New == id) {
		return func(dev string) (int64, error) { return d.rawSize(l.Parent, dev), nil }
	}
	return func(dev string) (int64, error) {
		path, _ := d.tree.Backing(l, dev)
		return imagefile.ImageSize(path)
	}
}

// freezeFiles makes the files of a layer that nobody writes to any more
// immutable and says what they look like. Of a raw layer, some may not be there.
func (d *Driver) freezeFiles(id layertree.ID, raw bool) (map[string]imagefile.Stat, error) {
	stats := map[string]imagefile.Stat{}
	for dev, f := range d.tree.Layers[id].Files {
		if raw && !imagefile.Exists(f.Path) {
			continue
		}
		if err := d.giveToQEMU(f.Path); err != nil && !errors.Is(err, os.ErrPermission) { // frozen before
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

// dropOrphans unlinks the files of layers that nothing needs.
func (d *Driver) dropOrphans() error {
	if d.tree == nil {
		return nil
	}
	next, err := d.tree.Clone()
	if err != nil {
		return err
	}
	gone := next.Prune()
	if len(gone) == 0 {
		return nil
	}
	if err := d.save(next); err != nil {
		return err
	}
	if err := d.cfg.Failpoint.At("unlink"); err != nil {
		return err
	}
	var all []error
	for _, l := range gone {
		all = append(all, d.unlink(l))
	}
	return errors.Join(all...)
}

// unlink removes the files of a layer that the tree has no more. Images that the driver
// did not make stay, and can be written to again.
func (d *Driver) unlink(l *layertree.Layer) error {
	var all []error
	for _, f := range l.Files {
		if d.owns(f.Path) {
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

// headEmpty reports whether nothing was written to any of a layer's images.
func (d *Driver) headEmpty(id layertree.ID) (bool, error) {
	for _, f := range d.tree.Layers[id].Files {
		if empty, err := imagefile.EmptyImage(f.Path); err != nil || !empty {
			return false, err
		}
	}
	return true, nil
}

// headFresh reports whether the head is what was put on the layers below: nothing was
// written to it, and no disk has another size.
func (d *Driver) headFresh() (bool, error) {
	if empty, err := d.headEmpty(d.tree.Head); err != nil || !empty {
		return false, err
	}
	head := d.tree.Layers[d.tree.Head]
	for _, dev := range head.Devices() {
		below, _ := d.tree.Backing(head, dev)
		if below == "" {
			return false, nil
		}
		if d.tree.Rests(head) {
			continue // on what has no size
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

// copyNVRAM keeps a copy of the domain's NVRAM; nil where it has none yet.
func (d *Driver) copyNVRAM(ctx context.Context, path string, id layertree.ID) (*layertree.File, error) {
	if path == "" {
		return nil, nil
	}
	data, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil // libvirt makes it when the domain first starts
	}
	if err != nil {
		return nil, err
	}
	dir := d.pool(d.tree, d.tree.Disks[0])
	copied := &layertree.File{Path: filepath.Join(dir, string(id)+".nvram"), Hash: imagefile.HashBytes(data)}
	if err := imagefile.SetImmutable(copied.Path, false); err != nil {
		return nil, err
	}
	if err := durable.WriteFile(copied.Path, data, 0o600); err != nil {
		return nil, err
	}
	if err := imagefile.SetImmutable(copied.Path, true); err != nil {
		return nil, err
	}
	copied.Stat, err = imagefile.StatOf(copied.Path)
	return copied, err
}
