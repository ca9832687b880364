package app

import (
	"context"
	"io"
	"time"

	"mulligan/daemon/health"
	"mulligan/daemon/layer"
	"mulligan/daemon/store"
	"mulligan/errs"
	"mulligan/systemd"
)

// StopSupervised stops the apps that nobody would stop once the daemon is gone,
// and gives up charge of them.
func (s *Set) StopSupervised(ctx context.Context) error {
	var first error
	for _, a := range s.All() {
		if len(a.Rec().Run) == 0 || a.HostPart() == nil {
			continue
		}
		err := a.HostPart().Stop(ctx)
		if c, ok := a.HostPart().(io.Closer); ok {
			err = errs.Also(err, c.Close())
		}
		if err != nil && first == nil {
			first = err
		}
	}
	return first
}

// PauseHost stops what of an app runs on the host, and not its domain.
func (s *Set) PauseHost(ctx context.Context, a *App) error {
	m, ok := a.Unit().(*layer.Machine)
	if !ok {
		return s.StopUnit(ctx, a)
	}
	ctx, cancel := context.WithTimeout(ctx, s.opt.StopTimeout)
	defer cancel()
	if err := s.opt.Failpoint.At("stop unit"); err != nil {
		return err
	}
	return m.Pause(ctx)
}

// healthPatience is how long an app that a checkpoint is made of may take to say
// whether it is well.
const healthPatience = 2 * time.Second

// Note records in a checkpoint whether the app runs and is well. What cannot be told
// stays null.
func (s *Set) Note(ctx context.Context, a *App, now systemd.Status, cp *store.Checkpoint) {
	cp.Running, cp.Healthy = s.Condition(ctx, a, now)
}

// Condition tells whether the app runs and is well. One that is down is not asked, for
// another process may answer: it is not well if it is meant to be up, and of one that
// somebody stopped nobody knows. Of one that runs, its health check tells, if it has one.
func (s *Set) Condition(ctx context.Context, a *App, now systemd.Status) (running, healthy *bool) {
	up, well := now.Running(), false
	if a.Unit() != nil {
		running = &up
	}
	if running != nil && !up {
		if now.Intent() == systemd.Up {
			healthy = &well
		}
		return running, healthy
	}
	h := a.Rec().Health
	if h == nil {
		return running, nil
	}
	opts, err := s.healthOptions(a)
	if err != nil {
		return running, nil
	}
	well = health.Ask(ctx, *h, opts, healthPatience) == nil
	return running, &well
}

func (s *Set) CheckHealth(ctx context.Context, a *App) error {
	opts, err := s.healthOptions(a)
	if err != nil {
		return err
	}
	return health.Check(ctx, *a.Rec().Health, opts)
}

// healthOptions say as whom an app is asked: as its owner.
func (s *Set) healthOptions(a *App) (health.Options, error) {
	acc, err := s.AccountOf(a.Rec())
	return health.Options{Owner: acc.User(), Dir: a.Rec().Workspace}, err
}

// StopUnit stops the app's unit and waits until it is down.
func (s *Set) StopUnit(ctx context.Context, a *App) error {
	ctx, cancel := context.WithTimeout(ctx, s.StopLimit(a))
	defer cancel()
	if err := s.opt.Failpoint.At("stop unit"); err != nil {
		return err
	}
	return a.Unit().Stop(ctx)
}

// StopLimit is how long an app may take to stop. A guest has stop_timeout to go down, beside what
// runs on the host, and a driver asks a guest for three quarters of the time that is left.
func (s *Set) StopLimit(a *App) time.Duration {
	if a.Rec().Domain != "" {
		return s.opt.StopTimeout + s.opt.StopTimeout*4/3 + layer.SwitchOff
	}
	return s.opt.StopTimeout
}

// startTimeout bounds the wait for a unit; systemd's own limit is 90 s by default.
const startTimeout = 100 * time.Second

// StartAgain starts the unit if it was running before, and tries twice: there
// is nothing else to be done about it, unless who starts it is away.
func (s *Set) StartAgain(ctx context.Context, a *App, running bool) error {
	if a.Unit() == nil || !running {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	err := s.StartUnit(ctx, a)
	if err != nil && ctx.Err() == nil {
		err = s.StartUnit(ctx, a)
	}
	a.oweStart(err)
	return err
}

func (s *Set) StartUnit(ctx context.Context, a *App) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := s.opt.Failpoint.At("start unit"); err != nil {
		return err
	}
	return a.Unit().Start(ctx)
}

// StopCommand stops the command that the daemon supervises for an app.
func (s *Set) StopCommand(ctx context.Context, a *App) error {
	ctx, cancel := context.WithTimeout(ctx, s.opt.StopTimeout)
	defer cancel()
	return a.HostPart().Stop(ctx)
}

// StartCommand starts it, if there is one and it is wanted.
func (s *Set) StartCommand(ctx context.Context, a *App, wanted bool) error {
	if !wanted || len(a.Rec().Run) == 0 || a.HostPart() == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	return a.HostPart().Start(ctx)
}
