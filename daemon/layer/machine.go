package layer

import (
	"context"
	"encoding/json"
	"errors"
	"os"

	"mulligan/durable"
	"mulligan/errs"
	"mulligan/snap/disk"
	"mulligan/systemd"
)

// domainUnit is a domain in the words of a unit.
type domainUnit struct{ u *disk.Unit }

func (v domainUnit) Name() string { return "domain " + v.u.Name() }

func (v domainUnit) Start(ctx context.Context) error { return v.u.Start(ctx) }

func (v domainUnit) Stop(ctx context.Context) error { return v.u.Stop(ctx) }

func (v domainUnit) State(ctx context.Context) (systemd.Status, error) {
	s, err := v.u.State(ctx)
	return systemd.Status{Active: s.Active, Sub: s.Sub, Asked: s.Active == "inactive"}, err
}

// Machine is an app's domain together with what runs on the host beside it.
type Machine struct {
	Vm         systemd.Unit
	Host       systemd.Unit // nil: the domain is all there is
	HostStarts bool         // starting host starts the domain
	name       string       // of the unit that the domain goes by, if any
	note       string       // file: what a stop found running
}

// wasUp is what Stop found running, and so what Start starts. It is a file, so
// that the next process knows it too.
type wasUp struct {
	VM   bool `json:"vm"`
	Host bool `json:"host"`
}

// Name names what is stopped and started.
func (m *Machine) Name() string {
	switch {
	case m.name != "":
		return m.name + " (" + m.Vm.Name() + ")"
	case m.Host == nil:
		return m.Vm.Name()
	}
	return m.Host.Name() + " and " + m.Vm.Name()
}

// State is running where either of the two is; where neither runs, it is that of the
// one that is meant to be up.
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

// Stop stops the unit, then the domain where that did not.
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

// Pause stops what runs on the host, and leaves the domain as it is.
func (m *Machine) Pause(ctx context.Context) error {
	if m.Host == nil {
		return nil
	}
	if err := m.remember(ctx, false); err != nil {
		return err
	}
	return m.Host.Stop(ctx)
}

// remember notes what is running, in addition to what an earlier stop noted
// that nobody started since. Only where the domain is to be stopped must its state be known.
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

func (m *Machine) remembered() (was wasUp, err error) {
	data, err := os.ReadFile(m.note)
	if errors.Is(err, os.ErrNotExist) {
		return was, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &was)
	}
	return was, errs.Wrap(errs.Failed, "read what ran", err)
}

// write replaces the note, durably.
func (m *Machine) write(was wasUp) error {
	data, err := json.Marshal(was)
	if err != nil {
		return err
	}
	return errs.Wrap(errs.Failed, "note what ran", durable.WriteFile(m.note, data, 0o600))
}

// Start starts what Stop found running; without a Stop before it, all. A guest
// whose memory was restored goes on before anything could boot it.
func (m *Machine) Start(ctx context.Context) error {
	was, err := m.remembered()
	if err != nil {
		return err
	}
	if was == (wasUp{}) {
		was = wasUp{VM: true, Host: true}
	}
	steps := []func() error{
		func() error { return startIf(ctx, m.Vm, was.VM) },
		func() error { return startIf(ctx, m.Host, was.Host) },
	}
	if m.HostStarts { // and would fail on a domain that is up
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
