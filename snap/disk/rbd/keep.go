package rbd

import (
	"context"
	"encoding/hex"
	"errors"
	"path/filepath"
	"slices"
	"time"

	"github.com/zeebo/blake3"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/disk/imagefile"
)

// Verify checks that all disks of a snapshot are there, with Full also by reading them. The first Full records hashes of what it has read,
// with which later ones compare.
func (d *Driver) Verify(ctx context.Context, id snap.SnapshotID, depth snap.Depth) error {
	const op = "verify disk snapshot on Ceph"
	s, err := d.verifyQuick(ctx, op, id, depth)
	if err != nil || depth != snap.Full {
		return err
	}
	hashes := map[string]string{}
	for dev, p := range s.Disks { // without the lock: it may take long
		h := blake3.New()
		err := d.cluster.export(ctx, p.at(), h)
		if errs.KindOf(err) == errs.Failed || errs.KindOf(err) == errs.NotFound {
			return imagefile.Corrupt(op, "%s cannot be read: %v", p.at(), err)
		}
		if err != nil {
			return errs.Wrap(errs.Failed, op, err)
		}
		hashes[dev] = hex.EncodeToString(h.Sum(nil))
		if p.Hash != "" && p.Hash != hashes[dev] {
			return imagefile.Corrupt(op, "%s reads differently than before", p.at())
		}
	}
	if err := d.begin(ctx, op); err != nil {
		return err
	}
	defer d.mu.Unlock()
	return errs.Wrap(errs.Failed, op, d.update(func(r *record) {
		if s := r.Snapshots[id]; s != nil {
			for dev, hash := range hashes {
				p := s.Disks[dev]
				p.Hash = hash
				s.Disks[dev] = p
			}
		}
	}))
}

func (d *Driver) verifyQuick(ctx context.Context, op string, id snap.SnapshotID, depth snap.Depth) (s snapshot, err error) {
	if err := d.begin(ctx, op); err != nil {
		return s, err
	}
	defer d.mu.Unlock()
	found, err := d.snapshot(op, id)
	if err != nil {
		return s, err
	}
	if found.NVRAM != nil {
		if _, err := found.NVRAM.Check(ctx, op, depth == snap.Full); err != nil {
			return s, err
		}
	}
	return *found, d.present(ctx, op, *found)
}

// present checks that Ceph has the snapshots of all disks, by their numbers and not only by their names.
func (d *Driver) present(ctx context.Context, op string, s snapshot) error {
	err := each(s.Disks, func(dev string, p point) error {
		info, err := d.cluster.info(ctx, p.Image)
		if errs.KindOf(err) == errs.NotFound {
			return imagefile.Corrupt(op, "the image %s is gone, which has disk %s", p.Image, dev)
		}
		if err != nil {
			return err
		}
		if i := d.rec.Images[p.Image]; i == nil || i.ID != info.ID {
			return imagefile.Corrupt(op, "the image %s is another one than the one that was captured", p.Image)
		}
		list, err := d.cluster.snapshots(ctx, p.Image)
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(list, func(r rbdSnapshot) bool { return r.Name == p.Snap && r.ID == p.ID }) {
			return imagefile.Corrupt(op, "the snapshot %s is gone, which has disk %s", p.at(), dev)
		}
		return nil
	})
	if err == nil && s.NVRAM != nil {
		_, err = s.NVRAM.Check(ctx, op, false)
	}
	return errs.Wrap(errs.Failed, op, err)
}

// drop dooms the snapshots in the cluster of a snapshot that was removed from the record.
func (r *record) drop(s *snapshot) { r.doom(s.Disks, time.Time{}) }

// Delete deletes a snapshot. Maintain removes what it had in the cluster.
func (d *Driver) Delete(ctx context.Context, id snap.SnapshotID) error {
	const op = "delete disk snapshot on Ceph"
	if err := d.begin(ctx, op); err != nil {
		return err
	}
	defer d.mu.Unlock()
	if _, err := d.snapshot(op, id); err != nil {
		return nil // it was deleted before
	}
	if err := d.cfg.Failpoint.At("delete"); err != nil {
		return errs.Wrap(errs.Failed, op, err)
	}
	return errs.Wrap(errs.Failed, op, d.update(func(r *record) { remove(r, id) }))
}

func remove(r *record, id snap.SnapshotID) {
	if s := r.Snapshots[id]; s != nil {
		delete(r.Snapshots, id)
		r.drop(s)
	}
}

// Sweep removes the snapshots and switches in gone, finishes what a crash left unfinished, and checks that the domain agrees with the
// record.
func (d *Driver) Sweep(ctx context.Context, gone snap.Gone) error {
	const op = "sweep disk snapshots on Ceph"
	if err := d.begin(ctx, op); err != nil {
		return err
	}
	defer d.mu.Unlock()
	if d.rec == nil {
		return nil
	}
	m, err := d.open(ctx, op)
	if err != nil {
		d.release.soon()
		return err
	}
	defer m.Free()
	if len(gone.Snapshots)+len(gone.Restores) == 0 {
		return nil
	}
	return errs.Wrap(errs.Failed, op, d.update(func(r *record) {
		for _, id := range gone.Restores {
			forget(r, id)
		}
		for _, id := range gone.Snapshots {
			remove(r, id)
		}
	}))
}

// Maintain removes from the cluster what nothing needs any more. All other methods may be called meanwhile. Maintain returns quickly if
// there is nothing to do.
func (d *Driver) Maintain(ctx context.Context) error {
	const op = "remove what no checkpoint needs from Ceph"
	d.maintain.Lock()
	defer d.maintain.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(d.life, cancel)()
	if d.life.Err() != nil {
		return nil // closed
	}
	snaps, err := d.remover.due(ctx, op)
	if err != nil {
		return err
	}
	var all []error
	for _, s := range snaps {
		all = append(all, d.remover.removeSnap(ctx, op, s))
	}
	tried := map[string]bool{}
	for err == nil {
		var name string
		if name, err = d.remover.nextIdle(ctx, op, tried); err != nil || name == "" {
			break
		}
		tried[name] = true
		err = d.remover.removeImage(ctx, op, name)
	}
	return errs.Wrap(errs.Failed, op, errors.Join(append(all, err, d.remover.removeFiles(ctx, op))...))
}

// remover removes from the cluster what the record has given up. Its methods lock the driver themselves.
type remover struct {
	d     *Driver
	stuck map[string]bool // clones that others use
}

// due returns the snapshots that are to be removed.
func (rm *remover) due(ctx context.Context, op string) ([]doomed, error) {
	d := rm.d
	if err := d.begin(ctx, op); err != nil {
		return nil, err
	}
	defer d.mu.Unlock()
	if d.rec == nil || d.rec.Intent != nil {
		return nil, nil
	}
	return slices.Clone(d.rec.Doomed), nil
}

// removeSnap removes a snapshot of an image that is still the one that was captured.
func (rm *remover) removeSnap(ctx context.Context, op string, s doomed) error {
	d := rm.d
	if !d.ours(s.Snap) {
		return errs.New(errs.Internal, op, "%s is not a snapshot of mulligan's", s.at())
	}
	same, err := rm.sameImage(ctx, s.Image)
	if err != nil {
		return err
	}
	was := !same
	if same {
		if err := d.cfg.Failpoint.At("remove snapshot"); err != nil {
			return err
		}
		if was, err = d.cluster.dropSnap(ctx, s.Image, s.Snap); err != nil {
			return err
		}
	}
	if !was && time.Now().Before(s.Until) { // the request for it may still be under way
		return nil
	}
	if err := d.begin(ctx, op); err != nil {
		return err
	}
	defer d.mu.Unlock()
	return d.update(func(r *record) {
		r.Doomed = slices.DeleteFunc(r.Doomed, func(other doomed) bool { return other.at() == s.at() })
	})
}

// sameImage reports whether an image is in the cluster and is the one that the record means. A clone whose making was interrupted has no
// id in the record: its name was given to nothing else.
func (rm *remover) sameImage(ctx context.Context, name string) (bool, error) {
	d := rm.d
	d.mu.Lock()
	i := d.rec.Images[name]
	d.mu.Unlock()
	if i == nil {
		return false, nil
	}
	if i.ID == "" {
		return true, nil
	}
	return d.stays(ctx, name, i)
}

// nextIdle returns a clone that nothing needs, which is not used again from then on; "" if there is none.
func (rm *remover) nextIdle(ctx context.Context, op string, tried map[string]bool) (string, error) {
	d := rm.d
	if err := d.begin(ctx, op); err != nil {
		return "", err
	}
	defer d.mu.Unlock()
	if d.rec == nil {
		return "", nil
	}
	for _, name := range d.rec.idle() {
		if rm.stuck[name] || tried[name] {
			continue
		}
		m, err := d.open(ctx, op) // somebody may have defined the domain with it
		if err != nil {
			return "", err
		}
		m.Free()
		if d.rec.Images[name].Going {
			return name, nil
		}
		return name, d.update(func(r *record) { r.Images[name].Going = true })
	}
	return "", nil
}

// removeImage removes a clone. One that others have made snapshots or clones of stays, until the daemon starts again.
func (rm *remover) removeImage(ctx context.Context, op, name string) error {
	d := rm.d
	if !d.ours(filepath.Base(name)) {
		return errs.New(errs.Internal, op, "%s is not an image of mulligan's", name)
	}
	same, err := rm.sameImage(ctx, name)
	if err != nil {
		return err
	}
	d.mu.Lock()
	i := *d.rec.Images[name]
	d.mu.Unlock()
	was := !same
	if same {
		if err := d.cfg.Failpoint.At("remove clone"); err != nil {
			return err
		}
		if _, err = d.cluster.dropSnap(ctx, name, i.Base); err == nil || errs.KindOf(err) == errs.Failed { // it may be half an image
			was, err = d.cluster.dropImage(ctx, name)
		}
	}
	if errs.KindOf(err) == errs.Busy {
		rm.stuck[name] = true
		d.cfg.Log.Warn("a clone that mulligan has made stays in the cluster, because others use it or have snapshots of it", "image", name, "err", err)
		return nil
	}
	if err != nil {
		return err
	}
	if !was && i.ID == "" && time.Since(i.Named) < late { // a program that was killed may still have been heard
		return nil
	}
	if err := d.begin(ctx, op); err != nil {
		return err
	}
	defer d.mu.Unlock()
	return d.update(func(r *record) { delete(r.Images, name) })
}

// removeFiles removes the copies of NVRAM that nothing needs.
func (rm *remover) removeFiles(ctx context.Context, op string) error {
	d := rm.d
	if err := d.begin(ctx, op); err != nil {
		return err
	}
	defer d.mu.Unlock()
	if d.rec == nil {
		return nil
	}
	found, err := filepath.Glob(filepath.Join(d.cfg.StateDir, "mulligan-*.nvram*"))
	needed := d.rec.files()
	for _, path := range found {
		if err == nil && !slices.Contains(needed, path) {
			err = imagefile.Remove(path)
		}
	}
	return err
}
