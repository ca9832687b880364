package disk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"mulligan/errs"
	"mulligan/snap/disk/imagefile"
	"mulligan/snap/disk/layertree"
	"mulligan/snap/disk/virt"
)

const opFlatten = "put disks together"

// flattener restores a domain's original disk images with the present contents, and removes the record and all files of the
// driver. The caller of each method holds the driver's lock.
type flattener struct {
	*record
	dom *domain
}

// Flattens returns an error if Flatten could not begin because the domain runs.
func (d *Driver) Flattens(ctx context.Context) error {
	if err := d.begin(ctx, opFlatten); err != nil {
		return err
	}
	defer d.mu.Unlock()
	m, err := d.open(ctx, opFlatten)
	if err != nil {
		return err
	}
	defer m.Free()
	return d.flattener.flattens(m)
}

func (fl *flattener) flattens(m virt.Machine) error {
	if err := fl.onRaw(opFlatten); err != nil {
		return err
	}
	if len(fl.tree.Lent) > 0 {
		return errs.New(errs.Conflict, opFlatten, "the disks of forks rest on those of domain %s", fl.cfg.Domain).WithHint("drop the forks first: `mulligan drop --all`")
	}
	p, err := m.Power()
	if err == nil && p.Up() {
		err = errs.New(errs.Busy, opFlatten, "domain %s is running: its disks can be put together again only while it is off", fl.cfg.Domain).
			WithHint("virsh shutdown %s, and try again", fl.cfg.Domain)
	}
	return err
}

// Flatten merges the layers of a domain that is off into its original images, which then have the present contents, and removes
// everything that the driver has made, with all snapshots. After each step the domain would read the same data.
func (d *Driver) Flatten(ctx context.Context) error {
	d.maintain.Lock()
	defer d.maintain.Unlock()
	if err := d.begin(ctx, opFlatten); err != nil {
		return err
	}
	defer d.mu.Unlock()
	m, err := d.open(ctx, opFlatten)
	if err != nil {
		return err
	}
	defer m.Free()
	if err := d.flattener.flattens(m); err != nil {
		return err
	}
	if err := d.flattener.flatten(ctx, m); err != nil {
		return errs.Wrap(errs.Failed, opFlatten, err)
	}
	return nil
}

func (fl *flattener) flatten(ctx context.Context, m virt.Machine) error {
	head := fl.tree.Layers[fl.tree.Head]
	kept := fl.underDetached()
	to := map[string]string{}
	for _, dev := range fl.tree.Disks {
		top, bottom := head.Files[dev].Path, fl.bottom(dev)
		to[dev] = top
		if bottom == "" || bottom == top || slices.Contains(kept, bottom) { // it is flat, or is a backing file of other images
			for _, k := range fl.tree.Images(fl.tree.Head, dev) {
				kept = append(kept, k.Of.Files[k.Dev].Path)
			}
			continue
		}
		if err := fl.fold(ctx, dev, top, bottom); err != nil {
			return err
		}
		to[dev] = bottom
	}
	if err := fl.update(func(t *layertree.Tree) { t.Intent = &layertree.Intent{Op: "flatten", Rests: to, Kept: kept} }); err != nil {
		return err
	}
	if err := fl.cfg.Failpoint.At("flatten: define"); err != nil {
		return err
	}
	text, err := m.XML(false)
	if err == nil {
		text, err = virt.Redirect(text, to)
	}
	if err == nil {
		err = fl.dom.Conn.Define(text)
	}
	if err != nil {
		return err
	}
	if err := fl.finishFlatten(m); err != nil || fl.tree == nil {
		return err
	}
	return errs.New(errs.Failed, opFlatten, "libvirt did not keep the definition of %s", fl.cfg.Domain)
}

// finishFlatten finishes a flatten that was interrupted. If the domain is defined with its original images, finishFlatten
// removes everything else, the tree included; otherwise it removes nothing.
func (fl *flattener) finishFlatten(m virt.Machine) error {
	in := fl.tree.Intent
	s, _, err := fl.dom.Survey(opFlatten, m, false)
	switch {
	case err != nil:
		return err
	case layertree.SamePaths(s.Sources, in.Rests, fl.tree.Disks):
		return fl.forget(append(in.Kept, pathsOf(in.Rests)...))
	}
	return fl.update(func(t *layertree.Tree) { t.Intent = nil })
}

func pathsOf(m map[string]string) (list []string) {
	for _, path := range m {
		list = append(list, path)
	}
	return list
}

// bottom returns the original image of a disk: the image below the driver's layers, or the one that was there before a block
// pull.
func (fl *flattener) bottom(dev string) (path string) {
	for _, k := range fl.tree.Images(fl.tree.Head, dev) {
		if f := k.Of.Files[k.Dev]; !fl.pools().Owns(f.Path) {
			return f.Path
		}
	}
	for _, id := range fl.tree.Chain(fl.tree.Head) { // somebody merged it by a block pull
		if f := fl.tree.Layers[id].Files[dev]; f != nil && !fl.pools().Owns(f.Path) {
			path = f.Path
		}
	}
	return path
}

// fold copies the clusters of the chain from top down into bottom. Meanwhile the domain would read the same data from top,
// because each cluster that changes in bottom is the one that the layers above it already have.
func (fl *flattener) fold(ctx context.Context, dev, top, bottom string) error {
	links := fl.tree.Images(fl.tree.Head, dev)
	last := links[len(links)-1]
	if err := imagefile.SetImmutable(bottom, false); err != nil {
		return err
	}
	if err := fl.cfg.Failpoint.At("flatten: fold"); err != nil {
		return err
	}
	if last.Of.Files[last.Dev].Path != bottom {
		return imagefile.Replace(ctx, opFlatten, top, bottom)
	}
	need := int64(imagefile.MinFree)
	for _, k := range links[:len(links)-1] {
		need += imagefile.Blocks(k.Of.Files[k.Dev].Path)
	}
	if err := imagefile.Enough(opFlatten, filepath.Dir(bottom), need); err != nil {
		return err
	}
	if _, err := imagefile.Run(ctx, "qemu-img", "commit", "-q", "-d", "-f", "qcow2", "-b", bottom, top); err != nil {
		return err
	}
	size, err := imagefile.ImageSize(top)
	if err != nil {
		return err
	}
	if now, err := imagefile.ImageSize(bottom); err != nil || now == size {
		return errors.Join(err, imagefile.SameContent(ctx, opFlatten, top, bottom))
	}
	if _, err := imagefile.Run(ctx, "qemu-img", "resize", "-q", "--shrink", "-f", "qcow2", bottom, fmt.Sprint(size)); err != nil {
		return err
	}
	return imagefile.SameContent(ctx, opFlatten, top, bottom)
}

// underDetached lists the images of detached disks and their backing images. The administrator who detached the disks may still
// use them.
func (fl *flattener) underDetached() (list []string) {
	for _, o := range fl.tree.Out {
		if imagefile.Deleted(o.Path) {
			continue
		}
		list = append(list, o.Path)
		id := fl.tree.Owner(o.Rests)
		for dev, f := range fl.tree.Layers[id].ImageFiles() {
			if f.Path != o.Rests {
				continue
			}
			for _, k := range fl.tree.Images(id, dev) {
				list = append(list, k.Of.Files[k.Dev].Path)
			}
		}
	}
	return list
}

// forget removes the record and all files that the driver has made, except those in kept. It makes images that it did not make
// writable again, unless they are backing files.
func (fl *flattener) forget(kept []string) error {
	old := fl.tree
	if err := fl.cfg.Failpoint.At("flatten: forget"); err != nil {
		return err
	}
	if err := layertree.Remove(fl.cfg.StateDir); err != nil {
		return err
	}
	fl.tree = nil
	var all []error
	dirs := map[string]bool{}
	for _, path := range slices.Concat(old.Files(), old.Open) {
		switch {
		case slices.Contains(kept, path):
			if !slices.ContainsFunc(old.Out, func(o layertree.Out) bool { return !imagefile.Deleted(o.Path) && o.Rests == path }) {
				all = append(all, imagefile.SetImmutable(path, false))
			}
		case fl.pools().Owns(path) || strings.HasSuffix(path, ".nvram") && fl.pools().Holds(path):
			all = append(all, imagefile.Remove(path))
			dirs[filepath.Dir(path)] = true
		default:
			all = append(all, imagefile.SetImmutable(path, false))
		}
	}
	for dir := range dirs { // folders with other files stay
		_ = os.Remove(dir)
		_ = os.Remove(filepath.Dir(dir))
	}
	return errors.Join(all...)
}
