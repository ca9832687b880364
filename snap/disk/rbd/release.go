package rbd

import (
	"context"
	"sync"
	"time"

	"mulligan/errs"
	"mulligan/snap/disk/guest"
	"mulligan/snap/disk/layertree"
	"mulligan/snap/disk/virt"
)

// releaser lets a guest go on that stands still. The caller of each method except once holds the driver's lock.
type releaser struct {
	d    *Driver
	work sync.WaitGroup // of soon
	runs bool           // soon runs
	own  bool           // this process has made the guest stand still: no other one has asked libvirt for anything
}

// letGo lets a guest go on that stands still: its processors, and then its filesystems. It records that once it is done and cannot be
// overtaken by an earlier request.
func (re *releaser) letGo(m virt.Machine) error {
	d := re.d
	h := d.rec.Hold
	if h == nil {
		return nil
	}
	p, err := m.Power()
	if err != nil {
		return err
	}
	if p.Still() && h.Paused {
		if err := m.Unpause(); err != nil {
			if now, e := m.Power(); e != nil || now.Still() {
				return errs.Also(err, e)
			}
		}
	}
	if p.Up() && h.Frozen {
		if err := m.Thaw(d.cfg.QuiesceTimeout); err != nil {
			if now, e := m.Power(); e != nil || now.Up() {
				return errs.Also(err, e)
			}
		}
	}
	if p.Up() && time.Now().Before(h.Late) {
		return nil // soon looks again
	}
	return d.update(func(r *record) { r.Hold = nil })
}

// soon tries to let the guest go on until that succeeds, the domain is off, or the driver closes. The caller holds the lock.
func (re *releaser) soon() {
	d := re.d
	if d.rec == nil || d.rec.Hold == nil || re.runs {
		return
	}
	re.runs = true
	re.work.Go(func() { guest.Release(d.life, re.once) })
}

// once tries once to let the guest go on, and returns an error if it may still stand still.
func (re *releaser) once() error {
	d := re.d
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.life.Err() == nil && d.rec != nil && d.rec.Hold != nil {
		m, err := d.dom.Machine("let the guest go on", d.rec.UUID)
		if err != nil {
			return err
		}
		defer m.Free()
		if err := d.recover(d.life, "let the guest go on", m); err != nil {
			return err
		}
		if d.rec.Hold != nil {
			return errs.New(errs.Unavailable, "", "the guest may stand still")
		}
	}
	re.runs = false
	return nil
}

// late is how long the request of a program that was killed may be under way to the QEMU that has the image open.
const late = 2 * time.Minute

// recover finishes or undoes what an earlier process, or an earlier failure, left unfinished. It needs libvirt, and no Ceph.
func (d *Driver) recover(ctx context.Context, op string, m virt.Machine) error {
	if d.rec.Hold != nil {
		p, err := m.Power()
		if err == nil && !d.release.own { // libvirt goes on with what a killed process has asked it for
			_, err = d.dom.AwaitJobs(ctx, m, p, d.rec.devices()[0])
		}
		if e := d.release.letGo(m); e != nil {
			d.cfg.Log.Warn("the guest may stand still", "domain", d.cfg.Domain, "err", errs.Also(e, err))
		}
		d.release.soon()
	}
	if in := d.rec.Intent; in != nil { // a capture that did not return never was
		err := d.update(func(r *record) {
			r.Intent = nil
			r.doom(in.Disks, time.Now().Add(late))
		})
		if err != nil {
			return err
		}
	}
	for _, p := range d.rec.Switches {
		if p.Phase != layertree.Committing && p.Phase != layertree.Undoing {
			continue
		}
		s, _, err := d.dom.Survey(op, m, false)
		if err != nil {
			return err
		}
		for _, images := range []map[string]string{p.Old, p.New} {
			if holds(s, images) && !holds(s, d.rec.Head) {
				if err := d.update(func(r *record) { r.Head = clip(images) }); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// holds reports whether a definition has these images.
func holds(s virt.Survey, images map[string]string) bool {
	for dev, name := range images {
		if s.Sources[dev] != name {
			return false
		}
	}
	return len(images) > 0
}
