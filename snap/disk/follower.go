package disk

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"mulligan/errs"
	"mulligan/snap/disk/imagefile"
	"mulligan/snap/disk/layertree"
	"mulligan/snap/disk/virt"
)

// follower updates the record when others have changed the domain: it adopts a domain's images, and records disks that were
// attached, detached or resized. The caller of each method holds the driver's lock.
type follower struct {
	*record
	dom     *domain
	halfway []string // sentences about disks that only one of the domain's definitions has
}

// followDisks updates the list of captured disks: it adopts disks that were attached, and removes disks that were detached. A
// disk that only one of the domain's two definitions has is not captured, because the next start would remove it or bring it
// back.
func (fo *follower) followDisks(op string, kept, live virt.Survey) error {
	var now []string
	fo.halfway = nil
	for _, dev := range slices.Compact(slices.Sorted(slices.Values(slices.Concat(kept.Disks, live.Disks)))) {
		inKept, inLive := slices.Contains(kept.Disks, dev), slices.Contains(live.Disks, dev)
		switch {
		case inKept && inLive:
			now = append(now, dev)
		case inLive:
			fo.halfway = append(fo.halfway, fmt.Sprintf("disk %s is in the running domain and not in its persistent definition: it is neither captured nor restored (virsh attach-disk --config adds it).", dev))
		default:
			fo.halfway = append(fo.halfway, fmt.Sprintf("disk %s is in the persistent definition and not in the running domain: it is neither captured nor restored until the next start.", dev))
		}
	}
	if slices.Equal(now, fo.tree.Disks) || fo.tree.Switching() {
		return nil
	}
	if len(now) == 0 {
		return errs.New(errs.Conflict, op, "domain %s has no disk any more that is in both its live and its persistent definition", fo.cfg.Domain).
			WithHint("virsh attach-disk --config; or register the app without the domain")
	}
	next, err := fo.tree.Clone()
	if err != nil {
		return err
	}
	for _, dev := range fo.tree.Disks {
		if !slices.Contains(now, dev) {
			fo.letGo(next, dev)
		}
	}
	for _, dev := range now {
		if slices.Contains(fo.tree.Disks, dev) {
			continue
		}
		if err := fo.takeOn(op, next, dev, kept.Sources[dev]); err != nil {
			return err
		}
	}
	next.Disks = now
	return fo.save(next)
}

// letGo removes a detached disk from the head. The layers below keep their images of it, and its present image stays as it is.
func (fo *follower) letGo(t *layertree.Tree, dev string) {
	head := t.Layers[t.Head]
	path := head.Files[dev].Path
	if fo.pools().Owns(path) {
		below, _ := t.Backing(head, dev)
		t.Out = append(t.Out, layertree.Out{Path: path, Rests: below})
	}
	delete(head.Files, dev)
	delete(head.Below, dev)
	delete(head.Rests, dev)
	t.News = append(t.News, fmt.Sprintf("disk %s was detached from domain %s, or is excluded now: its image %s stays as it is, and older checkpoints keep their copies.", dev, fo.cfg.Domain, path))
}

// takeOn adds an attached disk to the head: with its image as it is, or with the one that it had when it was detached.
func (fo *follower) takeOn(op string, t *layertree.Tree, dev, path string) error {
	if err := fo.dom.Trusted(op, "disk images", filepath.Dir(path)); err != nil {
		return err
	}
	below, err := layertree.Foundation(op, dev, path)
	if err != nil {
		return err
	}
	backing, err := backingOf(path)
	if err != nil {
		return errs.Wrap(errs.Failed, op, err)
	}
	if t.Owner(path) != "" {
		return errs.New(errs.Conflict, op, "disk %s of domain %s was attached with %s, which is a layer of older checkpoints", dev, fo.cfg.Domain, path).
			WithHint("detach it, and attach a copy: qemu-img convert -O qcow2")
	}
	head := t.Layers[t.Head]
	head.Files[dev] = &layertree.File{Path: path}
	if head.Rests == nil {
		head.Rests = map[string]string{}
	}
	head.Rests[dev] = backing
	if fo.pools().Owns(path) {
		t.Out = slices.DeleteFunc(t.Out, func(o layertree.Out) bool { return o.Path == path })
	} else if len(below) > 0 {
		if head.Below == nil {
			head.Below = map[string][]*layertree.File{}
		}
		head.Below[dev] = below
	}
	t.News = append(t.News, fmt.Sprintf("disk %s was attached to domain %s: it is captured from now on, and checkpoints made before leave it alone.", dev, fo.cfg.Domain))
	return nil
}

// followChains reads the backing files of the images that the domain writes to. A block pull and a rebase change the backing
// file, but not the data that the guest reads.
func (fo *follower) followChains(op string) error {
	head := fo.tree.Layers[fo.tree.Head]
	rests, below := map[string]string{}, map[string][]*layertree.File{}
	for _, dev := range fo.tree.Disks {
		path := head.Files[dev].Path
		now, err := backingOf(path)
		if err != nil {
			return errs.Wrap(errs.Failed, op, err)
		}
		was, known := fo.tree.Backing(head, dev)
		switch {
		case known && now == was:
		case known && now != "" && !fo.knows(now):
			return errs.New(errs.Conflict, op, "the backing file of disk %s of domain %s is now %s, which mulligan does not know; it was %q", dev, fo.cfg.Domain, now, was).
				WithHint("with the domain off: qemu-img rebase -F qcow2 -b %s %s", was, path)
		case known:
			rests[dev] = now
		}
		if fo.pools().Owns(path) {
			continue
		}
		list, err := layertree.Foundation(op, dev, path) // of an original image of the domain
		if err != nil {
			return err
		}
		if !sameFiles(list, head.Below[dev]) {
			below[dev] = list
		}
	}
	if len(rests)+len(below) == 0 {
		return nil
	}
	return fo.update(func(t *layertree.Tree) {
		head := t.Layers[t.Head]
		for dev, path := range rests {
			if head.Rests == nil {
				head.Rests = map[string]string{}
			}
			head.Rests[dev] = path
			t.News = append(t.News, fmt.Sprintf("the image of disk %s was merged outside of mulligan: this checkpoint stores the whole disk again.", dev))
		}
		for dev, list := range below {
			if head.Below == nil {
				head.Below = map[string][]*layertree.File{}
			}
			head.Below[dev] = list
		}
	})
}

// followOpen records which of the driver's images a running domain has below its head, and removes the overlays of those that were merged
// away and that it has no more. What a domain had when it went off stays, because its guest may have been saved.
func (fo *follower) followOpen(m virt.Machine, live virt.Survey) error {
	p, err := m.Power()
	if err != nil || !p.Up() {
		return err
	}
	open := fo.ownOf(live.Below)
	slices.Sort(open)
	if slices.Equal(open, slices.Sorted(slices.Values(fo.tree.Open))) {
		return nil
	}
	var all []error
	files := fo.tree.Files()
	for _, path := range fo.tree.Open {
		if !slices.Contains(open, path) && !slices.Contains(files, path) {
			all = append(all, imagefile.Remove(path))
		}
	}
	if err := errors.Join(all...); err != nil {
		return err
	}
	return fo.update(func(t *layertree.Tree) { t.Open = open })
}

// knows reports whether an image is in the tree, or is a backing file of the tree's root.
func (fo *follower) knows(path string) bool {
	for _, l := range fo.tree.Layers {
		for _, f := range l.All() {
			if f.Path == path {
				return true
			}
		}
	}
	return false
}

func sameFiles(a, b []*layertree.File) bool {
	return slices.EqualFunc(a, b, func(x, y *layertree.File) bool { return x.Path == y.Path })
}

// backingOf returns the backing file in the header of the image at path; "" means none.
func backingOf(path string) (string, error) {
	img, f, err := imagefile.OpenImage(path)
	if err != nil {
		return "", err
	}
	return img.Backing, f.Close()
}

// forgetOut removes the images of detached disks from the record if somebody has deleted them. Their backing files need not be
// kept for them any longer.
func (fo *follower) forgetOut() error {
	gone := func(o layertree.Out) bool { return imagefile.Deleted(o.Path) }
	if !slices.ContainsFunc(fo.tree.Out, gone) {
		return nil
	}
	return fo.update(func(t *layertree.Tree) { t.Out = slices.DeleteFunc(t.Out, gone) })
}

// noteRun records that the domain runs. After a restart of libvirtd, libvirt no longer knows whether the guest shut down by
// itself.
func (fo *follower) noteRun(m virt.Machine) error {
	p, err := m.Power()
	if err != nil || !p.Up() || fo.tree.Ran || fo.tree.Intent != nil {
		return err
	}
	if len(fo.tree.Layers) == 1 { // it was adopted just now, and the tree is not saved yet
		fo.tree.Ran = true
		return nil
	}
	return fo.update(func(t *layertree.Tree) { t.Ran = true })
}
