package layer

import (
	"context"
	"errors"
	"os"

	"mulligan/durable"
	"mulligan/errs"
	"mulligan/snap/disk"
	diskguest "mulligan/snap/disk/guest"
	"mulligan/snap/disk/rbd"
	"mulligan/systemd"
)

// domainUnit is a domain with the interface of a unit.
type domainUnit struct{ u diskUnit }

// diskUnit is what the drivers of a domain's disks make of the domain.
type diskUnit interface {
	Name() string
	State(ctx context.Context) (diskguest.Status, error)
	Start(ctx context.Context) error
	Stop(ctx context.Context) error
}

// unitOf returns the domain of a driver as a unit.
func unitOf(driver disks) diskUnit {
	if d, ok := driver.(*rbd.Driver); ok {
		return d.Unit()
	}
	return driver.(*disk.Driver).Unit()
}

func (v domainUnit) Name() string { return "domain " + v.u.Name() }

func (v domainUnit) Start(ctx context.Context) error { return v.u.Start(ctx) }

func (v domainUnit) Stop(ctx context.Context) error { return v.u.Stop(ctx) }

func (v domainUnit) State(ctx context.Context) (systemd.Status, error) {
	s, err := v.u.State(ctx)
	return systemd.Status{Active: s.Active, Sub: s.Sub, Asked: s.Active == "inactive"}, err
}

// Machine is an app's domain together with its unit on the host.
type Machine struct {
	Vm         systemd.Unit
	Host       systemd.Unit // nil if there is only the domain
	HostStarts bool         // the start of Host starts the domain
	name       string       // name of the unit that starts the domain, if any
	note       string       // path of the file with what a stop found running
}

// wasUp records what Stop found running, and so what Start starts. It is stored in a file for the next process.
type wasUp struct {
	VM   bool `json:"vm"`
	Host bool `json:"host"`
}

// Name returns the names of the unit and the domain.
func (m *Machine) Name() string {
	switch {
	case m.name != "":
		return m.name + " (" + m.Vm.Name() + ")"
	case m.Host == nil:
		return m.Vm.Name()
	}
	return m.Host.Name() + " and " + m.Vm.Name()
}

// State returns the state of a part that runs. If neither the unit nor the domain runs, it returns the state of the one that
// should be up.
func (m *Machine) State(ctx context.Context) (systemd.Status, error) {
	vm, err := m.Vm.State(ctx)
	if err != nil || m.Host == nil || vm.Running() {
		return vm, err
	}
	host, err := m.Host.State(ctx)
	if err != nil || host.Running() || vm.Intent() != systemd.Up && host.Intent() == systemd.Up {
		return host, err
	}
	return vm, nil
}

// Stop stops the unit, and then the domain if it still runs.
func (m *Machine) Stop(ctx context.Context) error {
	if err := m.remember(ctx, true); err != nil {
		return err
	}
	if m.Host != nil {
		if err := m.Host.Stop(ctx); err != nil {
			return err
		}
	}
	return m.Vm.Stop(ctx)
}

// Pause stops the unit on the host, and leaves the domain unchanged.
func (m *Machine) Pause(ctx context.Context) error {
	if m.Host == nil {
		return nil
	}
	if err := m.remember(ctx, false); err != nil {
		return err
	}
	return m.Host.Stop(ctx)
}

// remember records what is running, in addition to what an earlier stop recorded and nobody has started since. The state of the
// domain must be known only if the domain is to be stopped.
func (m *Machine) remember(ctx context.Context, stopsVM bool) error {
	was, err := m.remembered()
	if err != nil {
		return err
	}
	s, err := m.Vm.State(ctx)
	if err != nil && stopsVM {
		return err
	}
	was.VM = was.VM || err == nil && s.Running()
	if m.Host != nil {
		s, err := m.Host.State(ctx)
		if err != nil {
			return err
		}
		was.Host = was.Host || s.Intent() == systemd.Up
	}
	return m.write(was)
}

// remembered returns what a stop found running and nobody has started since. A note that is damaged says that there was a stop: then everything may
// have run, and a rollback must not fail because of it.
func (m *Machine) remembered() (was wasUp, err error) {
	switch err := durable.ReadJSON(m.note, &was); {
	case errors.Is(err, os.ErrNotExist):
		return wasUp{}, nil
	case durable.Damaged(err):
		return wasUp{VM: true, Host: true}, nil
	default:
		return was, errs.Wrap(errs.Failed, "read what ran", err)
	}
}

// write replaces the file durably.
func (m *Machine) write(was wasUp) error {
	return errs.Wrap(errs.Failed, "note what ran", durable.WriteJSON(m.note, was))
}

// Start starts what Stop found running. If Stop found nothing running, or there was no Stop, or what it stopped was started since,
// Start starts everything, unless a part runs: what is down beside it is down on purpose.
func (m *Machine) Start(ctx context.Context) error {
	was, err := m.remembered()
	if err != nil {
		return err
	}
	if was == (wasUp{}) {
		now, err := m.State(ctx)
		if err != nil {
			return err
		}
		was = wasUp{VM: !now.Running(), Host: !now.Running()}
	}
	return m.start(ctx, was)
}

// StartAgain starts what Stop found running, and nothing if there was no Stop or what it stopped was started since.
func (m *Machine) StartAgain(ctx context.Context) error {
	was, err := m.remembered()
	if err != nil {
		return err
	}
	return m.start(ctx, was)
}

// start starts the parts in was. A guest whose memory was restored continues before anything could boot it.
func (m *Machine) start(ctx context.Context, was wasUp) error {
	steps := []func() error{
		func() error { return startIf(ctx, m.Vm, was.VM) },
		func() error { return startIf(ctx, m.Host, was.Host) },
	}
	if m.HostStarts { // it would fail if the domain were up
		steps[0], steps[1] = steps[1], steps[0]
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	if err := os.Remove(m.note); err != nil && !errors.Is(err, os.ErrNotExist) {
		return errs.Wrap(errs.Failed, "forget what ran", err)
	}
	return nil
}

func startIf(ctx context.Context, u systemd.Unit, wanted bool) error {
	if u == nil || !wanted {
		return nil
	}
	return u.Start(ctx)
}
