package disk

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"time"

	"mulligan/durable"
	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/disk/imagefile"
	"mulligan/snap/disk/layertree"
	"mulligan/snap/disk/virt"
)

const (
	opCapture = "capture disks"
	// maxLive is how many images a running domain may have open upon each other
	// before its QEMU is made to open the merged ones; libvirt refuses beyond 200.
	maxLive = 96
)

// Capture freezes the images that the domain writes to, under req.ID, and puts
// fresh overlays on them.
func (d *Driver) Capture(ctx context.Context, req snap.CaptureRequest) (snap.Snapshot, error) {
	return d.capture(ctx, req, false)
}

// CaptureMemory is Capture that keeps the running guest's memory too, so that a
// restore goes on from there instead of booting. Of a domain that is off it is Capture.
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
		// What has happened to the domain is found out when it is opened next.
		return snap.Snapshot{}, errs.Wrap(errs.Failed, opCapture, err)
	}
	s := d.tree.Snapshots[req.ID]
	return snap.Snapshot{
		ID: req.ID, Driver: driverName, Position: string(s.Layer), Quiesced: s.Quiesced, Created: s.Created, Warnings: c.warnings,
	}, nil
}

// capturing is one capture under way.
type capturing struct {
	d        *Driver
	m        virt.Machine
	id       snap.SnapshotID
	memory   bool
	raw      bool        // the images cannot be read
	survey   virt.Survey // of the definition that counts
	up       bool
	paused   bool
	nvram    *layertree.File
	quiesced bool
	warnings []string
}

func (c *capturing) run(ctx context.Context) (err error) {
	d := c.d
	p, err := c.m.Power()
	if err != nil {
		return err
	}
	c.up, c.paused = p.Up(), p == virt.Paused
	if c.survey, _, err = d.dom.surveyOf(opCapture, c.m, c.up); err != nil {
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
		// libvirtd died in the middle of a switch, and QEMU still has the images
		// open that it had been given: their names are taken.
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

// unchanged reports whether the layer below the head is the state already: the
// domain is off, and nothing was written since.
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

// shallow sees to it that the new overlays do not lie on too many others.
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

// freeze makes the overlays, switches the domain to them and freezes the old
// images. Each step is found again by recover.
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
		// Nobody knows how far libvirt got: ask it, and give the answer after.
		return errs.Also(err, c.recoverFrom(context.WithoutCancel(ctx), err))
	}
	if err := d.cfg.Failpoint.At("capture: switched"); err != nil {
		return err
	}
	return c.finish(in)
}

// recoverFrom recovers after a capture that failed in the middle. A libvirt that is
// well has cleaned up after itself.
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
		size = c.m.Capacity // the header of an image in use may be stale
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
	if err := c.copyNVRAM(ctx, in); err != nil {
		return err
	}
	return d.dom.define(opCapture, c.m, in.New)
}

// still works out whether the guest's filesystems are whole on the disks of a domain that
// is off: whether its guest went down by itself.
func (c *capturing) still() error {
	ended, err := c.m.Ended()
	if err != nil {
		return err
	}
	c.quiesced = ended == virt.ShutDown || ended == virt.EndUnknown && !c.d.tree.Ran
	switch {
	case c.quiesced:
	case ended == virt.EndUnknown:
		c.warnings = append(c.warnings, "libvirtd was restarted since the guest went down, so the cause is unknown."+afterPowerCut)
	default:
		c.warnings = append(c.warnings, "the guest did not shut down: it was switched off, or its QEMU died."+afterPowerCut)
	}
	return nil
}

func (c *capturing) copyNVRAM(ctx context.Context, in *layertree.Intent) (err error) {
	c.nvram, err = c.d.images.copyNVRAM(ctx, c.survey.NVRAM, in.Old)
	return err
}

// switchLive switches a running domain, with the guest's filesystems frozen if
// that can be had in time.
func (c *capturing) switchLive(ctx context.Context, in *layertree.Intent) error {
	d := c.d
	text := virt.SnapshotXML(d.tree.Disks, c.survey.Others(d.tree.Disks), d.tree.Layers[in.New].Paths(), in.Memory)
	if in.Memory == "" && c.paused {
		c.warnings = append(c.warnings, "the guest is paused, so it cannot flush its memory to disk."+afterPowerCut)
	} else if in.Memory == "" { // libvirt pauses the guest itself while it writes its memory
		warning := ""
		c.quiesced, warning = d.thawer.quiesce(ctx, c.m, c.survey)
		if warning != "" {
			c.warnings = append(c.warnings, warning)
		}
	}
	err := d.cfg.Failpoint.At("capture: frozen")
	if err == nil {
		err = c.copyNVRAM(ctx, in)
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

// finish makes everything else agree with the head being in.New, and names the
// frozen layer; of a capture without an id, which is one that recovery ends, it names nothing.
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
		old.Torn = !c.quiesced && !in.Raw && in.Memory == "" // with its memory a guest goes on where it was
		t.Ran = in.Running
		t.Head, t.Intent, t.Resume, t.Suspect = in.New, nil, nil, false
		if c.id != "" {
			t.News = nil
			t.Snapshots[c.id] = &layertree.Snapshot{Layer: in.Old, Created: time.Now().UTC(), Quiesced: c.quiesced, Memory: memory}
		}
	})
}

// name records a snapshot of a layer that is frozen already.
func (c *capturing) name(id layertree.ID) error {
	if c.d.tree.Layers[id].Torn {
		c.warnings = append(c.warnings, "the disks are as in an earlier checkpoint that was made without the guest's filesystems being still."+afterPowerCut)
	}
	return c.d.update(func(t *layertree.Tree) {
		t.News = nil
		t.Snapshots[c.id] = &layertree.Snapshot{Layer: id, Created: time.Now().UTC(), Quiesced: !t.Layers[id].Torn}
	})
}

func freezeMemory(path string) (*layertree.File, error) {
	if err := errors.Join(durable.Sync(path), durable.Sync(filepath.Dir(path)), imagefile.SetImmutable(path, true)); err != nil {
		return nil, err
	}
	st, err := imagefile.StatOf(path)
	return &layertree.File{Path: path, Stat: st}, err
}
