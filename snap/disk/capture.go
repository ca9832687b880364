package disk

import (
	"context"
	"errors"
	"maps"
	"path/filepath"
	"slices"
	"time"

	"mulligan/durable"
	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/disk/guest"
	"mulligan/snap/disk/imagefile"
	"mulligan/snap/disk/layertree"
	"mulligan/snap/disk/virt"
)

const (
	opCapture = "capture disks"
	// maxLive is the longest backing chain that a running domain may have open. A longer chain is merged, and QEMU opens the
	// merged images. libvirt refuses chains of more than 200 images.
	maxLive = 96
)

// Capture freezes the images that the domain writes to as the snapshot req.ID, and creates overlays on them, which the domain
// writes to from then on.
func (d *Driver) Capture(ctx context.Context, req snap.CaptureRequest) (snap.Snapshot, error) {
	return d.capture(ctx, req, false)
}

// CaptureMemory does what Capture does, and also keeps the memory of a running guest, so that a restore resumes the guest
// instead of booting it.
func (d *Driver) CaptureMemory(ctx context.Context, req snap.CaptureRequest) (snap.Snapshot, error) {
	return d.capture(ctx, req, true)
}

func (d *Driver) capture(ctx context.Context, req snap.CaptureRequest, memory bool) (out snap.Snapshot, err error) {
	if err := d.begin(ctx, opCapture); err != nil {
		return snap.Snapshot{}, err
	}
	defer d.mu.Unlock()
	if !validName(string(req.ID)) || req.At != "" {
		return snap.Snapshot{}, errs.New(errs.Invalid, opCapture, "%q at %q is not a snapshot that disks can have", req.ID, req.At)
	}
	m, err := d.open(ctx, opCapture)
	if err != nil {
		return snap.Snapshot{}, err
	}
	defer m.Free()
	if err := d.onRaw(opCapture); err != nil {
		return snap.Snapshot{}, err
	}
	c := &capturing{d: d, m: m, id: req.ID, memory: memory}
	if err := c.run(ctx); err != nil {
		// The next open finds out what has happened to the domain.
		return snap.Snapshot{}, errs.Wrap(errs.Failed, opCapture, err)
	}
	s := d.tree.Snapshots[req.ID]
	return snap.Snapshot{
		ID: req.ID, Driver: driverName, Position: string(s.Layer), Quiesced: s.Quiesced, Created: s.Created, Warnings: c.warnings,
	}, nil
}

// capturing is the state of one capture.
type capturing struct {
	d        *Driver
	m        virt.Machine
	id       snap.SnapshotID
	memory   bool
	raw      bool        // the images cannot be read
	survey   virt.Survey // of the live definition while the domain runs, else of the persistent one
	up       bool
	paused   bool
	nvram    *layertree.File
	quiesced bool
	warnings []string
}

// run captures the disks: it names the present layer if nothing was written, and otherwise freezes the images.
func (c *capturing) run(ctx context.Context) (err error) {
	d := c.d
	p, err := c.m.Power()
	if err != nil {
		return err
	}
	c.up, c.paused = p.Up(), p.Still()
	if c.survey, _, err = d.dom.Survey(opCapture, c.m, c.up); err != nil {
		return err
	}
	c.warnings = slices.Concat(c.survey.Warnings, d.tree.News, d.follower.halfway)
	if same, err := c.unchanged(); err != nil || same {
		if err == nil {
			err = c.name(d.tree.Layers[d.tree.Head].Parent)
		}
		return err
	}
	if err := c.shallow(ctx); err != nil {
		return err
	}
	if err := d.images.room(opCapture); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	err = c.freeze(ctx)
	if err != nil && c.up && d.tree.Suspect && d.tree.Intent == nil {
		// libvirtd was killed during an earlier switch. QEMU still has images open under the names that this switch needs.
		if e := d.reopener.reopen(opCapture, c.m, d.tree.Head); e != nil {
			lost := errs.New(errs.Conflict, "", "libvirtd was killed in the middle of a checkpoint and lost track of the images that QEMU has open").
				WithHint("nothing is lost: stop and start domain %s once", d.cfg.Domain)
			lost.Err = errs.Also(err, e)
			return lost
		}
		err = c.freeze(ctx)
	}
	return err
}

// unchanged reports whether the layer below the head already is the present state: the domain is off, and nothing was written
// to the head.
func (c *capturing) unchanged() (bool, error) {
	d := c.d
	head := d.tree.Layers[d.tree.Head]
	if c.up || head.Parent == "" {
		return false, nil
	}
	if !slices.Equal(head.Devices(), d.tree.Layers[head.Parent].Devices()) {
		return false, nil
	}
	if fresh, err := d.images.headFresh(); err != nil || !fresh {
		return false, err
	}
	return d.images.sameNVRAM(c.survey.NVRAM, d.tree.Layers[head.Parent])
}

// shallow shortens the backing chain if it would become too long with the new overlays.
func (c *capturing) shallow(ctx context.Context) error {
	d := c.d
	depth := d.tree.Depth(d.tree.Head)
	if c.up && c.survey.Deep+1 >= d.maxLive && depth < d.maxLive/2 {
		d.cfg.Log.Info("the domain has too many images open: it is made to open the merged ones", "domain", d.cfg.Domain, "images", c.survey.Deep+1)
		return d.reopener.reopen(opCapture, c.m, d.tree.Head)
	}
	if most := 2 * maxLive; depth >= most || c.survey.Deep >= most {
		return errs.New(errs.Unavailable, opCapture, "the backing chain has %d images: they could not be merged fast enough", depth).
			WithHint("delete checkpoints, and wait for the daemon's maintenance")
	}
	return nil
}

// freeze creates the overlays, switches the domain to them and freezes the old images. After a crash at any step, recover finds
// out which steps were done.
func (c *capturing) freeze(ctx context.Context) error {
	d := c.d
	next, err := d.tree.Clone()
	if err != nil {
		return err
	}
	in := &layertree.Intent{Op: "capture", Old: next.Head, Running: c.up, Raw: c.raw}
	in.New = d.images.addLayer(next, next.Head)
	if c.memory && c.up {
		in.Memory = filepath.Join(d.pools().Folder(next, next.Disks[0]), string(c.id)+".memory")
	}
	next.Intent = in
	if err := d.save(next); err != nil {
		return err
	}
	in = d.tree.Intent
	if err := c.switchDisks(ctx, in); err != nil {
		// The error does not say how far libvirt got, so the recovery asks libvirt.
		return errs.Also(err, c.recoverFrom(context.WithoutCancel(ctx), err))
	}
	if err := d.cfg.Failpoint.At("capture: switched"); err != nil {
		return err
	}
	return c.finish(in)
}

// recoverFrom recovers after a capture that failed with err. If libvirt works, it has undone its own part.
func (c *capturing) recoverFrom(ctx context.Context, cause error) error {
	d := c.d
	m, err := d.dom.machine(opCapture)
	if err == nil {
		defer m.Free()
		suspect := d.tree.Suspect
		err = d.recovery.recover(ctx, opCapture, m)
		if err == nil && d.tree.Suspect != suspect && errs.KindOf(cause) != errs.Unavailable {
			err = d.update(func(t *layertree.Tree) { t.Suspect = suspect })
		}
	}
	if err != nil {
		d.thawer.thawSoon()
	}
	return err
}

func (c *capturing) switchDisks(ctx context.Context, in *layertree.Intent) error {
	d := c.d
	if err := d.cfg.Failpoint.At("capture: overlays"); err != nil {
		return err
	}
	size := d.images.sizeBelow(in.New)
	if c.up {
		size = c.m.Capacity // the header of an image in use may be out of date
	}
	if err := d.images.createOverlays(ctx, opCapture, in.New, size); err != nil {
		return err
	}
	if err := d.cfg.Failpoint.At("capture: switch"); err != nil {
		return err
	}
	if c.up {
		return c.switchLive(ctx, in)
	}
	if !c.raw {
		if err := c.still(); err != nil {
			return err
		}
	}
	if err := c.copyNVRAM(in); err != nil {
		return err
	}
	return d.dom.define(opCapture, c.m, in.New)
}

// still determines whether the guest's filesystems are consistent on the disks of a domain that is off.
func (c *capturing) still() error {
	quiesced, warning, err := guest.Still(c.m, c.d.tree.Ran)
	c.quiesced = quiesced
	if warning != "" {
		c.warnings = append(c.warnings, warning)
	}
	return err
}

func (c *capturing) copyNVRAM(in *layertree.Intent) (err error) {
	c.nvram, err = c.d.images.copyNVRAM(c.survey.NVRAM, in.Old)
	return err
}

// switchLive switches a running domain to the new overlays. It freezes the guest's filesystems before, if the guest agent
// answers in time.
func (c *capturing) switchLive(ctx context.Context, in *layertree.Intent) error {
	d := c.d
	text := virt.SnapshotXML(d.tree.Disks, c.survey.Others(d.tree.Disks), d.tree.Layers[in.New].Paths(), in.Memory)
	if in.Memory == "" && c.paused {
		c.warnings = append(c.warnings, "the guest is paused, so it cannot flush its memory to disk."+guest.AfterPowerCut)
	} else if in.Memory == "" { // libvirt pauses the guest itself while it writes its memory
		warning := ""
		c.quiesced, warning = guest.Quiesce(ctx, c.m, c.survey, d.cfg.QuiesceTimeout)
		if warning != "" {
			c.warnings = append(c.warnings, warning)
		}
	}
	err := d.cfg.Failpoint.At("capture: frozen")
	if err == nil {
		err = c.copyNVRAM(in)
	}
	if err == nil {
		err = c.m.Snapshot(text, in.Memory == "")
	}
	if err == nil {
		err = d.cfg.Failpoint.At("capture: thaw")
	}
	if in.Memory == "" && c.survey.Agent && !c.paused {
		if e := d.thawer.thaw(c.m); e != nil {
			c.warnings = append(c.warnings, "the guest's agent does not answer: its filesystems may be frozen until it does. mulligan keeps trying to thaw them.")
		}
	}
	return err
}

// finish updates the persistent definition and the tree after the domain was switched to in.New, and names the frozen layer. A
// capture that recovery ends has no id, so its layer gets no name.
func (c *capturing) finish(in *layertree.Intent) error {
	d := c.d
	m := c.m
	if err := d.dom.definePersistent(opCapture, m, in.New); err != nil {
		return err
	}
	if err := d.cfg.Failpoint.At("capture: freeze"); err != nil {
		return err
	}
	stats, err := d.images.freezeFiles(in.Old, in.Raw)
	if err != nil {
		return err
	}
	var memory *layertree.File
	if in.Memory != "" && c.id != "" {
		if memory, err = freezeMemory(in.Memory); err != nil {
			return err
		}
	}
	if err := d.cfg.Failpoint.At("capture: record"); err != nil {
		return err
	}
	return d.update(func(t *layertree.Tree) {
		old := t.Layers[in.Old]
		old.Frozen = true
		for dev, st := range stats {
			old.Files[dev].Stat = st
		}
		if in.Raw {
			old.KeepRaw(stats)
		}
		if c.nvram != nil {
			old.NVRAM = c.nvram
		}
		old.Torn = !c.quiesced && !in.Raw && in.Memory == "" // a guest with its memory continues where it was
		if t.Ran = in.Running; in.Running {
			t.Open = append(t.Open, d.ownOf(slices.Collect(maps.Values(old.Paths())))...)
		}
		t.Head, t.Intent, t.Resume, t.Suspect = in.New, nil, nil, false
		if c.id != "" {
			t.News = nil
			t.Snapshots[c.id] = &layertree.Snapshot{Layer: in.Old, Created: time.Now().UTC(), Quiesced: c.quiesced, Memory: memory}
		}
	})
}

// name records a snapshot of a layer that was frozen before.
func (c *capturing) name(id layertree.ID) error {
	if c.d.tree.Layers[id].Torn {
		c.warnings = append(c.warnings, "the disks are as in an earlier checkpoint that was made without the guest's filesystems being still."+guest.AfterPowerCut)
	}
	return c.d.update(func(t *layertree.Tree) {
		t.News = nil
		s := &layertree.Snapshot{Layer: id, Created: time.Now().UTC(), Quiesced: !t.Layers[id].Torn}
		if r := t.Resume; r != nil && r.Layer == t.Head { // the next start resumes the guest, so its memory belongs to the state
			memory := r.Memory
			s.Memory = &memory
		}
		t.Snapshots[c.id] = s
	})
}

func freezeMemory(path string) (*layertree.File, error) {
	if err := errors.Join(durable.Sync(path), durable.Sync(filepath.Dir(path)), imagefile.SetImmutable(path, true)); err != nil {
		return nil, err
	}
	st, err := imagefile.StatOf(path)
	return &layertree.File{Path: path, Stat: st}, err
}
