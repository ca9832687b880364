package systemd

import (
	"context"
	"slices"

	"mulligan/errs"
)

// An active socket, timer or path unit can start its service at any moment. So Stop stops these units first, and Start starts
// those again that this process stopped. If this process stopped none, because another one did and died, Start starts those
// that are enabled.

// hold stops the units that trigger this one, and remembers which ones it stopped.
func (s *Service) hold(ctx context.Context) error {
	triggers, err := s.triggers(ctx, "stop")
	if err != nil {
		return err
	}
	for _, t := range triggers {
		if !t.status.Running() {
			continue
		}
		s.m.mu.Lock()
		if !slices.Contains(s.m.held[s.name], t.unit.name) {
			s.m.held[s.name] = append(s.m.held[s.name], t.unit.name)
		}
		s.m.mu.Unlock()
		if err := t.unit.Stop(ctx); err != nil {
			return errs.Wrap(errs.Failed, "stop what triggers "+s.name, err)
		}
	}
	return nil
}

// release starts the units that trigger this one. It does nothing if this unit is up, because a socket unit cannot be started
// after its service.
func (s *Service) release(ctx context.Context) error {
	triggers, err := s.triggers(ctx, "start")
	if err != nil || len(triggers) == 0 {
		return err
	}
	d, err := s.look(ctx)
	if err != nil {
		return s.m.failure("start", s.name, err)
	}
	s.m.mu.Lock()
	held, known := s.m.held[s.name]
	s.m.mu.Unlock()
	for _, t := range triggers {
		wanted := slices.Contains(held, t.unit.name) || !known && t.enabled
		if !wanted || d.Running() || t.status.Running() {
			continue
		}
		if err := t.unit.Start(ctx); err != nil {
			return errs.Wrap(errs.Failed, "start what triggers "+s.name, err)
		}
	}
	s.m.mu.Lock()
	delete(s.m.held, s.name)
	s.m.mu.Unlock()
	return nil
}

// trigger is a unit that starts another one.
type trigger struct {
	unit    *Service
	status  Status
	enabled bool
}

// triggers returns the units that trigger this one, with their states. Errors name op.
func (s *Service) triggers(ctx context.Context, op string) ([]trigger, error) {
	var names []string
	list := []trigger{}
	err := s.m.do(ctx, func(b *bus) error {
		path, err := b.load(ctx, s.name)
		if err != nil {
			return err
		}
		if err := b.get(ctx, path, unitIf, "TriggeredBy", &names); err != nil {
			return err
		}
		list = list[:0]
		for _, name := range names {
			t := trigger{unit: s.m.Unit(name)}
			d, err := t.unit.lookOn(ctx, b)
			if err != nil {
				return err
			}
			path, err := b.load(ctx, name)
			if err != nil {
				return err
			}
			var state string
			if err := b.get(ctx, path, unitIf, "UnitFileState", &state); err != nil {
				return err
			}
			t.status, t.enabled = d.Status, state == "enabled" || state == "enabled-runtime"
			list = append(list, t)
		}
		return nil
	})
	if err != nil {
		return nil, s.m.failure(op, s.name, err)
	}
	return list, nil
}
