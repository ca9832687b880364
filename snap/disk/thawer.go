package disk

import (
	"sync"
	"time"

	"mulligan/errs"
	"mulligan/snap/disk/layertree"
	"mulligan/snap/disk/virt"
)

// thawer makes sure that the guest's filesystems do not stay frozen. The caller of each method except
// keepThawing and thawOnce holds the driver's lock.
type thawer struct {
	d       *Driver
	work    sync.WaitGroup // keepThawing
	thawing bool           // keepThawing runs
}

// thawInterval is the pause between attempts to thaw a guest whose agent does not answer.
const thawInterval = time.Second

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

// thawSoon starts keepThawing if the guest may be frozen.
func (th *thawer) thawSoon() {
	if th.d.tree.Unfinished() && !th.thawing {
		th.thawing = true
		th.work.Go(th.keepThawing)
	}
}

// keepThawing tries to thaw the guest until that succeeds, the domain is off, or the driver closes.
func (th *thawer) keepThawing() {
	d := th.d
	tick := time.NewTicker(thawInterval)
	defer tick.Stop()
	for {
		select {
		case <-d.life.Done():
			return
		case <-tick.C:
		}
		if err := th.thawOnce(); err != nil {
			d.cfg.Log.Debug("the guest does not thaw yet", "domain", d.cfg.Domain, "err", err)
			continue
		}
		return
	}
}

// thawOnce tries once to thaw the guest, and returns an error if the guest may still be frozen.
func (th *thawer) thawOnce() error {
	d := th.d
	const op = "thaw the guest"
	d.mu.Lock()
	defer d.mu.Unlock()
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
