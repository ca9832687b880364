package disk

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/dustin/go-humanize"
	"github.com/zeebo/blake3"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/disk/imagefile"
	"mulligan/snap/disk/layertree"
)

// diskSwitch is a restore under way. What it knows is in the tree.
type diskSwitch struct {
	d       *Driver
	id      snap.RestoreID
	changes []snap.Change
}

// Prepare checks the target's images and puts fresh overlays on them, beside
// the running domain.
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
		return nil, errs.Also(errs.Wrap(errs.Failed, op, err), d.dropOrphans())
	}
	return &diskSwitch{d, req.ID, p.Changes}, nil
}

func (d *Driver) prepare(ctx context.Context, op string, id snap.RestoreID, p *layertree.Plan) (err error) {
	if err := d.checkChain(ctx, op, p.TargetLayer, false); err != nil {
		return err
	}
	whole := []layertree.ID{p.TargetLayer, p.BaseLayer}
	err = d.checkChain(ctx, op, p.BaseLayer, false)
	if errs.KindOf(err) == errs.Corrupt { // it may be what the restore is for
		p.BaseDamage, err, whole = err.Error(), nil, whole[:1]
	}
	if err == nil {
		err = d.seal(ctx, op, whole...)
	}
	if err != nil {
		return err
	}
	if p.TargetMemory != nil {
		now, err := d.checkFile(ctx, op, *p.TargetMemory, false)
		if err != nil {
			return err
		}
		p.TargetMemory = &now
	}
	if notes := d.otherDisks(p); len(notes) > 0 {
		if err := d.someDisks(op, p); err != nil {
			return err
		}
		p.TargetMemory = nil // it goes with the disks that there were
	}
	p.TargetState = d.tree.Layers[p.TargetLayer].State
	if p.BaseDamage == "" {
		p.BaseState = d.tree.Layers[p.BaseLayer].State
	}
	p.Changes = d.changes(p.BaseLayer, p.TargetLayer)
	if err := d.room(op); err != nil {
		return err
	}
	if err := d.update(func(t *layertree.Tree) { p.New = d.addTarget(t, p) }); err != nil {
		return err
	}
	if err := d.createOverlays(ctx, op, p.New, d.sizeBelow(p.New)); err != nil {
		return err
	}
	if err := d.cfg.Failpoint.At("prepare: record"); err != nil {
		return err
	}
	if err := d.update(func(t *layertree.Tree) { t.Switches[id] = p }); err != nil {
		return err
	}
	return d.dropOrphans() // an older preparation under the same id
}

// addTarget adds the layer that the domain is going to write to. A disk that the target
// does not have, for it was attached later, goes on from the base.
func (d *Driver) addTarget(t *layertree.Tree, p *layertree.Plan) layertree.ID {
	id := d.addLayer(t, p.TargetLayer)
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

// someDisks refuses a restore that would restore nothing, or whose base is not of the
// disks that the domain has.
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

// otherDisks says of a restore which disks the snapshot and the domain do not both have.
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

// Resume returns a switch that was prepared before.
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

func (d *Driver) plan(op string, id snap.RestoreID) (*layertree.Plan, error) {
	if d.tree != nil {
		if p := d.tree.Switches[id]; p != nil {
			return p, nil
		}
	}
	return nil, errs.New(errs.NotFound, op, "no restore %s of domain %s is under way", id, d.cfg.Domain)
}

// Changes says which disks differ.
func (s *diskSwitch) Changes(limit int) ([]snap.Change, int) {
	return s.changes[:max(0, min(limit, len(s.changes)))], len(s.changes)
}

// with calls f with the plan and the machine, with what a crash left recovered.
func (s *diskSwitch) with(ctx context.Context, op string, f func(p *layertree.Plan, m machine) error) error {
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

// moved reports whether the domain's disks are no longer the state of a layer:
// the head does not rest on it, was written to, or cannot be read any more.
func (d *Driver) moved(m machine, from layertree.ID) (bool, error) {
	if err := d.followChains("look for later writes to disks"); err != nil {
		return true, nil
	}
	head := d.tree.Layers[d.tree.Head]
	if head.Parent != from {
		return true, nil
	}
	fresh, err := d.headFresh()
	if err != nil || !fresh {
		return true, err
	}
	s, _, err := d.surveyOf("", m, false)
	if err != nil {
		return true, err
	}
	same, err := d.sameNVRAM(s.NVRAM, d.tree.Layers[from])
	return !same && d.tree.Layers[from].NVRAM != nil, err
}

// Stale reports whether the disks are no longer the base.
func (s *diskSwitch) Stale(ctx context.Context) (stale bool, err error) {
	err = s.with(ctx, "look for later writes to disks", func(p *layertree.Plan, m machine) (err error) {
		stale, err = s.d.moved(m, p.BaseLayer)
		stale = stale || !s.d.fitsDisks(p)
		return err
	})
	return stale, err
}

// fitsDisks reports whether the domain has the disks that it had when p was prepared.
func (d *Driver) fitsDisks(p *layertree.Plan) bool {
	return slices.Equal(d.tree.Layers[p.New].Devices(), d.tree.Disks)
}

// needOff refuses a domain that runs: its disks cannot be exchanged.
func needOff(op string, m machine) error {
	p, err := m.Power()
	if err != nil {
		return err
	}
	if p.up() {
		return errs.New(errs.Busy, op, "the domain is running").WithHint("stop it first: its unit does that")
	}
	return nil
}

// Commit puts the domain on the target's overlays. The domain must be off.
func (s *diskSwitch) Commit(ctx context.Context) error {
	const op = "restore disks"
	d := s.d
	return s.with(ctx, op, func(p *layertree.Plan, m machine) error {
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
			stale, err := d.moved(m, p.BaseLayer)
			if err != nil {
				return err
			}
			if stale || d.tree.Head != p.Old || !d.fitsDisks(p) {
				return snap.Changed(op, "domain "+d.cfg.Domain)
			}
		}
		if err := d.checkChain(ctx, op, p.TargetLayer, false); err != nil {
			return err
		}
		if err := s.advance(layertree.Committing); err != nil {
			return err
		}
		return s.move(op, m, layertree.Committed, p.New, p.TargetLayer, p.TargetMemory)
	})
}

// advance takes the switch to the phase, durably.
func (s *diskSwitch) advance(to layertree.Phase) error {
	if err := s.d.cfg.Failpoint.At("phase " + string(to)); err != nil {
		return err
	}
	return s.d.update(func(t *layertree.Tree) { t.Switches[s.id].Phase = to })
}

// move defines the domain with the images of head and the NVRAM of the layer
// below, and records that it is done.
func (s *diskSwitch) move(op string, m machine, to layertree.Phase, head, below layertree.ID, memory *layertree.File) error {
	d := s.d
	v, _, err := d.surveyOf(op, m, false)
	if err != nil {
		return err
	}
	if err := d.cfg.Failpoint.At("switch: nvram"); err != nil {
		return err
	}
	if err := putNVRAM(v.NVRAM, d.tree.Layers[below].NVRAM); err != nil {
		return err
	}
	if err := d.cfg.Failpoint.At("switch: define"); err != nil {
		return err
	}
	if err := d.define(op, m, head); err != nil {
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

// Undo puts the domain back on the base's overlays, if a Commit began. What the
// guest wrote since is lost; what it wrote while there was no Commit stays.
func (s *diskSwitch) Undo(ctx context.Context) error {
	const op = "undo the restore of disks"
	return s.with(ctx, op, func(p *layertree.Plan, m machine) error {
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
			if err := s.d.checkChain(ctx, op, p.BaseLayer, false); err != nil {
				return err
			}
		}
		if err := s.advance(layertree.Undoing); err != nil {
			return err
		}
		return s.move(op, m, layertree.Undone, p.Old, p.BaseLayer, nil)
	})
}

// Check looks at what the domain's definition names and compares: the images
// below are those that were hashed, and the overlays on them are empty.
func (s *diskSwitch) Check(ctx context.Context) (proof snap.Proof, err error) {
	const op = "check the restore of disks"
	err = s.with(ctx, op, func(p *layertree.Plan, m machine) error {
		d := s.d
		layer, want := p.TargetLayer, p.TargetState
		if p.Phase == layertree.Undoing || p.Phase == layertree.Undone {
			layer, want = p.BaseLayer, p.BaseState
		}
		if layer == p.TargetLayer || p.BaseDamage == "" {
			if err := d.checkChain(ctx, op, layer, false); err != nil {
				return err
			}
		}
		moved, err := d.moved(m, layer)
		if err != nil {
			return err
		}
		proof = snap.Proof{Pre: hashOf(p.BaseState), Post: hashOf(want), Want: hashOf(want), Match: !moved}
		if layer == p.TargetLayer {
			proof.Notes = d.otherDisks(p)
			if p.BaseDamage != "" {
				proof.Notes = append(proof.Notes, "what the disks rested on before is damaged: "+p.BaseDamage+".")
			}
		}
		if moved {
			proof.Post, err = d.presentHash(ctx)
		}
		return err
	})
	return proof, err
}

// presentHash is the digest of disks that are no layer's state.
func (d *Driver) presentHash(ctx context.Context) (snap.Hash, error) {
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

// Finish drops the overlays that are no longer needed. A restore that is half
// done must be committed or undone first.
func (s *diskSwitch) Finish(ctx context.Context) error {
	const op = "finish the restore of disks"
	if err := s.d.begin(ctx, op); err != nil {
		return err
	}
	defer s.d.mu.Unlock()
	p, err := s.d.plan(op, s.id)
	if err != nil {
		return nil // it was finished
	}
	if p.Phase == layertree.Committing || p.Phase == layertree.Undoing {
		return errs.New(errs.Conflict, op, "restore %s is half done", s.id).WithHint("commit it again, or undo it")
	}
	if err := s.d.cfg.Failpoint.At("finish"); err != nil {
		return err
	}
	err = s.d.update(func(t *layertree.Tree) { delete(t.Switches, s.id) })
	return errs.Wrap(errs.Failed, op, errors.Join(err, s.d.dropOrphans()))
}

// Diff says which disks differ between two snapshots, or a snapshot and now.
func (d *Driver) Diff(ctx context.Context, from, to snap.SnapshotID, paths []string) ([]snap.Change, error) {
	const op = "compare disks"
	if err := d.begin(ctx, op); err != nil {
		return nil, err
	}
	defer d.mu.Unlock()
	var ends [2]layertree.ID
	for i, id := range []snap.SnapshotID{from, to} {
		if id == "" && d.tree != nil {
			ends[i] = d.tree.Head
			continue
		}
		s, err := d.snapshot(op, id)
		if err != nil {
			return nil, err
		}
		ends[i] = s.Layer
	}
	list := d.changes(ends[0], ends[1])
	if len(paths) > 0 {
		list = slices.DeleteFunc(list, func(c snap.Change) bool { return !slices.Contains(paths, c.Path) })
	}
	return list, nil
}

// changes says which disks have something written between two layers and the
// nearest layer below both.
func (d *Driver) changes(a, b layertree.ID) (list []snap.Change) {
	ca, cb := d.tree.Chain(a), d.tree.Chain(b)
	for len(ca) > 0 && len(cb) > 0 && ca[len(ca)-1] == cb[len(cb)-1] {
		ca, cb = ca[:len(ca)-1], cb[:len(cb)-1]
	}
	for _, dev := range d.tree.Disks {
		if d.tree.Layers[a].Files[dev] == nil || d.tree.Layers[b].Files[dev] == nil {
			continue // a restore leaves it alone
		}
		words, err := d.changesOf(dev, a, b, append(slices.Clone(ca), cb...))
		if err != nil {
			words = "an image cannot be read"
		}
		if words != "" {
			list = append(list, snap.Change{Path: dev, Operation: snap.Modify, Summary: words})
		}
	}
	return list
}

// changesOf says in a few words what of one disk differs between layers a and b; "" where
// nothing does. between are those above the nearest layer that is below both.
func (d *Driver) changesOf(dev string, a, b layertree.ID, between []layertree.ID) (string, error) {
	var written []imagefile.Extent
	for _, id := range between {
		f := d.tree.Layers[id].Files[dev]
		if f == nil {
			continue
		}
		m, err := d.maps.MapOf(f.Path)
		if err != nil {
			return "", err
		}
		written = imagefile.Union(written, m.List)
	}
	var words []string
	if n := imagefile.Total(written); n > 0 {
		words = append(words, "up to "+humanize.IBytes(uint64(n))+" written in between")
	}
	was, err := imagefile.ImageSize(d.tree.Layers[b].Files[dev].Path)
	if err != nil {
		return "", err
	}
	now, err := imagefile.ImageSize(d.tree.Layers[a].Files[dev].Path)
	if err == nil && now != was {
		words = append(words, "size "+humanize.IBytes(uint64(was))+", and "+humanize.IBytes(uint64(now)))
	}
	return strings.Join(words, "; "), err
}
