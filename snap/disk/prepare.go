package disk

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"mulligan/durable"
	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/disk/layertree"
)

// Prepare checks the target's images and creates overlays on them, while the domain keeps running.
func (d *Driver) Prepare(ctx context.Context, req snap.RestoreRequest) (snap.Switch, error) {
	const op = "prepare to restore disks"
	if err := d.begin(ctx, op); err != nil {
		return nil, err
	}
	defer d.mu.Unlock()
	target, err := d.snapshot(op, req.Target)
	if err != nil {
		return nil, err
	}
	base, err := d.snapshot(op, req.Base)
	if err != nil {
		return nil, err
	}
	m, err := d.openAnyhow(ctx, op)
	if err != nil {
		return nil, err
	}
	defer m.Free()
	p := &layertree.Plan{
		Target: req.Target, Base: req.Base, TargetLayer: target.Layer, BaseLayer: base.Layer,
		Old: d.tree.Head, Phase: layertree.Prepared, TargetMemory: target.Memory,
	}
	if err := d.prepare(ctx, op, req.ID, p); err != nil {
		return nil, errs.Also(errs.Wrap(errs.Failed, op, err), d.images.dropOrphans())
	}
	return &diskSwitch{d, req.ID, p.Changes}, nil
}

func (d *Driver) prepare(ctx context.Context, op string, id snap.RestoreID, p *layertree.Plan) (err error) {
	if err := d.integrity.checkChain(ctx, op, p.TargetLayer, false); err != nil {
		return err
	}
	err = d.integrity.checkChain(ctx, op, p.BaseLayer, false)
	if err == nil {
		err = d.integrity.seal(ctx, op, p.TargetLayer, p.BaseLayer)
	}
	if durable.Damaged(err) { // of the base alone, if the target is whole: the damage may be the reason for the restore
		p.BaseDamage = err.Error()
		err = d.integrity.seal(ctx, op, p.TargetLayer)
	}
	if err != nil {
		return err
	}
	if p.TargetMemory != nil {
		now, err := p.TargetMemory.Check(ctx, op, false)
		if err != nil {
			return err
		}
		p.TargetMemory = &now
	}
	if notes := d.otherDisks(p); len(notes) > 0 {
		if err := d.someDisks(op, p); err != nil {
			return err
		}
		p.TargetMemory = nil // it belongs to the disks of that time
	}
	p.TargetState = d.tree.Layers[p.TargetLayer].State
	if p.BaseDamage == "" {
		p.BaseState = d.tree.Layers[p.BaseLayer].State
	}
	p.Changes = d.changes(p.BaseLayer, p.TargetLayer)
	if err := d.images.room(op); err != nil {
		return err
	}
	if err := d.update(func(t *layertree.Tree) { p.New = d.addTarget(t, p) }); err != nil {
		return err
	}
	if err := d.images.createOverlays(ctx, op, p.New, d.images.sizeBelow(p.New)); err != nil {
		return err
	}
	if err := d.cfg.Failpoint.At("prepare: record"); err != nil {
		return err
	}
	if err := d.update(func(t *layertree.Tree) { t.Switches[id] = p }); err != nil {
		return err
	}
	return d.images.dropOrphans() // of an older preparation with the same id
}

// addTarget adds the layer that the domain will write to. A disk that the target does not have, because it was attached later,
// keeps its present contents.
func (d *Driver) addTarget(t *layertree.Tree, p *layertree.Plan) layertree.ID {
	id := d.images.addLayer(t, p.TargetLayer)
	l, target, base := t.Layers[id], t.Layers[p.TargetLayer], t.Layers[p.BaseLayer]
	for _, dev := range t.Disks {
		if target.Files[dev] == nil && base.Files[dev] != nil {
			if l.Rests == nil {
				l.Rests = map[string]string{}
			}
			l.Rests[dev] = base.Files[dev].Path
		}
	}
	return id
}

// someDisks returns an error for a restore that would restore nothing, or whose base has other disks than the domain.
func (d *Driver) someDisks(op string, p *layertree.Plan) error {
	target, base := d.tree.Layers[p.TargetLayer], d.tree.Layers[p.BaseLayer]
	some := false
	for _, dev := range d.tree.Disks {
		if target.Files[dev] != nil {
			some = true
		} else if base.Files[dev] == nil {
			return snap.Changed(op, "domain "+d.cfg.Domain)
		}
	}
	if !some {
		return errs.New(errs.Conflict, op, "the checkpoint holds the disks %s of domain %s, which has only %s now", strings.Join(target.Devices(), " "), d.cfg.Domain, strings.Join(d.tree.Disks, " ")).
			WithHint("attach them again under these names, or restore the other layers only: --scope layer:files")
	}
	return nil
}

// otherDisks returns a warning for each disk that only the snapshot or only the domain has.
func (d *Driver) otherDisks(p *layertree.Plan) (notes []string) {
	target := d.tree.Layers[p.TargetLayer]
	for _, dev := range d.tree.Disks {
		if target.Files[dev] == nil {
			notes = append(notes, fmt.Sprintf("disk %s was attached after the checkpoint was made: it stays as it is.", dev))
		}
	}
	for _, dev := range target.Devices() {
		if !slices.Contains(d.tree.Disks, dev) {
			notes = append(notes, fmt.Sprintf("the checkpoint holds disk %s, which domain %s does not have now: it was not restored.", dev, d.cfg.Domain))
		}
	}
	return notes
}
