package disk

import (
	"context"
	"slices"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/disk/imagefile"
	"mulligan/snap/disk/layertree"
)

// Size returns the number of bytes that deleting exactly these snapshots frees after the next Maintain. Layers below the
// domain's present disks, layers of other snapshots, and the domain's original images free nothing.
func (d *Driver) Size(ctx context.Context, ids ...snap.SnapshotID) (int64, error) {
	const op = "measure disk snapshots"
	if err := d.begin(ctx, op); err != nil {
		return 0, err
	}
	defer d.mu.Unlock()
	for _, id := range ids {
		if _, err := d.snapshot(op, id); err != nil {
			return 0, err
		}
	}
	if d.tree == nil || len(ids) == 0 {
		return 0, nil
	}
	before, err := d.freedWithout(nil)
	if err != nil {
		return 0, errs.Wrap(errs.Failed, op, err)
	}
	after, err := d.freedWithout(ids)
	return max(0, after-before), errs.Wrap(errs.Failed, op, err)
}

func (d *Driver) freedWithout(ids []snap.SnapshotID) (int64, error) {
	t, err := d.tree.Clone()
	if err != nil {
		return 0, err
	}
	l := d.ledger(t)
	for _, id := range ids {
		if s := t.Snapshots[id]; s != nil && s.Memory != nil {
			l.Freed += imagefile.Blocks(s.Memory.Path)
		}
		delete(t.Snapshots, id)
	}
	err = l.Maintain()
	return l.Freed, err
}

// Delete deletes a snapshot. A layer that only this snapshot had is removed at once if no layer is above it, and otherwise
// merged by the next Maintain.
func (d *Driver) Delete(ctx context.Context, id snap.SnapshotID) error {
	const op = "delete disk snapshot"
	if err := d.begin(ctx, op); err != nil {
		return err
	}
	defer d.mu.Unlock()
	s, err := d.snapshot(op, id)
	if err != nil {
		return nil // it was deleted before
	}
	if err := d.cfg.Failpoint.At("delete"); err != nil {
		return errs.Wrap(errs.Failed, op, err)
	}
	if err := d.update(func(t *layertree.Tree) { delete(t.Snapshots, id) }); err != nil {
		return errs.Wrap(errs.Failed, op, err)
	}
	err = d.images.dropOrphans()
	if s.Memory != nil && !slices.Contains(d.tree.Files(), s.Memory.Path) && !d.switchNeeds(s.Memory.Path) {
		err = errs.Also(err, imagefile.Remove(s.Memory.Path))
	}
	return errs.Wrap(errs.Failed, op, err)
}

// switchNeeds reports whether a restore under way will use a memory image.
func (d *Driver) switchNeeds(path string) bool {
	for _, p := range d.tree.Switches {
		if p.TargetMemory != nil && p.TargetMemory.Path == path {
			return true
		}
	}
	return false
}

// ledger computes what Maintain would do with t.
func (d *Driver) ledger(t *layertree.Tree) *layertree.Ledger {
	return &layertree.Ledger{Tree: t, Owned: d.pools().Owns, Foreign: d.pools().Foreign, Depth: d.cfg.Depth, Known: &d.maps, Maps: map[string]imagefile.Allocation{}}
}
