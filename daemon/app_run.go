package daemon

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

// stopSupervised stops the apps that nobody would stop once the daemon is gone,
// and gives up charge of them.
func (s *appSet) stopSupervised(ctx context.Context) error {
	var first error
	for _, a := range s.all() {
		if len(a.rec().Run) == 0 || a.hostPart() == nil {
			continue
		}
		err := a.hostPart().Stop(ctx)
		if c, ok := a.hostPart().(io.Closer); ok {
			err = errs.Also(err, c.Close())
		}
		if err != nil && first == nil {
			first = err
		}
	}
	return first
}

// pauseHost stops what of an app runs on the host, and not its domain.
func (s *appSet) pauseHost(ctx context.Context, a *app) error {
	m, ok := a.unit().(*layer.Machine)
	if !ok {
		return s.stopUnit(ctx, a)
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

// note records in a checkpoint whether the app runs and is well. What cannot be told
// stays null.
func (s *appSet) note(ctx context.Context, a *app, now systemd.Status, cp *store.Checkpoint) {
	cp.Running, cp.Healthy = s.condition(ctx, a, now)
}

// condition tells whether the app runs and is well. One that is down is not asked, for
// another process may answer: it is not well if it is meant to be up, and of one that
// somebody stopped nobody knows. Of one that runs, its health check tells, if it has one.
func (s *appSet) condition(ctx context.Context, a *app, now systemd.Status) (running, healthy *bool) {
	up, well := now.Running(), false
	if a.unit() != nil {
		running = &up
	}
	if running != nil && !up {
		if now.Intent() == systemd.Up {
			healthy = &well
		}
		return running, healthy
	}
	h := a.rec().Health
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

func (s *appSet) checkHealth(ctx context.Context, a *app) error {
	opts, err := s.healthOptions(a)
	if err != nil {
		return err
	}
	return health.Check(ctx, *a.rec().Health, opts)
}

// healthOptions say as whom an app is asked: as its owner.
func (s *appSet) healthOptions(a *app) (health.Options, error) {
	acc, err := s.AccountOf(a.rec())
	return health.Options{Owner: acc.User(), Dir: a.rec().Workspace}, err
}

// stopUnit stops the app's unit and waits until it is down.
func (s *appSet) stopUnit(ctx context.Context, a *app) error {
	ctx, cancel := context.WithTimeout(ctx, s.stopLimit(a))
	defer cancel()
	if err := s.opt.Failpoint.At("stop unit"); err != nil {
		return err
	}
	return a.unit().Stop(ctx)
}

// stopLimit is how long an app may take to stop. A guest has stop_timeout to go down, beside what
// runs on the host, and a driver asks a guest for three quarters of the time that is left.
func (s *appSet) stopLimit(a *app) time.Duration {
	if a.rec().Domain != "" {
		return s.opt.StopTimeout + s.opt.StopTimeout*4/3 + layer.SwitchOff
	}
	return s.opt.StopTimeout
}

// startTimeout bounds the wait for a unit; systemd's own limit is 90 s by default.
const startTimeout = 100 * time.Second

// startAgain starts the unit if it was running before, and tries twice: there
// is nothing else to be done about it, unless who starts it is away.
func (s *appSet) startAgain(ctx context.Context, a *app, running bool) error {
	if a.unit() == nil || !running {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	err := s.startUnit(ctx, a)
	if err != nil && ctx.Err() == nil {
		err = s.startUnit(ctx, a)
	}
	a.oweStart(err)
	return err
}

func (s *appSet) startUnit(ctx context.Context, a *app) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := s.opt.Failpoint.At("start unit"); err != nil {
		return err
	}
	return a.unit().Start(ctx)
}

// stopCommand stops the command that the daemon supervises for an app.
func (s *appSet) stopCommand(ctx context.Context, a *app) error {
	ctx, cancel := context.WithTimeout(ctx, s.opt.StopTimeout)
	defer cancel()
	return a.hostPart().Stop(ctx)
}

// startCommand starts it, if there is one and it is wanted.
func (s *appSet) startCommand(ctx context.Context, a *app, wanted bool) error {
	if !wanted || len(a.rec().Run) == 0 || a.hostPart() == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	return a.hostPart().Start(ctx)
}
