package disk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"mulligan/durable"
	"mulligan/errs"
	"mulligan/snap/disk/imagefile"
	"mulligan/snap/disk/layertree"
	"mulligan/snap/disk/virt"
)

const opFlatten = "put disks together"

// Flattens returns an error where Flatten could not begin: the domain runs.
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
	return d.flattens(m)
}

func (d *Driver) flattens(m virt.Machine) error {
	if err := d.onRaw(opFlatten); err != nil {
		return err
	}
	p, err := m.Power()
	if err == nil && p.Up() {
		err = errs.New(errs.Busy, opFlatten, "domain %s is running: its disks can be put together again only while it is off", d.cfg.Domain).
			WithHint("virsh shutdown %s, and try again", d.cfg.Domain)
	}
	return err
}

// Flatten gives a domain that is off the disks back that it came with, holding what the
// present ones hold, and drops everything else that the driver has made: all snapshots
// with it. At each step the domain reads the same.
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
	if err := d.flattens(m); err != nil {
		return err
	}
	if err := d.flatten(ctx, m); err != nil {
		return errs.Wrap(errs.Failed, opFlatten, err)
	}
	return nil
}

func (d *Driver) flatten(ctx context.Context, m virt.Machine) error {
	head := d.tree.Layers[d.tree.Head]
	kept := d.underDetached()
	to := map[string]string{}
	for _, dev := range d.tree.Disks {
		top, bottom := head.Files[dev].Path, d.bottom(dev)
		to[dev] = top
		if bottom == "" || bottom == top || slices.Contains(kept, bottom) { // it is flat already, or others rest on it
			for _, k := range d.tree.Images(d.tree.Head, dev) {
				kept = append(kept, k.Of.Files[k.Dev].Path)
			}
			continue
		}
		if err := d.fold(ctx, dev, top, bottom); err != nil {
			return err
		}
		to[dev] = bottom
	}
	if err := d.update(func(t *layertree.Tree) { t.Intent = &layertree.Intent{Op: "flatten", Rests: to, Kept: kept} }); err != nil {
		return err
	}
	if err := d.cfg.Failpoint.At("flatten: define"); err != nil {
		return err
	}
	text, err := m.XML(false)
	if err == nil {
		text, err = virt.Redirect(text, to)
	}
	if err == nil {
		err = d.dom.conn.Define(text)
	}
	if err != nil {
		return err
	}
	if err := d.finishFlatten(m); err != nil || d.tree == nil {
		return err
	}
	return errs.New(errs.Failed, opFlatten, "libvirt did not keep the definition of %s", d.cfg.Domain)
}

// finishFlatten ends what flatten began: where the domain is defined with the disks that it
// came with, everything else is dropped, the tree too; else all stays.
func (d *Driver) finishFlatten(m virt.Machine) error {
	in := d.tree.Intent
	s, _, err := d.dom.surveyOf(opFlatten, m, false)
	switch {
	case err != nil:
		return err
	case layertree.SamePaths(s.Sources, in.Rests, d.tree.Disks):
		return d.forget(append(in.Kept, pathsOf(in.Rests)...))
	}
	return d.update(func(t *layertree.Tree) { t.Intent = nil })
}

func pathsOf(m map[string]string) (list []string) {
	for _, path := range m {
		list = append(list, path)
	}
	return list
}

// bottom is the image of others that a disk's present image rests on, or once rested on.
func (d *Driver) bottom(dev string) (path string) {
	for _, k := range d.tree.Images(d.tree.Head, dev) {
		if f := k.Of.Files[k.Dev]; !d.pools().Owns(f.Path) {
			return f.Path
		}
	}
	for _, id := range d.tree.Chain(d.tree.Head) { // somebody pulled it together
		if f := d.tree.Layers[id].Files[dev]; f != nil && !d.pools().Owns(f.Path) {
			path = f.Path
		}
	}
	return path
}

// fold puts what top holds into bottom. The domain, which is on top, reads the same all the
// time: what changes below is what lies above it anyway.
func (d *Driver) fold(ctx context.Context, dev, top, bottom string) error {
	links := d.tree.Images(d.tree.Head, dev)
	last := links[len(links)-1]
	if err := imagefile.SetImmutable(bottom, false); err != nil {
		return err
	}
	if err := d.cfg.Failpoint.At("flatten: fold"); err != nil {
		return err
	}
	if last.Of.Files[last.Dev].Path != bottom {
		return d.replace(ctx, top, bottom)
	}
	need := int64(minFree)
	for _, k := range links[:len(links)-1] {
		need += imagefile.Blocks(k.Of.Files[k.Dev].Path)
	}
	if err := enough(filepath.Dir(bottom), need); err != nil {
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
		return errors.Join(err, d.sameContent(ctx, top, bottom))
	}
	if _, err := imagefile.Run(ctx, "qemu-img", "resize", "-q", "--shrink", "-f", "qcow2", bottom, fmt.Sprint(size)); err != nil {
		return err
	}
	return d.sameContent(ctx, top, bottom)
}

// replace puts a copy of top, which rests on nothing, in the place of bottom, which nothing rests on.
func (d *Driver) replace(ctx context.Context, top, bottom string) error {
	temp := filepath.Join(filepath.Dir(top), filepath.Base(top)+mergeSuffix+random()) // Sweep knows what that is
	if err := enough(filepath.Dir(top), imagefile.Blocks(top)+minFree); err != nil {
		return err
	}
	if _, err := imagefile.Run(ctx, "qemu-img", "convert", "-f", "qcow2", "-O", "qcow2", top, temp); err != nil {
		return errors.Join(err, imagefile.Remove(temp))
	}
	err := errors.Join(d.sameContent(ctx, top, temp), imagefile.ChownLike(temp, top), durable.Sync(temp))
	if err == nil {
		err = os.Rename(temp, bottom)
	}
	if err != nil {
		return errors.Join(err, imagefile.Remove(temp))
	}
	return durable.Sync(filepath.Dir(bottom))
}

// sameContent proves that a guest reads the same from two images.
func (d *Driver) sameContent(ctx context.Context, a, b string) error {
	if _, err := imagefile.Run(ctx, "qemu-img", "compare", "-q", "-f", "qcow2", "-F", "qcow2", a, b); err != nil {
		return errs.Wrap(errs.Corrupt, opFlatten, err)
	}
	return durable.Sync(b)
}

func enough(dir string, need int64) error {
	free, err := imagefile.FreeBytes(dir)
	if err == nil && free < need {
		err = errs.New(errs.Failed, opFlatten, "no space left to put disks together: %d MiB are needed in %s, %d are there", need>>20, dir, free>>20).WithHint(makeRoom)
	}
	return err
}

// underDetached lists the images that images of detached disks rest on, and these
// themselves: whoever detached them may use them.
func (d *Driver) underDetached() (list []string) {
	for _, o := range d.tree.Out {
		if !imagefile.Exists(o.Path) {
			continue
		}
		list = append(list, o.Path)
		id := d.tree.Owner(o.Rests)
		for dev, f := range d.tree.Layers[id].ImageFiles() {
			if f.Path != o.Rests {
				continue
			}
			for _, k := range d.tree.Images(id, dev) {
				list = append(list, k.Of.Files[k.Dev].Path)
			}
		}
	}
	return list
}

// forget drops the record and every file that the driver has made, except those kept.
// Images of others can be written to again, where nothing rests on them.
func (d *Driver) forget(kept []string) error {
	old := d.tree
	if err := d.cfg.Failpoint.At("flatten: forget"); err != nil {
		return err
	}
	if err := os.Remove(d.treeFile()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := durable.Sync(d.cfg.StateDir); err != nil {
		return err
	}
	d.tree = nil
	var all []error
	dirs := map[string]bool{}
	for _, path := range old.Files() {
		switch {
		case slices.Contains(kept, path):
			if !slices.ContainsFunc(old.Out, func(o layertree.Out) bool { return imagefile.Exists(o.Path) && o.Rests == path }) {
				all = append(all, imagefile.SetImmutable(path, false))
			}
		case d.pools().Owns(path) || strings.HasSuffix(path, ".nvram") && d.pools().Holds(path):
			all = append(all, imagefile.Remove(path))
			dirs[filepath.Dir(path)] = true
		default:
			all = append(all, imagefile.SetImmutable(path, false))
		}
	}
	for dir := range dirs { // those that hold more stay
		_ = os.Remove(dir)
		_ = os.Remove(filepath.Dir(dir))
	}
	return errors.Join(all...)
}
