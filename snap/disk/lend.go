package disk

import (
	"context"
	"errors"
	"path/filepath"
	"time"

	"mulligan/durable"
	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/disk/forkdomain"
	"mulligan/snap/disk/imagefile"
	"mulligan/snap/disk/layertree"
)

var _ snap.Adopter = (*Driver)(nil)

// Forkable returns an error if the domain's definition, as it is now, cannot be forked.
func (d *Driver) Forkable(ctx context.Context) error {
	const op = "look at the domain"
	if err := d.begin(ctx, op); err != nil {
		return err
	}
	defer d.mu.Unlock()
	m, err := d.openAnyhow(ctx, op)
	if err != nil {
		return err
	}
	defer m.Free()
	text, err := m.XML(false)
	if err == nil {
		err = forkdomain.Check(text)
	}
	return errs.Wrap(errs.Failed, op, err)
}

// Lend records that the fork with this app id rests on the layer of a snapshot, and returns what the fork's domain is made of. The layer
// and those below stay as they are until Return.
func (d *Driver) Lend(ctx context.Context, id snap.SnapshotID, fork string) (loan forkdomain.Loan, err error) {
	const op = "lend disks to a fork"
	if err := d.begin(ctx, op); err != nil {
		return loan, err
	}
	defer d.mu.Unlock()
	m, err := d.openAnyhow(ctx, op)
	if err != nil {
		return loan, err
	}
	defer m.Free()
	s, err := d.snapshot(op, id)
	if err != nil {
		return loan, err
	}
	l := d.tree.Layers[s.Layer]
	if l.Raw {
		return loan, errs.New(errs.Conflict, op, "the checkpoint's disks cannot be read").WithHint("fork from another checkpoint")
	}
	if err := d.integrity.checkChain(ctx, op, s.Layer, false); err != nil {
		return loan, err
	}
	if s.Memory != nil {
		if _, err := s.Memory.Check(ctx, op, false); err != nil {
			return loan, err
		}
	}
	if err := d.cfg.Failpoint.At("lend"); err != nil {
		return loan, err
	}
	if err := d.update(func(t *layertree.Tree) {
		if t.Lent == nil {
			t.Lent = map[string]layertree.ID{}
		}
		t.Lent[fork] = s.Layer
	}); err != nil {
		return loan, errs.Wrap(errs.Failed, op, err)
	}
	if loan.Definition, err = m.XML(false); err != nil {
		return loan, errs.Wrap(errs.Failed, op, err)
	}
	loan.Disks, loan.Layer, loan.Memory, loan.Capacity = l.Devices(), d.tree.Flat(s.Layer), s.Memory, map[string]int64{}
	for _, dev := range loan.Disks {
		if loan.Capacity[dev], err = imagefile.ImageSize(l.Files[dev].Path); err != nil {
			return loan, errs.Wrap(errs.Failed, op, err)
		}
	}
	return loan, nil
}

// Return ends the loans to all forks but those in keep, by their app ids.
func (d *Driver) Return(ctx context.Context, keep map[string]bool) error {
	const op = "take back the disks of forks"
	if err := d.begin(ctx, op); err != nil {
		return err
	}
	defer d.mu.Unlock()
	if d.tree == nil {
		return nil
	}
	for fork := range d.tree.Lent {
		if !keep[fork] {
			if err := d.update(func(t *layertree.Tree) { delete(t.Lent, fork) }); err != nil {
				return errs.Wrap(errs.Failed, op, err)
			}
		}
	}
	return nil
}

// Adopt stores a snapshot of a fork's driver: the layers that the fork has made on the layer that it was lent become layers of this
// driver, by copies of their images.
func (d *Driver) Adopt(ctx context.Context, from snap.Driver, id, as snap.SnapshotID) (out snap.Snapshot, err error) {
	const op = "take over the disks of a fork"
	fork, ok := from.(*Driver)
	if !ok {
		return out, errs.New(errs.Invalid, op, "the fork has no disks")
	}
	if err := d.begin(ctx, op); err != nil {
		return out, err
	}
	defer d.mu.Unlock()
	if err := fork.begin(ctx, op); err != nil {
		return out, err
	}
	defer fork.mu.Unlock()
	s, err := fork.snapshot(op, id)
	if err != nil {
		return out, err
	}
	if d.tree == nil || d.tree.Layers[d.tree.Lent[fork.cfg.App]] == nil {
		return out, errs.New(errs.Conflict, op, "the disks of domain %s do not rest on those of domain %s", fork.cfg.Domain, d.cfg.Domain)
	}
	if err := fork.integrity.seal(ctx, op, s.Layer); err != nil {
		return out, err
	}
	a := &adoption{d: d, fork: fork, at: d.tree.Lent[fork.cfg.App]}
	if err := a.run(ctx, op, s.Layer); err != nil {
		return out, errs.Also(errs.Wrap(errs.Failed, op, err), d.images.dropOrphans())
	}
	named := &layertree.Snapshot{Layer: a.at, Created: time.Now().UTC(), Quiesced: s.Quiesced}
	if err := d.update(func(t *layertree.Tree) { t.Snapshots[as] = named }); err != nil {
		return out, errs.Also(errs.Wrap(errs.Failed, op, err), d.images.dropOrphans())
	}
	return snap.Snapshot{ID: as, Driver: driverName, Position: string(a.at), Quiesced: s.Quiesced, Created: named.Created}, nil
}

// adoption is the state of one Adopt. The caller holds the locks of both drivers.
type adoption struct {
	d, fork *Driver
	at      layertree.ID // the layer of d that has the state of the fork's last layer that was taken over
}

// run takes over the layers from the fork's root, which is a layer of d, to its layer top.
func (a *adoption) run(ctx context.Context, op string, top layertree.ID) error {
	list := a.fork.tree.Chain(top)
	for i := len(list) - 2; i >= 0; i-- { // without the root
		l := a.fork.tree.Layers[list[i]]
		if l.Raw || len(l.Rests) > 0 || !layertree.SameDisks(l, a.d.tree.Layers[a.at]) {
			return errs.New(errs.Unsupported, op, "disks of the fork's domain were attached, detached or merged outside of mulligan, or cannot be read").
				WithHint("keep the other layers, or copy what you need from the fork")
		}
		if err := a.layer(ctx, op, l); err != nil {
			return err
		}
	}
	return nil
}

// layer takes over a layer. It is in the record before it has files, and without a name it is garbage, if this is interrupted.
func (a *adoption) layer(ctx context.Context, op string, from *layertree.Layer) error {
	d := a.d
	next, err := d.tree.Clone()
	if err != nil {
		return err
	}
	id := d.images.addLayer(next, a.at)
	for dev := range next.Layers[id].Files {
		if from.Files[dev] == nil {
			delete(next.Layers[id].Files, dev)
		}
	}
	if err := errors.Join(d.save(next), d.images.room(op)); err != nil {
		return err
	}
	l := d.tree.Layers[id]
	for _, dev := range l.Devices() {
		if err := d.cfg.Failpoint.At("adopt " + dev); err != nil {
			return err
		}
		if err := a.image(ctx, op, from.Files[dev], l.Files[dev].Path, d.tree.Layers[a.at].Files[dev].Path); err != nil {
			return err
		}
	}
	stats, err := d.images.freezeFiles(id, false)
	if err != nil {
		return err
	}
	var nvram *layertree.File
	if from.NVRAM != nil {
		dir := d.pools().Folder(d.tree, d.tree.Disks[0])
		if nvram, err = layertree.CopyNVRAM(from.NVRAM.Path, filepath.Join(dir, string(id)+".nvram")); err != nil {
			return err
		}
	}
	a.at = id
	return d.update(func(t *layertree.Tree) {
		l := t.Layers[id]
		l.Frozen, l.Torn, l.NVRAM = true, from.Torn, nvram
		for dev, st := range stats {
			l.Files[dev].Stat = st
		}
	})
}

// image copies an image of the fork to path, and puts it on another backing file that reads the same.
func (a *adoption) image(ctx context.Context, op string, from *layertree.File, path, backing string) error {
	if err := imagefile.CopyFile(ctx, from.Path, path); err != nil {
		return err
	}
	hash, err := imagefile.HashFile(ctx, path)
	if err != nil {
		return err
	}
	if hash != from.Hash {
		return imagefile.Corrupt(op, "%s was changed after it was frozen", from.Path)
	}
	if err := imagefile.SetBacking(ctx, path, backing); err != nil {
		return err
	}
	if err := imagefile.ChownLike(path, from.Path); err != nil {
		return err
	}
	if err := errors.Join(durable.Sync(path), durable.Sync(filepath.Dir(path))); err != nil {
		return err
	}
	return imagefile.RestsOn(op, path, backing)
}
