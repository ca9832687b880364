package disk

import (
	"context"
	"errors"
	"path/filepath"
	"time"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/disk/imagefile"
	"mulligan/snap/disk/layertree"
	"mulligan/snap/disk/virt"
)

// recover finishes or takes back what an earlier process, or an earlier
// failure, left in the middle. It looks at what is so, and never at how far the
// other one thought it was.
func (d *Driver) recover(ctx context.Context, op string, m virt.Machine) error {
	p, err := m.Power()
	if err != nil {
		return err
	}
	in := d.tree.Intent
	if p.Up() && (d.tree.Thaw || in != nil && in.Running) {
		if err := d.thawIfAgent(op, m); err != nil {
			d.cfg.Log.Warn("the guest may be frozen", "domain", d.cfg.Domain, "err", err)
		}
	}
	if in != nil {
		switch in.Op {
		case "merge":
			err = d.finishMerge()
		case "flatten":
			if err = d.finishFlatten(m); d.tree == nil {
				return err // and that was all
			}
		default:
			err = d.recoverCapture(ctx, op, m, p, in)
		}
		if err != nil {
			return err
		}
	}
	if d.tree.Suspect && !p.Up() { // with that QEMU the trouble is gone
		if err := d.update(func(t *layertree.Tree) { t.Suspect = false }); err != nil {
			return err
		}
	}
	return d.recoverSwitch(op, m, p)
}

func (d *Driver) thawIfAgent(op string, m virt.Machine) error {
	s, _, err := d.dom.surveyOf(op, m, true)
	if err != nil || !s.Agent {
		return err
	}
	return d.thaw(m)
}

// recoverCapture: either the domain is on the new images or it is not.
func (d *Driver) recoverCapture(ctx context.Context, op string, m virt.Machine, p virt.Power, in *layertree.Intent) error {
	if d.tree.Layers[in.New] == nil || d.tree.Layers[in.Old] == nil {
		return errs.New(errs.Internal, op, "the record of a capture names layers that are not there")
	}
	p, err := d.dom.awaitJobs(ctx, m, p)
	if err != nil {
		return err
	}
	at, err := d.actualHead(op, m, p, in)
	if err != nil {
		return err
	}
	if at == in.Old {
		return d.takeBackCapture(op, m, in, in.Running && p.Up())
	}
	if p.Up() {
		if err := d.realign(ctx, op, m, in.New); err != nil {
			return err
		}
	}
	c := &capturing{d: d, m: m}
	if s, _, err := d.dom.surveyOf(op, m, p.Up()); err == nil && d.tree.Layers[in.Old].NVRAM == nil {
		if c.nvram, err = d.images.copyNVRAM(ctx, s.NVRAM, in.Old); err != nil {
			return err
		}
	}
	if in.Memory != "" {
		if err := imagefile.Remove(in.Memory); err != nil {
			return err
		}
	}
	return d.finishCapture(c, in)
}

// jobTick is how often libvirt is asked whether it is through.
const jobTick = 50 * time.Millisecond

// takeBackCapture forgets the new images, which nobody has written to.
func (d *Driver) takeBackCapture(op string, m virt.Machine, in *layertree.Intent, suspect bool) error {
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

// actualHead finds which of a capture's two layers the domain writes to. While
// it runs, whoever holds the writer's lock says so: libvirt's definitions may
// be behind QEMU. When it is off, the persistent definition does.
func (d *Driver) actualHead(op string, m virt.Machine, p virt.Power, in *layertree.Intent) (layertree.ID, error) {
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
	// Off, or on a filesystem without locks.
	s, _, err := d.dom.surveyOf(op, m, p.Up())
	if err != nil {
		return "", err
	}
	switch id := d.tree.Holder(s.Sources); id {
	case in.New, in.Old:
		// A domain that ran on the new images, and went off before its persistent
		// definition was changed: what it wrote is there.
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

// realign makes libvirt's live definition what QEMU really has open. libvirt
// cannot be told; but a guest that is saved to a file and resumed from it, with
// the right definition, goes on as if nothing had been.
func (d *Driver) realign(ctx context.Context, op string, m virt.Machine, head layertree.ID) error {
	s, _, err := d.dom.surveyOf(op, m, true)
	if err != nil || layertree.SamePaths(s.Sources, d.tree.Layers[head].Paths(), d.tree.Disks) {
		return err
	}
	d.cfg.Log.Warn("libvirt lost track of the domain's disks: its guest is saved and resumed", "domain", d.cfg.Domain)
	return d.reopen(op, m, head)
}

// reopen has QEMU open a head's images again, by saving the guest's memory to a
// file and resuming from it. A crash in between is found by the file.
func (d *Driver) reopen(op string, m virt.Machine, head layertree.ID) error {
	if err := d.dom.definePersistent(op, m, head); err != nil {
		return err
	}
	text, err := m.SavableXML()
	if err != nil {
		return err
	}
	if text, err = virt.Redirect(text, d.tree.Layers[head].Paths()); err != nil {
		return errs.Wrap(errs.Internal, op, err)
	}
	memory := filepath.Join(d.pools().Folder(d.tree, d.tree.Disks[0]), "reopen.memory")
	if err := imagefile.Remove(memory); err != nil {
		return err
	}
	err = d.update(func(t *layertree.Tree) {
		t.Resume = &layertree.Resume{Layer: head, Memory: layertree.File{Path: memory}, Reopen: true}
	})
	if err != nil {
		return err
	}
	if err := d.cfg.Failpoint.At("reopen: save"); err != nil {
		return err
	}
	if err := m.Save(memory, text); err != nil && errs.KindOf(err) != errs.Unavailable {
		return errs.Also(err, d.forgetReopening()) // the guest goes on as it was
	} else if err != nil {
		return err
	}
	return d.resumeReopened(op, m)
}

// resumeReopened goes on with a guest that reopen saved. Where the image was
// never finished the guest still runs.
func (d *Driver) resumeReopened(op string, m virt.Machine) error {
	memory := d.tree.Resume.Memory.Path
	p, err := m.Power()
	if err != nil {
		return err
	}
	if !p.Up() {
		if err := d.cfg.Failpoint.At("reopen: resume"); err != nil {
			return err
		}
		text, err := d.dom.conn.SavedXML(memory)
		if errs.KindOf(err) == errs.Unavailable {
			return err
		}
		if err != nil {
			// The image is not whole: the guest went off in another way, and boots.
			d.cfg.Log.Warn("there is no memory to resume from", "domain", d.cfg.Domain, "err", err)
			return d.forgetReopening()
		}
		if err := d.dom.conn.Restore(memory, text, false); err != nil {
			return err
		}
	}
	if err := d.update(func(t *layertree.Tree) { t.Suspect = false }); err != nil {
		return err
	}
	return d.forgetReopening()
}

// forgetReopening drops the memory image of a reopen that is over.
func (d *Driver) forgetReopening() error {
	memory := d.tree.Resume.Memory.Path
	if err := d.update(func(t *layertree.Tree) { t.Resume = nil }); err != nil {
		return err
	}
	return imagefile.Remove(memory)
}

// recoverSwitch finds out where the domain is when a switch was cut in the
// middle, and goes on with a guest that was cut short in reopen.
func (d *Driver) recoverSwitch(op string, m virt.Machine, p virt.Power) error {
	if r := d.tree.Resume; r != nil && r.Reopen {
		if err := d.resumeReopened(op, m); err != nil {
			return err
		}
	}
	for _, s := range d.tree.Switches {
		if s.Phase != layertree.Committing && s.Phase != layertree.Undoing {
			continue
		}
		v, _, err := d.dom.surveyOf(op, m, false)
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

// Sweep drops the snapshots and switches that gone names, finishes what a
// crash left, and checks that the domain is as it should be.
func (d *Driver) Sweep(ctx context.Context, gone snap.Gone) error {
	const op = "sweep disk snapshots"
	if err := d.begin(ctx, op); err != nil {
		return err
	}
	defer d.mu.Unlock()
	if d.tree == nil {
		return nil // nothing of ours is anywhere
	}
	m, err := d.openAnyhow(ctx, op)
	if err != nil {
		d.thawSoon()
		return err
	}
	defer m.Free()
	if err := d.dropGone(gone); err != nil {
		return errs.Wrap(errs.Failed, op, err)
	}
	err = d.images.dropOrphans()
	if d.maintain.TryLock() { // else its work is on files that no layer has yet
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
