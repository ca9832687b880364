package guest

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"mulligan/errs"
	"mulligan/snap/disk/virt"
)

// Shutdown is how a domain is switched off.
type Shutdown string

// The ways of switching off a domain.
const (
	Clean   Shutdown = "clean"   // the guest is asked to shut down, and is switched off after a limit
	Destroy Shutdown = "destroy" // it is switched off
)

// Check returns an error for a way that does not exist.
func (s Shutdown) Check(op string) error {
	switch s {
	case Clean, Destroy:
		return nil
	}
	return errs.New(errs.Invalid, op, "unknown way of shutting down %q", s).WithHint("use clean or destroy")
}

// Status is the state of a domain, in systemd's terms.
type Status struct {
	Active string // active, inactive, failed
	Sub    string // running, paused, stalled, dead
}

// Running reports whether the domain is up.
func (s Status) Running() bool { return s.Active == "active" }

// StatusOf returns the state of a domain with the power state p.
func StatusOf(p virt.Power) Status {
	switch p {
	case virt.Running:
		return Status{"active", "running"}
	case virt.Paused:
		return Status{"active", "paused"}
	case virt.Stalled:
		return Status{"active", "stalled"}
	case virt.Crashed:
		return Status{"failed", "dead"}
	}
	return Status{"inactive", "dead"}
}

// State returns the present state of the domain. It has a connection of its own, so that it answers during a capture or a
// restore.
func (d *Domain) State(ctx context.Context) (Status, error) {
	const op = "look at the domain"
	if err := ctx.Err(); err != nil {
		return Status{}, errs.Wrap(errs.Unavailable, op, err)
	}
	d.look.Lock()
	defer d.look.Unlock()
	p, err := d.glance()
	if err != nil {
		return Status{}, errs.Wrap(errs.Failed, op, err)
	}
	return StatusOf(p), nil
}

// glance asks libvirt for the domain's power state. If libvirtd has closed the connection, glance connects again once.
func (d *Domain) glance() (virt.Power, error) {
	p, err := d.glanceOnce()
	if errs.KindOf(err) == errs.Unavailable && d.look.conn != nil {
		_ = d.look.conn.Close()
		d.look.conn = nil
		p, err = d.glanceOnce()
	}
	return p, err
}

func (d *Domain) glanceOnce() (virt.Power, error) {
	if d.look.conn == nil {
		conn, err := virt.Dial(d.URI)
		if err != nil {
			return virt.Off, err
		}
		d.look.conn = conn
	}
	m, err := d.look.conn.Lookup(d.Name, "")
	if err != nil {
		return virt.Off, err
	}
	defer m.Free()
	return m.Power()
}

// Boot starts a domain in the power state p, or lets one go on that stands still, unless paused is set: then the domain is to be paused.
func Boot(m virt.Machine, p virt.Power, paused bool) error {
	switch {
	case p.Still() && paused, p == virt.Running:
		return nil
	case p.Still():
		return orRuns(m, m.Unpause(), virt.Running)
	}
	return orRuns(m, m.Start(paused), virt.Running, virt.Paused)
}

// orRuns drops the error of a start if the domain runs, because another program has started it at the same time.
func orRuns(m virt.Machine, err error, wanted ...virt.Power) error {
	if err != nil {
		if p, e := m.Power(); e == nil && slices.Contains(wanted, p) {
			return nil
		}
	}
	return err
}

const (
	// shutdownTick is the pause between two looks at a domain that was asked to shut down.
	shutdownTick = 100 * time.Millisecond
	// shutdownAgain is the pause between two requests to shut down. libvirt presses the power button if the agent of a busy guest does not
	// answer within 5 seconds (QEMU_AGENT_WAIT_TIME in libvirt), and many guests ignore that button.
	shutdownAgain = 10 * time.Second
)

// SwitchOff switches off a domain that is in the power state p, in the way how. A guest that is asked to shut down has limit for it, and a
// domain that stands still is not asked.
func SwitchOff(ctx context.Context, m virt.Machine, p virt.Power, how Shutdown, limit time.Duration, log *slog.Logger) error {
	if how == Clean && p == virt.Running && ShutDown(ctx, m, limit, log) {
		return nil
	}
	return m.Destroy()
}

// ShutDown asks the guest to shut down and waits, at most for limit. It leaves a part of ctx's time for switching the domain off.
func ShutDown(ctx context.Context, m virt.Machine, limit time.Duration, log *slog.Logger) (down bool) {
	if end, ok := ctx.Deadline(); ok {
		limit = min(limit, time.Until(end)*3/4)
	}
	end := time.Now().Add(limit)
	ctx, cancel := context.WithDeadline(ctx, end)
	defer cancel()
	var asked time.Time // zero: not yet
	heard, failed := false, false
	tick := time.NewTicker(shutdownTick)
	defer tick.Stop()
	for {
		if p, err := m.Power(); err == nil && !p.Up() {
			return true
		}
		if time.Since(asked) >= shutdownAgain {
			// A request that seems to fail may have reached the guest, whose agent or QEMU was gone before it answered. Switching it off
			// now would cut its shutdown short.
			err := m.Shutdown(time.Until(end))
			if err != nil && failed && !heard && ctx.Err() == nil {
				log.Warn("the guest cannot be asked to shut down", "err", err)
				return false
			}
			heard, failed = heard || err == nil, err != nil
			asked = time.Now()
		}
		select {
		case <-ctx.Done():
			return false
		case <-tick.C:
		}
	}
}
