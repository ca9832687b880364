package disk

import (
	"context"
	"slices"
	"time"

	"mulligan/errs"
	"mulligan/snap/disk/imagefile"
	"mulligan/snap/disk/layertree"
	"mulligan/snap/disk/virt"
)

// Unit is the domain as a service that can be started and stopped.
type Unit struct{ d *Driver }

// Unit gives the domain as the service of an app.
func (d *Driver) Unit() *Unit { return &Unit{d} }

// Status is what a domain is doing, in systemd's words.
type Status struct {
	Active string // active, inactive, failed
	Sub    string // running, paused, dead
}

// Running reports whether the domain is up.
func (s Status) Running() bool { return s.Active == "active" }

// Name is the domain's.
func (u *Unit) Name() string { return u.d.cfg.Domain }

// State looks at the domain now. It has a connection of its own, so that it
// answers while a capture or a restore is at work.
func (u *Unit) State(ctx context.Context) (Status, error) {
	const op = "look at the domain"
	if err := ctx.Err(); err != nil {
		return Status{}, errs.Wrap(errs.Unavailable, op, err)
	}
	u.d.look.Lock()
	defer u.d.look.Unlock()
	p, err := u.glance()
	if err != nil {
		return Status{}, errs.Wrap(errs.Failed, op, err)
	}
	switch p {
	case virt.Running:
		return Status{"active", "running"}, nil
	case virt.Paused:
		return Status{"active", "paused"}, nil
	case virt.Crashed:
		return Status{"failed", "dead"}, nil
	}
	return Status{"inactive", "dead"}, nil
}

// glance asks for the domain's power. A connection that libvirtd's end closed
// is made again once.
func (u *Unit) glance() (virt.Power, error) {
	d := u.d
	p, err := u.glanceOnce()
	if errs.KindOf(err) == errs.Unavailable && d.look.conn != nil {
		_ = d.look.conn.Close()
		d.look.conn = nil
		p, err = u.glanceOnce()
	}
	return p, err
}

func (u *Unit) glanceOnce() (virt.Power, error) {
	d := u.d
	if d.look.conn == nil {
		conn, err := d.dom.dial(d.cfg.URI)
		if err != nil {
			return virt.Off, err
		}
		d.look.conn = conn
	}
	m, err := d.look.conn.Lookup(d.cfg.Domain, "")
	if err != nil {
		return virt.Off, err
	}
	defer m.Free()
	return m.Power()
}

// Start starts the domain, or goes on from a memory image where it was just
// restored to a snapshot that has one. One that is up already is fine.
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
	if err == nil { // libvirt may still be stopping or starting it for a daemon that died
		p, err = d.dom.awaitJobs(ctx, m, p)
	}
	if err == nil {
		err = u.start(ctx, op, m, p)
	}
	return errs.Wrap(errs.Failed, op, err)
}

func (u *Unit) start(ctx context.Context, op string, m virt.Machine, p virt.Power) error {
	d := u.d
	switch {
	case p == virt.Paused && d.tree.Paused: // as it was before it was stopped
		return nil
	case p == virt.Paused:
		return orRuns(m, m.Unpause(), virt.Running)
	case p == virt.Running:
		return nil
	case d.tree.Resume != nil:
		return u.resumeMemory(ctx, op, m)
	}
	if err := d.dom.definePersistent(op, m, d.tree.Head); err != nil {
		return err
	}
	return orRuns(m, m.Start(d.tree.Paused), virt.Running, virt.Paused)
}

// orRuns forgives the failure to bring a domain into a state that somebody else was faster
// to bring it into.
func orRuns(m virt.Machine, err error, wanted ...virt.Power) error {
	if err != nil {
		if p, e := m.Power(); e == nil && slices.Contains(wanted, p) {
			return nil
		}
	}
	return err
}

// resumeMemory goes on from the memory image that belongs to the disks. Where
// they are no longer what the image was made with, the domain boots instead.
func (u *Unit) resumeMemory(ctx context.Context, op string, m virt.Machine) error {
	d := u.d
	r := d.tree.Resume
	empty, err := d.images.headEmpty(d.tree.Head)
	if err != nil {
		return err
	}
	fits := r.Layer == d.tree.Head && empty
	if fits {
		if _, err := d.integrity.checkFile(ctx, op, r.Memory, false); err != nil {
			return err
		}
		text, err := d.dom.conn.SavedXML(r.Memory.Path)
		if err == nil {
			text, err = virt.Redirect(text, d.tree.Layers[d.tree.Head].Paths())
		}
		if err != nil {
			return err
		}
		if err := d.cfg.Failpoint.At("resume: restore"); err != nil {
			return err
		}
		if err := d.dom.conn.Restore(r.Memory.Path, text, d.tree.Paused); err != nil {
			return err
		}
		if err := d.cfg.Failpoint.At("resume: record"); err != nil {
			return err
		}
	}
	// Whoever starts the domain next boots it: its memory moves on from here.
	if err := d.update(func(t *layertree.Tree) { t.Resume = nil }); err != nil || fits {
		return err
	}
	d.cfg.Log.Warn("the disks were written to since they were restored: the domain boots", "domain", d.cfg.Domain)
	return m.Start(d.tree.Paused)
}

// Stop switches the domain off, in the way of the configuration. When ctx or
// the time for a clean shutdown ends, it is switched off hard. One that is off
// already is fine. One that was paused is started paused again.
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
	if d.cfg.Shutdown == Clean && p == virt.Running {
		if down := u.shutDown(ctx, m); down {
			return nil
		}
	}
	if err := m.Destroy(); err != nil {
		if p, e := m.Power(); e != nil || p.Up() {
			return errs.Wrap(errs.Failed, op, err)
		}
	}
	return nil
}

// shutdownTick is how often a domain is looked at that was asked to go down.
const shutdownTick = 100 * time.Millisecond

// shutDown asks the guest to go down and waits, leaving some of ctx's time to
// do it otherwise.
func (u *Unit) shutDown(ctx context.Context, m virt.Machine) (down bool) {
	d := u.d
	limit := d.cfg.ShutdownTimeout
	if end, ok := ctx.Deadline(); ok {
		limit = min(limit, time.Until(end)*3/4)
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if err := m.Shutdown(); err != nil {
		d.cfg.Log.Warn("the guest cannot be asked to shut down", "domain", d.cfg.Domain, "err", err)
		return false
	}
	tick := time.NewTicker(shutdownTick)
	defer tick.Stop()
	for {
		if p, err := m.Power(); err == nil && !p.Up() {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-tick.C:
		}
	}
}

// Info is what people want to know of a domain.
type Info struct {
	Name, UUID string
	State      Status
	Disks      []DiskInfo
	Layers     int   // images per disk that the driver keeps
	Depth      int   // of them, how many lie upon each other below the present disks
	LiveDepth  int   // how many the running domain has open
	Stored     int64 // bytes on disk, of all layers
	Agent      bool  // the guest agent answers
	Frozen     bool  // the guest may be frozen; the driver keeps trying to thaw it
	Unhashed   int   // files that Maintain has yet to hash
	Warnings   []string
}

// DiskInfo is one disk of it.
type DiskInfo struct {
	Target string
	Path   string // what the domain writes to
	Size   int64  // as the guest sees it, in bytes
}

// Domain looks at the domain. A domain that cannot be captured is an error that
// says why, but for images that cannot be read: FindGaps reports those.
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
	s, _, err := d.dom.surveyOf(op, m, p.Up())
	if err != nil {
		return Info{}, err
	}
	info := Info{
		Name: d.cfg.Domain, UUID: d.tree.UUID, State: Status{"inactive", "dead"}, Layers: len(d.tree.Layers),
		Depth: d.tree.Depth(d.tree.Head), Agent: s.Awake, Frozen: d.tree.Thaw, Warnings: s.Warnings,
	}
	if p.Up() {
		info.State, info.LiveDepth = Status{"active", "running"}, s.Deep+1
	}
	for _, dev := range d.tree.Disks {
		n, err := m.Capacity(dev)
		if errs.KindOf(err) == errs.Failed { // its image cannot be read
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
