package rbd

import (
	"context"

	"mulligan/errs"
	"mulligan/snap/disk/guest"
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

// Start starts the domain, unless its images belong to another host's app by now. It does nothing if the domain is up.
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
		p, err = d.dom.AwaitJobs(ctx, m, p, d.rec.devices()[0])
	}
	if err == nil && !p.Up() {
		err = d.ownsHead(ctx, op, false)
	}
	if err == nil {
		err = guest.Boot(m, p, d.rec.Paused)
	}
	return errs.Wrap(errs.Failed, op, err)
}

// Stop switches the domain off as configured. When ctx or the time for a clean shutdown ends, Stop switches it off at once. It
// does nothing if the domain is off. The next start of a domain that was paused pauses it again.
func (u *Unit) Stop(ctx context.Context) error {
	const op = "stop the domain"
	d := u.d
	if err := d.begin(ctx, op); err != nil {
		return err
	}
	defer d.mu.Unlock()
	uuid := ""
	if d.rec != nil {
		uuid = d.rec.UUID
	}
	m, err := d.dom.Machine(op, uuid)
	if err != nil {
		return err
	}
	defer m.Free()
	if d.rec != nil {
		if err := d.release.letGo(m); err != nil { // else it could not shut down
			d.cfg.Log.Warn("the guest may stand still", "domain", d.cfg.Domain, "err", err)
		}
	}
	p, err := m.Power()
	if err != nil || !p.Up() {
		return errs.Wrap(errs.Failed, op, err)
	}
	if d.rec != nil && d.rec.Paused != (p == virt.Paused) {
		if err := d.update(func(r *record) { r.Paused = p == virt.Paused }); err != nil {
			return errs.Wrap(errs.Failed, op, err)
		}
	}
	return errs.Wrap(errs.Failed, op, guest.SwitchOff(ctx, m, p, d.cfg.Shutdown, d.cfg.ShutdownTimeout, d.cfg.Log.With("domain", d.cfg.Domain)))
}

// Info describes a domain for people.
type Info struct {
	Name, UUID string
	State      guest.Status
	Disks      map[string]string // the image that the domain writes to, by target device
	Images     int               // that the driver knows, with the domain's own
	Depth      int               // images that a read may go through
	Warnings   []string
}

// Domain describes the domain. It returns an error if the domain cannot be captured.
func (d *Driver) Domain(ctx context.Context) (Info, error) {
	const op = "look at the domain"
	ctx, cancel := context.WithTimeout(ctx, lookLimit)
	defer cancel()
	if err := d.begin(ctx, op); err != nil {
		return Info{}, err
	}
	defer d.mu.Unlock()
	m, err := d.open(ctx, op)
	if err != nil {
		return Info{}, err
	}
	defer m.Free()
	p, err := m.Power()
	if err != nil {
		return Info{}, errs.Wrap(errs.Failed, op, err)
	}
	s, _, err := d.dom.Survey(op, m, p.Up())
	if err == nil {
		err = d.ownsHead(ctx, op, false)
	}
	if err != nil {
		return Info{}, errs.Wrap(errs.Failed, op, err)
	}
	info := Info{Name: d.cfg.Domain, UUID: d.rec.UUID, State: guest.StatusOf(p), Disks: clip(d.rec.Head), Images: len(d.rec.Images), Warnings: s.Warnings}
	for _, name := range d.rec.Head {
		info.Depth = max(info.Depth, d.rec.depth(name))
	}
	return info, nil
}

// Check returns an error if the domain cannot be used at present.
func (d *Driver) Check(ctx context.Context) error {
	_, err := d.Domain(ctx)
	return err
}

// Places lists the paths on the host that belong to the domain: its NVRAM. Its disks are on none.
func (d *Driver) Places(context.Context) ([]string, error) { return d.RecordedPlaces() }

// RecordedPlaces returns the last result of Places, from the driver's records. Without records, the error is of kind errs.NotFound.
func (d *Driver) RecordedPlaces() ([]string, error) {
	const op = "read where the disks are"
	if err := d.begin(context.Background(), op); err != nil {
		return nil, err
	}
	defer d.mu.Unlock()
	switch {
	case d.rec == nil:
		return nil, errs.New(errs.NotFound, op, "there is no record of the disks of domain %s", d.cfg.Domain)
	case d.rec.NVRAM == "":
		return nil, nil
	}
	return []string{d.rec.NVRAM}, nil
}

// Claim returns the claim of the domain. It does not wait for other methods.
func (d *Driver) Claim() layertree.Claim {
	if c := d.claim.Load(); c != nil {
		return *c
	}
	return layertree.Claim{Domain: d.cfg.Domain}
}

// Recorded returns the claim of a driver that is not open, from its records in stateDir.
func Recorded(stateDir string) (layertree.Claim, error) {
	r, err := readRecord("read the records of disks", stateDir)
	if r == nil {
		return layertree.Claim{}, err
	}
	return claimOf(r.Domain, r), err
}

// claimOf returns the claim of all images in a record. Daemons of other hosts find the owner of an image in the cluster.
func claimOf(domain string, r *record) layertree.Claim {
	c := layertree.Claim{Domain: domain}
	if r != nil {
		for name, i := range r.Images {
			c.Own = append(c.Own, layertree.OnCeph+name+" "+i.ID)
		}
	}
	return c
}
