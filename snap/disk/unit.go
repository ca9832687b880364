package disk

import (
	"context"

	"mulligan/errs"
	"mulligan/snap/disk/guest"
	"mulligan/snap/disk/imagefile"
	"mulligan/snap/disk/layertree"
	"mulligan/snap/disk/virt"
)

// Unit is the domain as a service that can be started and stopped.
type Unit struct{ d *Driver }

// Unit returns the domain as the service of an app.
func (d *Driver) Unit() *Unit { return &Unit{d} }

// Name returns the name of the domain.
func (u *Unit) Name() string { return u.d.cfg.Domain }

// State returns the present state of the domain, also during a capture or a restore.
func (u *Unit) State(ctx context.Context) (guest.Status, error) { return u.d.dom.State(ctx) }

// Start starts the domain. If the domain was just restored to a snapshot with memory, Start resumes it from the memory image.
// It does nothing if the domain is up.
func (u *Unit) Start(ctx context.Context) error {
	const op = "start the domain"
	d := u.d
	if err := d.begin(ctx, op); err != nil {
		return err
	}
	defer d.mu.Unlock()
	m, err := d.open(ctx, op)
	if err != nil {
		return err
	}
	defer m.Free()
	p, err := m.Power()
	if err == nil { // libvirt may still be stopping or starting it for an earlier daemon
		p, err = d.dom.AwaitJobs(ctx, m, p, d.tree.Disks[0])
	}
	if err == nil {
		err = u.start(ctx, op, m, p)
	}
	return errs.Wrap(errs.Failed, op, err)
}

func (u *Unit) start(ctx context.Context, op string, m virt.Machine, p virt.Power) error {
	d := u.d
	switch {
	case p.Up():
		return guest.Boot(m, p, d.tree.Paused)
	case d.tree.Resume != nil:
		return u.resumeMemory(ctx, op, m)
	}
	if err := d.dom.definePersistent(op, m, d.tree.Head); err != nil {
		return err
	}
	return guest.Boot(m, p, d.tree.Paused)
}

// resumeMemory resumes the domain from the memory image that belongs to its disks. If the disks are no longer in the state of
// the image, it boots the domain instead.
func (u *Unit) resumeMemory(ctx context.Context, op string, m virt.Machine) error {
	d := u.d
	r := d.tree.Resume
	empty, err := d.images.headEmpty(d.tree.Head)
	if err != nil {
		return err
	}
	fits := r.Layer == d.tree.Head && empty
	if fits {
		if _, err := r.Memory.Check(ctx, op, false); err != nil {
			return err
		}
		text, err := d.dom.Conn.SavedXML(r.Memory.Path)
		if err == nil {
			text, err = virt.Redirect(text, d.tree.Layers[d.tree.Head].Paths())
		}
		if err != nil {
			return err
		}
		if err := d.cfg.Failpoint.At("resume: restore"); err != nil {
			return err
		}
		if err := d.dom.Conn.Restore(r.Memory.Path, text, d.tree.Paused); err != nil {
			return err
		}
		if err := d.cfg.Failpoint.At("resume: record"); err != nil {
			return err
		}
	}
	// The next start boots the domain, because its memory changes from now on.
	if err := d.update(func(t *layertree.Tree) { t.Resume = nil }); err != nil || fits {
		return err
	}
	d.cfg.Log.Warn("the disks were written to since they were restored: the domain boots", "domain", d.cfg.Domain)
	return m.Start(d.tree.Paused)
}

// Stop switches the domain off as configured. When ctx or the time for a clean shutdown ends, Stop switches it off at once. It
// does nothing if the domain is off. The next start of a domain that somebody had paused pauses it again.
func (u *Unit) Stop(ctx context.Context) error {
	const op = "stop the domain"
	d := u.d
	if err := d.begin(ctx, op); err != nil {
		return err
	}
	defer d.mu.Unlock()
	m, err := d.dom.machine(op)
	if err != nil {
		return err
	}
	defer m.Free()
	p, err := m.Power()
	if err != nil || !p.Up() {
		return errs.Wrap(errs.Failed, op, err)
	}
	if d.tree != nil && d.tree.Paused != (p == virt.Paused) {
		if err := d.update(func(t *layertree.Tree) { t.Paused = p == virt.Paused }); err != nil {
			return errs.Wrap(errs.Failed, op, err)
		}
	}
	return errs.Wrap(errs.Failed, op, guest.SwitchOff(ctx, m, p, d.cfg.Shutdown, d.cfg.ShutdownTimeout, d.cfg.Log.With("domain", d.cfg.Domain)))
}

// Info describes a domain for people.
type Info struct {
	Name, UUID string
	State      guest.Status
	Disks      []DiskInfo
	Layers     int   // images per disk that the driver keeps
	Depth      int   // length of the backing chain of the present disks
	LiveDepth  int   // length of the backing chain that the running domain has open
	Stored     int64 // bytes on disk, of all layers
	Agent      bool  // the guest agent answers
	Frozen     bool  // the guest may be frozen, and the driver keeps trying to thaw it
	Unhashed   int   // files that Maintain has not hashed yet
	Warnings   []string
}

// DiskInfo describes one disk.
type DiskInfo struct {
	Target string
	Path   string // path of the image that the domain writes to
	Size   int64  // size for the guest, in bytes
}

// Check returns the error of Domain.
func (d *Driver) Check(ctx context.Context) error {
	_, err := d.Domain(ctx)
	return err
}

// Domain describes the domain. It returns an error if the domain cannot be captured, except for images that cannot be read,
// which FindGaps reports.
func (d *Driver) Domain(ctx context.Context) (Info, error) {
	const op = "look at the domain"
	if err := d.begin(ctx, op); err != nil {
		return Info{}, err
	}
	defer d.mu.Unlock()
	m, err := d.openAnyhow(ctx, op)
	if err != nil {
		return Info{}, err
	}
	defer m.Free()
	p, err := m.Power()
	if err != nil {
		return Info{}, errs.Wrap(errs.Failed, op, err)
	}
	s, _, err := d.dom.Survey(op, m, p.Up())
	if err != nil {
		return Info{}, err
	}
	info := Info{
		Name: d.cfg.Domain, UUID: d.tree.UUID, State: guest.StatusOf(p), Layers: len(d.tree.Layers),
		Depth: d.tree.Depth(d.tree.Head), Agent: s.Awake, Frozen: d.tree.Thaw, Warnings: s.Warnings,
	}
	if p.Up() {
		info.LiveDepth = s.Deep + 1
	}
	for _, dev := range d.tree.Disks {
		n, err := m.Capacity(dev)
		if errs.KindOf(err) == errs.Failed { // the image cannot be read
			info.Warnings, err = append(info.Warnings, err.Error()+"."), nil
		}
		if err != nil {
			return Info{}, errs.Wrap(errs.Failed, op, err)
		}
		info.Disks = append(info.Disks, DiskInfo{dev, d.tree.Layers[d.tree.Head].Files[dev].Path, n})
	}
	for _, l := range d.tree.Layers {
		for _, f := range l.All() {
			info.Stored += imagefile.Blocks(f.Path)
			if l.Frozen && f.Hash == "" {
				info.Unhashed++
			}
		}
	}
	return info, nil
}
