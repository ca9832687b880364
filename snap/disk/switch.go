package disk

import (
	"context"
	"encoding/hex"
	"errors"
	"slices"

	"github.com/zeebo/blake3"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/disk/imagefile"
	"mulligan/snap/disk/layertree"
	"mulligan/snap/disk/virt"
)

// diskSwitch is a restore under way. Its state is in the tree.
type diskSwitch struct {
	d       *Driver
	id      snap.RestoreID
	changes []snap.Change
}

// Resume returns the switch of an earlier Prepare.
func (d *Driver) Resume(ctx context.Context, id snap.RestoreID) (snap.Switch, error) {
	const op = "resume the restore of disks"
	if err := d.begin(ctx, op); err != nil {
		return nil, err
	}
	defer d.mu.Unlock()
	p, err := d.plan(op, id)
	if err != nil {
		return nil, err
	}
	return &diskSwitch{d, id, p.Changes}, nil
}

// Changes lists the disks that differ.
func (s *diskSwitch) Changes(limit int) ([]snap.Change, int) {
	return s.changes[:max(0, min(limit, len(s.changes)))], len(s.changes)
}

// with calls f with the plan and libvirt's handle of the domain, after recovery from a crash.
func (s *diskSwitch) with(ctx context.Context, op string, f func(p *layertree.Plan, m virt.Machine) error) error {
	d := s.d
	if err := d.begin(ctx, op); err != nil {
		return err
	}
	defer d.mu.Unlock()
	if _, err := d.plan(op, s.id); err != nil {
		return err
	}
	m, err := d.openAnyhow(ctx, op)
	if err != nil {
		return err
	}
	defer m.Free()
	p, err := d.plan(op, s.id)
	if err != nil {
		return err
	}
	if err := f(p, m); err != nil {
		return errs.Wrap(errs.Failed, op, err)
	}
	return nil
}

// moved reports whether the domain's disks are no longer in the state of a layer: the head is not directly above the layer, was
// written to, or cannot be read.
func (s *diskSwitch) moved(m virt.Machine, from layertree.ID) (bool, error) {
	d := s.d
	if err := d.follower.followChains("look for later writes to disks"); err != nil {
		return true, nil
	}
	head := d.tree.Layers[d.tree.Head]
	if head.Parent != from {
		return true, nil
	}
	fresh, err := d.images.headFresh()
	if err != nil || !fresh {
		return true, err
	}
	v, _, err := d.dom.Survey("", m, false)
	if err != nil {
		return true, err
	}
	same, err := d.images.sameNVRAM(v.NVRAM, d.tree.Layers[from])
	return !same && d.tree.Layers[from].NVRAM != nil, err
}

// Stale reports whether the disks are no longer in the state of the base.
func (s *diskSwitch) Stale(ctx context.Context) (stale bool, err error) {
	err = s.with(ctx, "look for later writes to disks", func(p *layertree.Plan, m virt.Machine) (err error) {
		stale, err = s.moved(m, p.BaseLayer)
		stale = stale || !s.fitsDisks(p)
		return err
	})
	return stale, err
}

// fitsDisks reports whether the domain has the same disks as when p was prepared.
func (s *diskSwitch) fitsDisks(p *layertree.Plan) bool {
	return slices.Equal(s.d.tree.Layers[p.New].Devices(), s.d.tree.Disks)
}

// needOff returns an error if the domain runs, because then its disks cannot be replaced.
func needOff(op string, m virt.Machine) error {
	p, err := m.Power()
	if err != nil {
		return err
	}
	if p.Up() {
		return errs.New(errs.Busy, op, "the domain is running").WithHint("stop the domain first: its unit does that when the unit is stopped")
	}
	return nil
}

// Commit defines the domain with the target's overlays. The domain must be off.
func (s *diskSwitch) Commit(ctx context.Context) error {
	const op = "restore disks"
	d := s.d
	return s.with(ctx, op, func(p *layertree.Plan, m virt.Machine) error {
		switch p.Phase {
		case layertree.Committed:
			return nil
		case layertree.Undoing, layertree.Undone:
			return errs.New(errs.Conflict, op, "restore %s was undone", s.id).WithHint("restore again")
		}
		if err := needOff(op, m); err != nil {
			return err
		}
		if p.Phase == layertree.Prepared {
			stale, err := s.moved(m, p.BaseLayer)
			if err != nil {
				return err
			}
			if stale || d.tree.Head != p.Old || !s.fitsDisks(p) {
				return snap.Changed(op, "domain "+d.cfg.Domain)
			}
		}
		if err := d.integrity.checkChain(ctx, op, p.TargetLayer, false); err != nil {
			return err
		}
		if err := s.advance(layertree.Committing); err != nil {
			return err
		}
		return s.move(op, m, layertree.Committed, p.New, p.TargetLayer, p.TargetMemory)
	})
}

// advance durably records the phase of the switch.
func (s *diskSwitch) advance(to layertree.Phase) error {
	if err := s.d.cfg.Failpoint.At("phase " + string(to)); err != nil {
		return err
	}
	return s.d.update(func(t *layertree.Tree) { t.Switches[s.id].Phase = to })
}

// move defines the domain with the images of head and the NVRAM of the layer below, and records that this was done.
func (s *diskSwitch) move(op string, m virt.Machine, to layertree.Phase, head, below layertree.ID, memory *layertree.File) error {
	d := s.d
	v, _, err := d.dom.Survey(op, m, false)
	if err != nil {
		return err
	}
	if err := d.cfg.Failpoint.At("switch: nvram"); err != nil {
		return err
	}
	if from := d.tree.Layers[below].NVRAM; v.NVRAM != "" && from != nil {
		if err := d.dom.TrustedNVRAM(op, v.NVRAM); err != nil {
			return err
		}
		if err := imagefile.Overwrite(v.NVRAM, from.Path); err != nil {
			return err
		}
	}
	if err := d.cfg.Failpoint.At("switch: define"); err != nil {
		return err
	}
	if err := d.dom.define(op, m, head); err != nil {
		return err
	}
	if err := d.cfg.Failpoint.At("switch: record"); err != nil {
		return err
	}
	return d.update(func(t *layertree.Tree) {
		t.Head, t.Switches[s.id].Phase, t.Resume, t.Ran = head, to, nil, false
		if memory != nil {
			t.Resume = &layertree.Resume{Layer: head, Memory: *memory}
		}
	})
}

// Undo defines the domain with the base's overlays again if a Commit has begun. Data that the guest wrote since the Commit are
// lost; data that it wrote before stay.
func (s *diskSwitch) Undo(ctx context.Context) error {
	const op = "undo the restore of disks"
	return s.with(ctx, op, func(p *layertree.Plan, m virt.Machine) error {
		switch p.Phase {
		case layertree.Undone:
			return nil
		case layertree.Prepared:
			return s.advance(layertree.Undone)
		}
		if err := needOff(op, m); err != nil {
			return err
		}
		if p.BaseDamage == "" {
			if err := s.d.integrity.checkChain(ctx, op, p.BaseLayer, false); err != nil {
				return err
			}
		}
		if err := s.advance(layertree.Undoing); err != nil {
			return err
		}
		return s.move(op, m, layertree.Undone, p.Old, p.BaseLayer, nil)
	})
}

// Check compares the images in the domain's definition with the record: the images below are those that were hashed, and the
// overlays above them are empty.
func (s *diskSwitch) Check(ctx context.Context) (proof snap.Proof, err error) {
	const op = "check the restore of disks"
	err = s.with(ctx, op, func(p *layertree.Plan, m virt.Machine) error {
		d := s.d
		layer, want := p.TargetLayer, p.TargetState
		if p.Phase == layertree.Undoing || p.Phase == layertree.Undone {
			layer, want = p.BaseLayer, p.BaseState
		}
		if layer == p.TargetLayer || p.BaseDamage == "" {
			if err := d.integrity.checkChain(ctx, op, layer, false); err != nil {
				return err
			}
		}
		moved, err := s.moved(m, layer)
		if err != nil {
			return err
		}
		proof = snap.Proof{Pre: hashOf(p.BaseState), Post: hashOf(want), Want: hashOf(want), Match: !moved}
		if layer == p.TargetLayer {
			proof.Notes = d.otherDisks(p)
			if p.BaseDamage != "" {
				proof.Notes = append(proof.Notes, "the disks' former backing image is damaged: "+p.BaseDamage+".")
			}
		}
		if moved {
			proof.Post, err = s.presentHash(ctx)
		}
		return err
	})
	return proof, err
}

// presentHash returns the digest of disks that are in no layer's state.
func (s *diskSwitch) presentHash(ctx context.Context) (snap.Hash, error) {
	d := s.d
	head := d.tree.Layers[d.tree.Head]
	h := blake3.New()
	_, _ = h.WriteString("mulligan disks in use\x00") // never fails
	if p := d.tree.Layers[head.Parent]; p != nil {
		_, _ = h.WriteString(p.State)
	}
	for _, dev := range d.tree.Disks {
		hash, err := imagefile.HashFile(ctx, head.Files[dev].Path)
		if err != nil {
			return snap.Hash{}, err
		}
		_, _ = h.WriteString(hash)
	}
	return hashOf(hex.EncodeToString(h.Sum(nil))), nil
}

// Finish removes the overlays that are no longer needed. An interrupted restore must be committed or undone first.
func (s *diskSwitch) Finish(ctx context.Context) error {
	const op = "finish the restore of disks"
	if err := s.d.begin(ctx, op); err != nil {
		return err
	}
	defer s.d.mu.Unlock()
	p, err := s.d.plan(op, s.id)
	if err != nil {
		return nil // it was finished before
	}
	if p.Phase == layertree.Committing || p.Phase == layertree.Undoing {
		return errs.New(errs.Conflict, op, "restore %s was interrupted", s.id).WithHint("commit it again, or undo it")
	}
	if err := s.d.cfg.Failpoint.At("finish"); err != nil {
		return err
	}
	err = s.d.update(func(t *layertree.Tree) { delete(t.Switches, s.id) })
	return errs.Wrap(errs.Failed, op, errors.Join(err, s.d.images.dropOrphans()))
}
