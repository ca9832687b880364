package rbd

import (
	"context"
	"errors"
	"os"
	"slices"

	"mulligan/durable"
	"mulligan/errs"
)

const opPurge = "remove checkpoints of disks from Ceph"

// Flattens returns an error if Flatten could not begin.
func (d *Driver) Flattens(ctx context.Context) error {
	if err := d.begin(ctx, opPurge); err != nil {
		return err
	}
	defer d.mu.Unlock()
	m, err := d.open(ctx, opPurge)
	if err != nil {
		return err
	}
	m.Free()
	return nil
}

// Flatten removes all snapshots, all marks, and the record. The domain keeps the images that it has now. Where these are clones, the images
// that they rest on stay: the ones that the domain came with, and others in Ceph's trash, until the clones are flattened or gone.
func (d *Driver) Flatten(ctx context.Context) error {
	if err := d.begin(ctx, opPurge); err != nil {
		return err
	}
	err := d.forgetAll(ctx)
	d.mu.Unlock()
	if err == nil {
		err = d.Maintain(ctx)
	}
	if err != nil {
		return errs.Wrap(errs.Failed, opPurge, err)
	}
	d.maintain.Lock()
	defer d.maintain.Unlock()
	if err := d.begin(ctx, opPurge); err != nil {
		return err
	}
	defer d.mu.Unlock()
	switch {
	case d.rec == nil:
		return nil
	case d.rec.Hold != nil:
		return errs.New(errs.Busy, opPurge, "domain %s may stand still for a checkpoint that failed", d.cfg.Domain).WithHint("try again once its guest agent answers")
	}
	return errs.Wrap(errs.Failed, opPurge, d.letImagesGo(ctx))
}

// forgetAll drops all snapshots and switches from the record.
func (d *Driver) forgetAll(ctx context.Context) error {
	m, err := d.open(ctx, opPurge)
	if err != nil {
		return err
	}
	defer m.Free()
	return d.update(func(r *record) {
		for id := range r.Switches {
			forget(r, id)
		}
		for id := range r.Snapshots {
			remove(r, id)
		}
	})
}

// letImagesGo removes the marks from the images that stay, and then the record.
func (d *Driver) letImagesGo(ctx context.Context) error {
	head := headNames(d.rec)
	for name, i := range d.rec.Images {
		if same, err := d.stays(ctx, name, i); err != nil {
			return err
		} else if !same {
			continue
		}
		if err := d.cluster.disown(ctx, name); err != nil {
			return err
		}
		if !i.Ours {
			continue
		}
		if slices.Contains(head, name) || i.Out {
			if _, err := d.cluster.dropSnap(ctx, name, i.Base); err != nil {
				return err
			}
			d.cfg.Log.Info("the disk of a purged app stays a clone of what it came from", "image", name, "to make it whole", "rbd flatten "+name)
			continue
		}
		if err := d.cluster.toTrash(ctx, name); err != nil {
			return err
		}
	}
	if err := os.Remove(recordFile(d.cfg.StateDir)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	d.keep(nil)
	return durable.Sync(d.cfg.StateDir)
}

// stays reports whether an image is in the cluster and is the one that the record means.
func (d *Driver) stays(ctx context.Context, name string, i *image) (bool, error) {
	info, err := d.cluster.info(ctx, name)
	if errs.KindOf(err) == errs.NotFound {
		return false, nil
	}
	return info.ID == i.ID, err
}
