package rbd

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/zeebo/blake3"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/disk/imagefile"
	"mulligan/snap/disk/layertree"
	"mulligan/snap/disk/virt"
)

// Prepare checks the target's snapshots and makes clones of them, while the domain keeps running.
func (d *Driver) Prepare(ctx context.Context, req snap.RestoreRequest) (snap.Switch, error) {
	const op = "prepare to restore disks on Ceph"
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
	m, err := d.open(ctx, op)
	if err != nil {
		return nil, err
	}
	defer m.Free()
	p := &plan{
		Target: req.Target, Base: req.Base, To: *target, From: *base, Phase: layertree.Prepared,
		Old: clip(d.rec.Head), New: clip(d.rec.Head),
	}
	if err := d.prepare(ctx, op, req.ID, p); err != nil {
		return nil, errs.Wrap(errs.Failed, op, err)
	}
	return &diskSwitch{d, req.ID}, nil
}

func clip(m map[string]string) map[string]string { return maps.Clone(m) }

func (d *Driver) prepare(ctx context.Context, op string, id snap.RestoreID, p *plan) (err error) {
	if err := d.ownsHead(ctx, op, true); err != nil {
		return err
	}
	if err := d.present(ctx, op, p.To); err != nil {
		return err
	}
	clones := map[string]point{}
	for dev := range p.Old {
		if to, ok := p.To.Disks[dev]; ok {
			clones[dev] = to
		}
	}
	if len(clones) == 0 {
		return errs.New(errs.Conflict, op, "the checkpoint holds the disks %s of domain %s, which has only %s now", strings.Join(slices.Sorted(maps.Keys(p.To.Disks)), " "), d.cfg.Domain, strings.Join(d.rec.devices(), " ")).
			WithHint("attach them again under these names, or restore the other layers only: --scope layer:files")
	}
	if p.Changes, err = d.changes(ctx, p.From, p.To); err != nil {
		return err
	}
	if err := d.cfg.Failpoint.At("prepare: name"); err != nil {
		return err
	}
	// The clones are in the record before they exist. What is not in a switch is removed.
	if err := d.update(func(r *record) {
		name := d.name(r)
		for dev, of := range clones {
			pool := of.Image[:strings.LastIndex(of.Image, "/")]
			p.New[dev] = pool + "/" + name + "-" + dev
			r.Images[p.New[dev]] = &image{Ours: true, Named: time.Now(), Parent: of, Base: name, Still: p.To.Quiesced}
		}
	}); err != nil {
		return err
	}
	ids := make(chan [2]string, len(clones))
	if err := each(clones, func(dev string, of point) error {
		if err := d.cfg.Failpoint.At("prepare: clone " + dev); err != nil {
			return err
		}
		name := p.New[dev]
		info, err := d.makeClone(ctx, of, name, d.rec.Images[name].Base)
		ids <- [2]string{name, info.ID}
		return err
	}); err != nil {
		return err
	}
	if err := d.cfg.Failpoint.At("prepare: record"); err != nil {
		return err
	}
	return d.update(func(r *record) {
		for range clones {
			made := <-ids
			r.Images[made[0]].ID = made[1]
		}
		r.replace(id, p)
	})
}

// makeClone makes a clone, marks it as the app's, and makes the snapshot by which later writes to it are found.
func (d *Driver) makeClone(ctx context.Context, of point, name, base string) (info imageInfo, err error) {
	if err := d.cluster.clone(ctx, of.Image, of.Snap, name); err != nil {
		return info, err
	}
	if err := d.cluster.own(ctx, name, d.owner()); err != nil {
		return info, err
	}
	if err := d.cluster.snap(ctx, callLimit, name, base); err != nil {
		return info, err
	}
	return d.cluster.info(ctx, name)
}

// diskSwitch is a restore under way. Its state is in the record.
type diskSwitch struct {
	d  *Driver
	id snap.RestoreID
}

// Resume returns the switch of an earlier Prepare.
func (d *Driver) Resume(ctx context.Context, id snap.RestoreID) (snap.Switch, error) {
	const op = "resume the restore of disks on Ceph"
	if err := d.begin(ctx, op); err != nil {
		return nil, err
	}
	defer d.mu.Unlock()
	if _, err := d.planned(op, id); err != nil {
		return nil, err
	}
	return &diskSwitch{d, id}, nil
}

func (d *Driver) planned(op string, id snap.RestoreID) (*plan, error) {
	if d.rec != nil {
		if p := d.rec.Switches[id]; p != nil {
			return p, nil
		}
	}
	return nil, errs.New(errs.NotFound, op, "no restore %s of domain %s is under way", id, d.cfg.Domain)
}

// Changes lists the disks that differ.
func (s *diskSwitch) Changes(limit int) ([]snap.Change, int) {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	p, err := s.d.planned("", s.id)
	if err != nil {
		return nil, 0
	}
	return p.Changes[:max(0, min(limit, len(p.Changes)))], len(p.Changes)
}

// with calls f with the plan and libvirt's handle of the domain, after recovery from a crash.
func (s *diskSwitch) with(ctx context.Context, op string, f func(p *plan, m virt.Machine) error) error {
	d := s.d
	if err := d.begin(ctx, op); err != nil {
		return err
	}
	defer d.mu.Unlock()
	if _, err := d.planned(op, s.id); err != nil {
		return err
	}
	m, err := d.open(ctx, op)
	if err != nil {
		return err
	}
	defer m.Free()
	p, err := d.planned(op, s.id)
	if err != nil {
		return err
	}
	return errs.Wrap(errs.Failed, op, f(p, m))
}

// untouched reports whether nothing was written to images since the snapshots of them, and none was resized.
func (d *Driver) untouched(ctx context.Context, images map[string]string, since map[string]point) (bool, error) {
	writes := make(chan bool, len(images))
	err := each(images, func(dev, name string) error {
		p, ok := since[dev]
		if !ok || p.Image != name {
			writes <- true
			return nil
		}
		info, err := d.cluster.info(ctx, name)
		if err != nil {
			return err
		}
		if p.Size != 0 && info.Size != p.Size {
			writes <- true
			return nil
		}
		e, err := d.cluster.diff(ctx, name, p.Snap, "", true)
		writes <- len(e.all) > 0
		return err
	})
	if err != nil {
		return false, err
	}
	for range images {
		if <-writes {
			return false, nil
		}
	}
	return true, nil
}

// bases returns the snapshots that clones have had since they were made.
func (d *Driver) bases(images map[string]string) map[string]point {
	m := map[string]point{}
	for dev, name := range images {
		if i := d.rec.Images[name]; i != nil && i.Base != "" {
			m[dev] = point{Image: name, Snap: i.Base, Size: i.Parent.Size}
		}
	}
	return m
}

// moved reports whether the domain's disks are no longer those of the base, or after a commit those of the target.
func (s *diskSwitch) moved(ctx context.Context, m virt.Machine, p *plan, committed bool) (bool, error) {
	d := s.d
	images, since, want := p.Old, p.From.Disks, p.From
	if committed {
		images, since, want = p.New, maps.Clone(p.From.Disks), p.To
		maps.Copy(since, d.bases(restored(p)))
	}
	if !maps.Equal(d.rec.Head, images) {
		return true, nil
	}
	v, _, err := d.dom.Survey("", m, false)
	if err != nil {
		return true, err
	}
	if same, err := d.sameNVRAM(v.NVRAM, want); err != nil || !same {
		return true, err
	}
	clean, err := d.untouched(ctx, images, since)
	return !clean, err
}

// restored returns the images of a plan that are clones of the target's.
func restored(p *plan) map[string]string {
	m := map[string]string{}
	for dev, name := range p.New {
		if name != p.Old[dev] {
			m[dev] = name
		}
	}
	return m
}

// Stale reports whether the disks are no longer in the state of the base.
func (s *diskSwitch) Stale(ctx context.Context) (stale bool, err error) {
	err = s.with(ctx, "look for later writes to disks on Ceph", func(p *plan, m virt.Machine) (err error) {
		stale, err = s.moved(ctx, m, p, false)
		return err
	})
	return stale, err
}

// needOff returns an error if the domain runs, because then its disks cannot be replaced, or if anybody else has its images open.
func (s *diskSwitch) needOff(ctx context.Context, op string, m virt.Machine) error {
	p, err := m.Power()
	if err != nil {
		return err
	}
	if p.Up() {
		return errs.New(errs.Busy, op, "the domain is running").WithHint("stop the domain first: its unit does that when the unit is stopped")
	}
	if err := s.d.unused(ctx, op); err != nil {
		return err
	}
	return s.d.ownsHead(ctx, op, true)
}

// Commit defines the domain with the clones. The domain must be off.
func (s *diskSwitch) Commit(ctx context.Context) error {
	const op = "restore disks on Ceph"
	d := s.d
	return s.with(ctx, op, func(p *plan, m virt.Machine) error {
		switch p.Phase {
		case layertree.Committed:
			return nil
		case layertree.Undoing, layertree.Undone:
			return errs.New(errs.Conflict, op, "restore %s was undone", s.id).WithHint("restore again")
		}
		if err := s.needOff(ctx, op, m); err != nil {
			return err
		}
		if p.Phase == layertree.Prepared {
			stale, err := s.moved(ctx, m, p, false)
			if err != nil {
				return err
			}
			if stale {
				return snap.Changed(op, "domain "+d.cfg.Domain)
			}
		}
		if !maps.Equal(d.rec.Head, p.New) { // else somebody may have started the domain since
			if err := s.whole(ctx, op, p); err != nil {
				return err
			}
		}
		if err := s.advance(layertree.Committing); err != nil {
			return err
		}
		return s.move(op, m, layertree.Committed, p.New, p.To)
	})
}

// whole checks that the clones are those that were made, of the snapshots that were asked for, and that nothing was written to them.
func (s *diskSwitch) whole(ctx context.Context, op string, p *plan) error {
	d := s.d
	clones := restored(p)
	if err := each(clones, func(dev, name string) error {
		info, err := d.cluster.info(ctx, name)
		if err != nil && errs.KindOf(err) != errs.NotFound {
			return err
		}
		i, of := d.rec.Images[name], p.To.Disks[dev]
		pool, parent := of.Image[:strings.LastIndex(of.Image, "/")], of.Image[strings.LastIndex(of.Image, "/")+1:]
		from := strings.TrimSuffix(info.Parent.Pool+"/"+info.Parent.Namespace, "/")
		if err != nil || i == nil || info.ID != i.ID || info.Parent.Image != parent || from != pool {
			return imagefile.Corrupt(op, "the clone %s is not what mulligan has made", name)
		}
		return nil
	}); err != nil {
		return err
	}
	clean, err := d.untouched(ctx, clones, d.bases(clones))
	if err == nil && !clean {
		err = imagefile.Corrupt(op, "somebody has written to a clone that mulligan has made for this restore")
	}
	return err
}

// advance durably records the phase of the switch.
func (s *diskSwitch) advance(to layertree.Phase) error {
	if err := s.d.cfg.Failpoint.At("phase " + string(to)); err != nil {
		return err
	}
	return s.d.update(func(r *record) { r.Switches[s.id].Phase = to })
}

// move defines the domain with images and the NVRAM of a snapshot, and records that this was done.
func (s *diskSwitch) move(op string, m virt.Machine, to layertree.Phase, images map[string]string, of snapshot) error {
	d := s.d
	v, _, err := d.dom.Survey(op, m, false)
	if err != nil {
		return err
	}
	if err := d.cfg.Failpoint.At("switch: nvram"); err != nil {
		return err
	}
	if v.NVRAM != "" && of.NVRAM != nil {
		if err := d.dom.TrustedNVRAM(op, v.NVRAM); err != nil {
			return err
		}
		if err := imagefile.Overwrite(v.NVRAM, of.NVRAM.Path); err != nil {
			return err
		}
	}
	if err := d.cfg.Failpoint.At("switch: define"); err != nil {
		return err
	}
	if err := d.dom.Define(op, m, images, slices.Collect(maps.Keys(images))); err != nil {
		return err
	}
	if err := d.cfg.Failpoint.At("switch: record"); err != nil {
		return err
	}
	return d.update(func(r *record) {
		r.Head, r.Ran, r.Switches[s.id].Phase = clip(images), false, to
	})
}

// Undo defines the domain with its earlier images again if a Commit has begun. Data that the guest wrote since the Commit are lost; data
// that it wrote before stay.
func (s *diskSwitch) Undo(ctx context.Context) error {
	const op = "undo the restore of disks on Ceph"
	return s.with(ctx, op, func(p *plan, m virt.Machine) error {
		switch p.Phase {
		case layertree.Undone:
			return nil
		case layertree.Prepared:
			return s.advance(layertree.Undone)
		}
		if err := s.needOff(ctx, op, m); err != nil {
			return err
		}
		if err := s.advance(layertree.Undoing); err != nil {
			return err
		}
		return s.move(op, m, layertree.Undone, p.Old, p.From)
	})
}

// Check compares the images in the domain's definition with the record: they are clones of the target's snapshots, or after an Undo the
// images of the base, and nothing was written to them since. No contents are read: Ceph does not change a snapshot.
func (s *diskSwitch) Check(ctx context.Context) (proof snap.Proof, err error) {
	const op = "check the restore of disks on Ceph"
	err = s.with(ctx, op, func(p *plan, m virt.Machine) error {
		d := s.d
		undone := p.Phase == layertree.Undoing || p.Phase == layertree.Undone
		want := d.rec.digest(p.To)
		if undone {
			want = d.rec.digest(p.From)
		} else if err := d.present(ctx, op, p.To); err != nil {
			return err
		}
		moved, err := s.moved(ctx, m, p, !undone)
		if err != nil {
			return err
		}
		proof = snap.Proof{Pre: d.rec.digest(p.From), Post: want, Want: want, Match: !moved, Shallow: true}
		if moved { // a state that no snapshot holds
			proof.Post = snap.Hash(blake3.Sum256([]byte("written since " + want.String() + imagefile.Random())))
		}
		if !undone {
			proof.Notes = d.otherDisks(p)
		}
		return nil
	})
	return proof, err
}

// otherDisks returns a sentence for each disk that only the snapshot or only the domain has.
func (d *Driver) otherDisks(p *plan) (notes []string) {
	for _, dev := range slices.Sorted(maps.Keys(p.Old)) {
		if p.New[dev] == p.Old[dev] {
			notes = append(notes, fmt.Sprintf("disk %s was attached after the checkpoint was made: it stays as it is.", dev))
		}
	}
	for _, dev := range slices.Sorted(maps.Keys(p.To.Disks)) {
		if p.Old[dev] == "" {
			notes = append(notes, fmt.Sprintf("the checkpoint holds disk %s, which domain %s does not have now: it was not restored.", dev, d.cfg.Domain))
		}
	}
	return notes
}

// Finish forgets the switch. Maintain removes the images that are no longer needed. An interrupted restore must be committed or undone
// first.
func (s *diskSwitch) Finish(ctx context.Context) error {
	const op = "finish the restore of disks on Ceph"
	d := s.d
	if err := d.begin(ctx, op); err != nil {
		return err
	}
	defer d.mu.Unlock()
	p, err := d.planned(op, s.id)
	if err != nil {
		return nil // it was finished before
	}
	if p.Phase == layertree.Committing || p.Phase == layertree.Undoing {
		return errs.New(errs.Conflict, op, "restore %s was interrupted", s.id).WithHint("commit it again, or undo it")
	}
	if err := d.cfg.Failpoint.At("finish"); err != nil {
		return err
	}
	return errs.Wrap(errs.Failed, op, d.update(func(r *record) { forget(r, s.id) }))
}

// forget drops a switch.
func forget(r *record, id snap.RestoreID) { r.replace(id, nil) }

// replace puts p in the place of a switch, and dooms the snapshots that the old one alone has kept. If p is nil, the switch is gone.
func (r *record) replace(id snap.RestoreID, p *plan) {
	old := r.Switches[id]
	delete(r.Switches, id)
	if p != nil {
		r.Switches[id] = p
	}
	if old != nil {
		r.drop(&old.To)
		r.drop(&old.From)
	}
}

// Diff lists the disks that differ between two snapshots, or between a snapshot and the present state.
func (d *Driver) Diff(ctx context.Context, from, to snap.SnapshotID, paths []string) ([]snap.Change, error) {
	const op = "compare disks on Ceph"
	if err := d.begin(ctx, op); err != nil {
		return nil, err
	}
	defer d.mu.Unlock()
	var ends [2]snapshot
	for i, id := range []snap.SnapshotID{from, to} {
		if id != "" {
			s, err := d.snapshot(op, id)
			if err != nil {
				return nil, err
			}
			ends[i] = *s
		}
	}
	m, err := d.open(ctx, op)
	if err != nil {
		return nil, err
	}
	defer m.Free()
	for i, id := range []snap.SnapshotID{from, to} {
		if id == "" {
			ends[i].Disks = map[string]point{}
			for dev, name := range d.rec.Head {
				info, err := d.cluster.info(ctx, name)
				if err != nil {
					return nil, errs.Wrap(errs.Failed, op, err)
				}
				ends[i].Disks[dev] = point{Image: name, Size: info.Size}
			}
		}
	}
	list, err := d.changes(ctx, ends[0], ends[1])
	if len(paths) > 0 {
		list = slices.DeleteFunc(list, func(c snap.Change) bool { return !slices.Contains(paths, c.Path) })
	}
	return list, errs.Wrap(errs.Failed, op, err)
}

// changes describes the disks that differ between two states. Disks that only one of them has are left out, because a restore leaves
// them alone.
func (d *Driver) changes(ctx context.Context, a, b snapshot) (list []snap.Change, err error) {
	for _, dev := range slices.Sorted(maps.Keys(a.Disks)) {
		from := a.Disks[dev]
		to, both := b.Disks[dev]
		if !both || d.rec.Head[dev] == "" {
			continue
		}
		n, err := d.between(ctx, from, to)
		if err != nil {
			return nil, err
		}
		var words []string
		if n > 0 {
			words = append(words, "up to "+humanize.IBytes(uint64(n))+" written in between")
		}
		if from.Size != to.Size {
			words = append(words, "size "+humanize.IBytes(uint64(to.Size))+", and "+humanize.IBytes(uint64(from.Size)))
		}
		if len(words) > 0 {
			list = append(list, snap.Change{Path: dev, Operation: snap.Modify, Summary: strings.Join(words, "; ")})
		}
	}
	return list, nil
}
