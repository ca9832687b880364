package disk

import (
	"sync"

	"mulligan/errs"
	"mulligan/snap/disk/guest"
	"mulligan/snap/disk/layertree"
	"mulligan/snap/disk/virt"
)

// thawer makes sure that the guest's filesystems do not stay frozen. The caller of each method except
// thawOnce holds the driver's lock.
type thawer struct {
	d       *Driver
	work    sync.WaitGroup // of thawSoon
	thawing bool           // the work of thawSoon goes on
}

// thaw thaws the guest. If the guest does not answer in time, thaw records that, and the driver keeps trying in the background
// until it answers or the domain is off.
func (th *thawer) thaw(m virt.Machine) error {
	d := th.d
	err := m.Thaw(d.cfg.QuiesceTimeout)
	if err == nil {
		if d.tree.Thaw {
			return d.update(func(t *layertree.Tree) { t.Thaw = false })
		}
		return nil
	}
	if p, e := m.Power(); e == nil && !p.Up() {
		return nil
	}
	if e := d.update(func(t *layertree.Tree) { t.Thaw = true }); e != nil {
		return errs.Also(err, e)
	}
	th.thawSoon()
	return err
}

// thawSoon begins to thaw the guest if it may be frozen, until that succeeds, the domain is off, or the driver closes.
func (th *thawer) thawSoon() {
	if th.d.tree.Unfinished() && !th.thawing {
		th.thawing = true
		th.work.Go(func() { guest.Release(th.d.life, th.thawOnce) })
	}
}

// thawOnce tries once to thaw the guest, and returns an error if the guest may still be frozen.
func (th *thawer) thawOnce() (err error) {
	d := th.d
	const op = "thaw the guest"
	d.mu.Lock()
	defer d.mu.Unlock()
	defer func() {
		if err != nil {
			d.cfg.Log.Debug("the guest does not thaw yet", "domain", d.cfg.Domain, "err", err)
		}
	}()
	if d.life.Err() == nil && d.tree.Unfinished() {
		m, err := d.dom.machine(op)
		if err != nil {
			return err
		}
		defer m.Free()
		if d.tree.Intent != nil {
			if err := d.recovery.recover(d.life, op, m); err != nil {
				return err
			}
		}
		if err := th.thawIfUp(op, m); err != nil {
			return err
		}
	}
	th.thawing = false
	return nil
}

// thawIfUp thaws a guest that runs and may be frozen. A guest that is off needs no thaw.
func (th *thawer) thawIfUp(op string, m virt.Machine) error {
	d := th.d
	if !d.tree.Thaw {
		return nil
	}
	p, err := m.Power()
	if err != nil {
		return err
	}
	if p.Up() {
		if err := m.Thaw(d.cfg.QuiesceTimeout); err != nil {
			return errs.Wrap(errs.Unavailable, op, err)
		}
	}
	return d.update(func(t *layertree.Tree) { t.Thaw = false })
}

// thawIfAgent thaws the guest if the domain has a channel for an agent.
func (th *thawer) thawIfAgent(op string, m virt.Machine) error {
	s, _, err := th.d.dom.Survey(op, m, true)
	if err != nil || !s.Agent {
		return err
	}
	return th.thaw(m)
}
