package rbd

import (
	"context"
	"slices"
	"time"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/disk/guest"
	"mulligan/snap/disk/layertree"
	"mulligan/snap/disk/virt"
)

const opCapture = "capture disks on Ceph"

// Capture makes a snapshot of each disk, at the same instant.
func (d *Driver) Capture(ctx context.Context, req snap.CaptureRequest) (snap.Snapshot, error) {
	if err := d.begin(ctx, opCapture); err != nil {
		return snap.Snapshot{}, err
	}
	defer d.mu.Unlock()
	if req.ID == "" || req.At != "" {
		return snap.Snapshot{}, errs.New(errs.Invalid, opCapture, "%q at %q is not a snapshot that disks can have", req.ID, req.At)
	}
	m, err := d.open(ctx, opCapture)
	if err != nil {
		return snap.Snapshot{}, err
	}
	defer m.Free()
	c := &capturing{d: d, m: m, id: req.ID}
	if err := c.run(ctx); err != nil {
		if d.rec.Intent != nil {
			err = errs.Also(err, d.recover(context.WithoutCancel(ctx), opCapture, m))
		}
		return snap.Snapshot{}, errs.Wrap(errs.Failed, opCapture, err)
	}
	s := d.rec.Snapshots[req.ID]
	return snap.Snapshot{
		ID: req.ID, Driver: driverName, Position: d.rec.shown(*s), Quiesced: s.Quiesced, Created: s.Created, Warnings: c.warnings,
	}, nil
}

// CaptureMemory returns an error: a guest's memory is not kept beside disks on Ceph.
func (d *Driver) CaptureMemory(context.Context, snap.CaptureRequest) (snap.Snapshot, error) {
	return snap.Snapshot{}, errs.New(errs.Unsupported, opCapture, "the disks of domain %s are on Ceph, and mulligan does not keep the memory of such a guest", d.cfg.Domain).
		WithHint("make the checkpoint without it")
}

// capturing is the state of one capture.
type capturing struct {
	d        *Driver
	m        virt.Machine
	id       snap.SnapshotID
	survey   virt.Survey // of the live definition while the domain runs, else of the persistent one
	power    virt.Power
	name     string
	nvram    *layertree.File
	quiesced bool
	warnings []string
}

func (c *capturing) run(ctx context.Context) (err error) {
	d := c.d
	if c.power, err = c.m.Power(); err != nil {
		return err
	}
	if c.survey, _, err = d.dom.Survey(opCapture, c.m, c.power.Up()); err != nil {
		return err
	}
	c.warnings = slices.Concat(c.survey.Warnings, d.rec.News, d.halfway)
	if err := d.ownsHead(ctx, opCapture, true); err != nil {
		return err
	}
	if !c.power.Up() {
		if err := c.off(ctx); err != nil {
			return err
		}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := c.plan(); err != nil {
		return err
	}
	if err := d.cfg.Failpoint.At("capture: hold"); err != nil {
		return err
	}
	points, err := c.snapshots(ctx)
	if err != nil {
		return err
	}
	if err := d.cfg.Failpoint.At("capture: record"); err != nil {
		return err
	}
	return d.update(func(r *record) {
		r.Snapshots[c.id] = &snapshot{Disks: points, NVRAM: c.nvram, Created: time.Now().UTC(), Quiesced: c.quiesced}
		r.Intent, r.News = nil, nil
	})
}

// off finds whether the disks of a domain that is off are consistent. A QEMU that was killed may seem to have them open for half a minute;
// whoever still has them after that is on another host.
func (c *capturing) off(ctx context.Context) error {
	d := c.d
	if err := d.unused(ctx, opCapture); err != nil {
		return err
	}
	still, warning, err := guest.Still(c.m, d.rec.Ran)
	if err != nil {
		return err
	}
	if !still && !d.rec.Ran { // how the guest went down before the last restore says nothing of the present disks
		inherited := true
		for _, name := range d.rec.Head {
			i := d.rec.Images[name]
			inherited = inherited && i.Base != "" && i.Still
		}
		if inherited {
			clean, err := d.untouched(ctx, d.rec.Head, d.bases(d.rec.Head))
			if err != nil {
				return err
			}
			still = clean
		}
	}
	if c.quiesced = still; !still {
		c.warnings = append(c.warnings, warning)
	}
	return nil
}

// plan records what is about to be done: the names of the snapshots, and how the guest will be held still.
func (c *capturing) plan() error {
	d := c.d
	next, err := d.rec.clone()
	if err != nil {
		return err
	}
	c.name = d.name(next)
	next.Intent = &intent{Disks: map[string]point{}}
	for dev, name := range next.Head {
		next.Intent.Disks[dev] = point{Image: name, Snap: c.name}
	}
	if c.power == virt.Running {
		// The filesystems of several disks are frozen one after the other, and programs can write to a disk without a filesystem.
		d.release.own = true
		next.Hold = &hold{Paused: len(next.Head) > 1, Frozen: c.survey.Agent && c.survey.Awake}
	}
	if c.power.Up() {
		next.Ran = true
	}
	return d.update(func(r *record) { *r = *next })
}

// snapshots makes the snapshots while the guest stands still, and lets the guest go on in any case.
func (c *capturing) snapshots(ctx context.Context) (map[string]point, error) {
	d := c.d
	err := c.hold(ctx)
	limit := callLimit
	if c.power.Up() {
		limit = d.cfg.SnapshotTimeout
	}
	if err == nil {
		err = each(d.rec.Intent.Disks, func(dev string, p point) error {
			if err := d.cfg.Failpoint.At("capture: snapshot " + dev); err != nil {
				return err
			}
			return d.cluster.snap(ctx, limit, p.Image, p.Snap)
		})
	}
	if err == nil {
		c.nvram, err = d.copyNVRAM(c.survey.NVRAM, c.name)
	}
	if err == nil {
		err = d.cfg.Failpoint.At("capture: let go")
	}
	e := d.release.letGo(c.m)
	d.release.soon()
	if e != nil {
		c.warnings = append(c.warnings, "the guest may stand still: its agent or libvirt does not answer. mulligan keeps trying to let it go on.")
	}
	if err != nil {
		return nil, err
	}
	return d.made(ctx, d.rec.Intent.Disks)
}

// hold makes a running guest stand still.
func (c *capturing) hold(ctx context.Context) error {
	d := c.d
	switch c.power {
	case virt.Paused, virt.Stalled:
		c.warnings = append(c.warnings, "the guest is paused, so it cannot flush its memory to disk."+guest.AfterPowerCut)
		return nil
	case virt.Running:
	default:
		return nil
	}
	quiesced, warning := guest.Quiesce(ctx, c.m, c.survey, d.cfg.QuiesceTimeout)
	if c.quiesced = quiesced; warning != "" {
		c.warnings = append(c.warnings, warning)
	}
	if err := d.cfg.Failpoint.At("capture: frozen"); err != nil {
		return err
	}
	if d.rec.Hold == nil || !d.rec.Hold.Paused {
		return nil
	}
	if err := c.m.Pause(); err != nil { // it may still happen
		return errs.Also(err, d.update(func(r *record) { r.Hold.Late = time.Now().Add(late) }))
	}
	return d.cfg.Failpoint.At("capture: paused")
}

// made looks at snapshots that were just made: Ceph has numbered them.
func (d *Driver) made(ctx context.Context, disks map[string]point) (map[string]point, error) {
	found := make(chan map[string]point, len(disks))
	err := each(disks, func(dev string, p point) error {
		list, err := d.cluster.snapshots(ctx, p.Image)
		if err != nil {
			return err
		}
		for _, s := range list {
			if s.Name == p.Snap {
				found <- map[string]point{dev: {Image: p.Image, Snap: p.Snap, ID: s.ID, Size: s.Size}}
				return nil
			}
		}
		return errs.New(errs.Failed, "", "Ceph has made a snapshot of %s and does not list it", p.Image)
	})
	if err != nil {
		return nil, err
	}
	points := map[string]point{}
	for range disks {
		for dev, p := range <-found {
			points[dev] = p
		}
	}
	return points, nil
}

const (
	// deadFor is how long Ceph believes that a client is there that was killed: 30 s (its watch), and a little for looking.
	deadFor   = 45 * time.Second
	usedEvery = 500 * time.Millisecond
)

// unused checks that nobody has the images of a domain open that is off: neither a QEMU that was killed and whose last writes Ceph has
// not refused yet, nor a host that mulligan does not know of.
func (d *Driver) unused(ctx context.Context, op string) error {
	end := time.Now().Add(deadFor)
	for {
		using := make(chan string, len(d.rec.Head))
		if err := each(d.rec.Head, func(dev, name string) error {
			list, err := d.cluster.watchers(ctx, name)
			if len(list) > 0 {
				using <- "disk " + dev + " (" + name + ") of domain " + d.cfg.Domain + " is in use by " + list[0]
			}
			return err
		}); err != nil {
			return err
		}
		who := ""
		if len(using) > 0 {
			who = <-using
		}
		if who == "" {
			return nil
		}
		if time.Now().After(end) {
			return errs.New(errs.Busy, op, "%s, though the domain is off", who).
				WithHint("stop what uses the image: another host's domain, or rbd map")
		}
		select {
		case <-ctx.Done():
			return errs.Wrap(errs.Unavailable, op, ctx.Err())
		case <-time.After(usedEvery):
		}
	}
}
