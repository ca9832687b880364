package disk

import (
	"context"
	"errors"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/disk/imagefile"
	"mulligan/snap/disk/layertree"
	"mulligan/snap/disk/virt"
)

// recovery finishes or undoes operations that an earlier process left unfinished. The caller of each method holds the driver's
// lock.
type recovery struct{ d *Driver }

// recover finishes or undoes the operation that an earlier process, or an earlier failure, left unfinished. It decides by the
// present state of the domain, not by the recorded progress.
func (rc *recovery) recover(ctx context.Context, op string, m virt.Machine) error {
	d := rc.d
	p, err := m.Power()
	if err != nil {
		return err
	}
	in := d.tree.Intent
	if p.Up() && (d.tree.Thaw || in != nil && in.Running) {
		if err := d.thawer.thawIfAgent(op, m); err != nil {
			d.cfg.Log.Warn("the guest may be frozen", "domain", d.cfg.Domain, "err", err)
		}
	}
	if in != nil {
		switch in.Op {
		case "merge":
			err = d.merger.finishMerge()
		case "flatten":
			if err = d.flattener.finishFlatten(m); d.tree == nil {
				return err // nothing else was left
			}
		default:
			err = rc.recoverCapture(ctx, op, m, p, in)
		}
		if err != nil {
			return err
		}
	}
	if d.tree.Suspect && !p.Up() { // the QEMU that had the images open has ended
		if err := d.update(func(t *layertree.Tree) { t.Suspect = false }); err != nil {
			return err
		}
	}
	return rc.recoverSwitch(op, m, p)
}

// recoverCapture finishes the capture if the domain uses the new images, and undoes it otherwise.
func (rc *recovery) recoverCapture(ctx context.Context, op string, m virt.Machine, p virt.Power, in *layertree.Intent) error {
	d := rc.d
	if d.tree.Layers[in.New] == nil || d.tree.Layers[in.Old] == nil {
		return errs.New(errs.Internal, op, "the record of a capture names layers that are not there")
	}
	p, err := d.dom.AwaitJobs(ctx, m, p, d.tree.Disks[0])
	if err != nil {
		return err
	}
	at, err := rc.actualHead(op, m, p, in)
	if err != nil {
		return err
	}
	if at == in.Old {
		return rc.takeBackCapture(op, m, in, in.Running && p.Up())
	}
	if p.Up() {
		if err := d.reopener.realign(ctx, op, m, in.New); err != nil {
			return err
		}
	}
	c := &capturing{d: d, m: m}
	if s, _, err := d.dom.Survey(op, m, p.Up()); err == nil && d.tree.Layers[in.Old].NVRAM == nil {
		if c.nvram, err = d.images.copyNVRAM(s.NVRAM, in.Old); err != nil {
			return err
		}
	}
	if in.Memory != "" {
		if err := imagefile.Remove(in.Memory); err != nil {
			return err
		}
	}
	return c.finish(in)
}

// takeBackCapture undoes a capture whose new images the domain does not use. Nothing was written to them.
func (rc *recovery) takeBackCapture(op string, m virt.Machine, in *layertree.Intent, suspect bool) error {
	d := rc.d
	if err := d.dom.definePersistent(op, m, in.Old); err != nil {
		return err
	}
	if suspect {
		if err := m.DropNodes(d.tree.Layers[in.New].Paths()); err != nil {
			d.cfg.Log.Warn("QEMU may have images open that libvirt does not know of", "domain", d.cfg.Domain, "err", err)
		}
	}
	if in.Memory != "" {
		if err := imagefile.Remove(in.Memory); err != nil {
			return err
		}
	}
	if err := d.update(func(t *layertree.Tree) { t.Intent, t.Suspect = nil, t.Suspect || suspect }); err != nil {
		return err
	}
	return d.images.dropOrphans()
}

// actualHead returns which of a capture's two layers the domain writes to. While the domain runs, that is the layer whose
// images are locked for writing, because libvirt's definitions may be older than QEMU's state. If the domain is off, the
// persistent definition decides.
func (rc *recovery) actualHead(op string, m virt.Machine, p virt.Power, in *layertree.Intent) (layertree.ID, error) {
	d := rc.d
	if p.Up() {
		for _, id := range []layertree.ID{in.New, in.Old} {
			all := true
			for _, f := range d.tree.Layers[id].Files {
				writes, err := imagefile.HasWriter(f.Path)
				if err != nil {
					return "", err
				}
				all = all && writes
			}
			if all {
				return id, nil
			}
		}
	}
	// The domain is off, or the filesystem has no locks.
	s, _, err := d.dom.Survey(op, m, p.Up())
	if err != nil {
		return "", err
	}
	switch id := d.tree.Holder(s.Sources); id {
	case in.New, in.Old:
		// The domain ran on the new images, and was switched off before its persistent definition was changed. Its writes are in the
		// new images.
		if id == in.Old && in.Running && !p.Up() {
			if wrote, err := d.images.wroteTo(in.New); err != nil || wrote {
				return in.New, err
			}
		}
		return id, nil
	}
	return "", errs.New(errs.Conflict, op, "domain %s was redefined while a checkpoint of it was being made", d.cfg.Domain).
		WithHint("virsh edit its disks back to %s", d.tree.Layers[in.Old].Files[d.tree.Disks[0]].Path)
}

// recoverSwitch determines which images the domain uses after a switch was interrupted, and resumes a guest whose reopen was
// interrupted.
func (rc *recovery) recoverSwitch(op string, m virt.Machine, p virt.Power) error {
	d := rc.d
	if r := d.tree.Resume; r != nil && r.Reopen {
		if err := d.reopener.resumeReopened(op, m); err != nil {
			return err
		}
	}
	for _, s := range d.tree.Switches {
		if s.Phase != layertree.Committing && s.Phase != layertree.Undoing {
			continue
		}
		v, _, err := d.dom.Survey(op, m, false)
		if err != nil {
			return err
		}
		at := d.tree.Holder(v.Sources)
		if at != d.tree.Head && (at == s.New || at == s.Old) {
			if err := d.update(func(t *layertree.Tree) { t.Head = at }); err != nil {
				return err
			}
		}
	}
	return nil
}

// Sweep removes the snapshots and switches in gone, finishes what a crash left unfinished, and checks that the domain agrees
// with the tree.
func (d *Driver) Sweep(ctx context.Context, gone snap.Gone) error {
	const op = "sweep disk snapshots"
	if err := d.begin(ctx, op); err != nil {
		return err
	}
	defer d.mu.Unlock()
	if d.tree == nil {
		return nil // the driver has no files
	}
	m, err := d.openAnyhow(ctx, op)
	if err != nil {
		d.thawer.thawSoon()
		return err
	}
	defer m.Free()
	if err := d.dropGone(gone); err != nil {
		return errs.Wrap(errs.Failed, op, err)
	}
	err = d.images.dropOrphans()
	if d.maintain.TryLock() { // otherwise Maintain is working on files that belong to no layer yet
		err = errors.Join(err, d.images.sweepPools())
		d.maintain.Unlock()
	}
	return errs.Wrap(errs.Failed, op, err)
}

func (d *Driver) dropGone(gone snap.Gone) error {
	return d.update(func(t *layertree.Tree) {
		for _, id := range gone.Snapshots {
			delete(t.Snapshots, id)
		}
		for _, id := range gone.Restores {
			delete(t.Switches, id)
		}
	})
}
