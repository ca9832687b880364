package app

import (
	"cmp"
	"context"
	"io"
	"sync"
	"time"

	"mulligan/daemon/health"
	"mulligan/daemon/layer"
	"mulligan/daemon/store"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/systemd"
)

// StopSupervised stops the apps that the daemon itself supervises, since nothing else would stop
// them once the daemon has ended.
func (s *Set) StopSupervised(ctx context.Context) error {
	apps := s.All()
	failed := make([]error, len(apps))
	var wait sync.WaitGroup
	for i, a := range apps {
		if len(a.Rec().Run) == 0 || a.HostPart() == nil {
			continue
		}
		wait.Go(func() { // one that takes long does not take the time of the others
			failed[i] = a.HostPart().Stop(ctx)
			if c, ok := a.HostPart().(io.Closer); ok {
				failed[i] = errs.Also(failed[i], c.Close())
			}
		})
	}
	wait.Wait()
	return cmp.Or(failed...)
}

// PauseHost stops the part of the app that runs on the host. The app's domain keeps running.
func (s *Set) PauseHost(ctx context.Context, a *App) error {
	m, ok := a.Unit().(*layer.Machine)
	if !ok {
		return s.StopUnit(ctx, a)
	}
	ctx, cancel := context.WithTimeout(ctx, s.hostLimit(a))
	defer cancel()
	if err := s.opt.Failpoint.At("stop unit"); err != nil {
		return err
	}
	return m.Pause(ctx)
}

// healthPatience bounds the health check that a checkpoint makes.
const healthPatience = 2 * time.Second

// Note records in a checkpoint whether the app runs and is healthy. A value that is unknown stays
// null.
func (s *Set) Note(ctx context.Context, a *App, now systemd.Status, cp *store.Checkpoint) {
	cp.Running, cp.Healthy = s.Condition(ctx, a, now)
}

// Condition reports whether the app runs and is healthy; nil means unknown. The health check of an
// app that is down is not made, because another process might answer: the app is unhealthy if it
// should be up, and its health is unknown if somebody stopped it. A zero now says that the state
// of the unit is unknown.
func (s *Set) Condition(ctx context.Context, a *App, now systemd.Status) (running, healthy *bool) {
	if a.Unit() != nil && now == (systemd.Status{}) {
		return nil, nil
	}
	up, well := now.Running(), false
	if a.Unit() != nil {
		running = &up
	}
	if running != nil && !up {
		if now.Intent() == systemd.Up || a.OwesStart() {
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
	err = health.Ask(ctx, *h, opts, healthPatience)
	if errs.KindOf(err) == errs.Busy { // a command is not let into a fork that is being kept
		return running, nil
	}
	well = err == nil
	return running, &well
}

// PresentCondition asks the app's unit for its state, and reports whether the app runs and is healthy; nil means unknown.
func (s *Set) PresentCondition(ctx context.Context, a *App) (running, healthy *bool, err error) {
	var now systemd.Status
	if unit := a.Unit(); unit != nil {
		if now, err = StatusOf(ctx, unit); err != nil {
			return nil, nil, err
		}
	}
	running, healthy = s.Condition(ctx, a, now)
	return running, healthy, nil
}

// CheckHealth waits until the app is healthy, and returns an error if it is not in time.
func (s *Set) CheckHealth(ctx context.Context, a *App) error {
	opts, err := s.healthOptions(a)
	if err != nil {
		return err
	}
	return health.Check(ctx, *a.Rec().Health, opts)
}

// maxHealthOutput bounds, in bytes, the kept output of a health command inside of a fork.
const maxHealthOutput = 4 << 10

// healthOptions returns the options of a health check, which runs with the rights of the app's
// owner, and for a fork inside of the fork.
func (s *Set) healthOptions(a *App) (health.Options, error) {
	rec := a.Rec()
	acc, err := s.AccountOf(rec)
	o := health.Options{Owner: acc.User(), Dir: rec.Workspace}
	if rec.Fork != nil { // the host would answer for the parent
		o.Run = func(ctx context.Context, argv []string) (int, string, error) {
			ran, err := s.RunInside(ctx, a, argv, maxHealthOutput)
			return ran.Status, ran.Output, err
		}
	}
	return o, err
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

// StopLimit returns how long the app may take to stop. With a domain it is longer: the part on the
// host has its own limit, and the guest has StopTimeout, since a driver gives it three quarters of
// the remaining time.
func (s *Set) StopLimit(a *App) time.Duration {
	if a.Rec().Domain != "" {
		return s.hostLimit(a) + s.opt.StopTimeout*4/3 + layer.SwitchOff
	}
	return s.hostLimit(a)
}

// hostLimit returns how long the app's part on the host may take to stop: StopTimeout, and for a
// supervised command, which is killed only then, also the time in which it then ends.
func (s *Set) hostLimit(a *App) time.Duration {
	if len(a.Rec().Run) > 0 {
		return s.opt.StopTimeout + layer.Kill
	}
	return s.opt.StopTimeout
}

// startTimeout bounds the wait for a unit; systemd's own limit is 90 s by default.
const startTimeout = 100 * time.Second

// StayDown ends a stop after which the unit is not started: containers get their restart policies back.
func (s *Set) StayDown(ctx context.Context, a *App) error {
	if u, ok := a.HostPart().(interface{ StayDown(context.Context) error }); ok {
		return u.StayDown(ctx)
	}
	return nil
}

// StartAgain starts the unit if it was running before, and otherwise leaves it down. It tries twice. If the service that starts
// the unit is unavailable, the daemon tries again in the background.
func (s *Set) StartAgain(ctx context.Context, a *App, running bool) error {
	switch {
	case a.Unit() == nil:
		return nil
	case !running:
		return s.StayDown(ctx, a)
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	start := a.Unit().Start
	if u, ok := a.Unit().(interface{ StartAgain(context.Context) error }); ok {
		start = u.StartAgain // if it was not stopped yet, a part that is down was down before
	}
	err := s.start(ctx, start)
	if err != nil && ctx.Err() == nil {
		err = s.start(ctx, start)
	}
	switch {
	case err == nil:
		return s.EndOwed(context.WithoutCancel(ctx), a)
	case errs.KindOf(err) != errs.Unavailable: // the error is the app's own, and trying again would not help
		return err
	}
	a.RequestRecovery(err)
	a.NoteOwed()
	owed := store.Operation{ID: owedStart(a), AppID: a.Rec().ID, Kind: KindStart, Plan: []byte("{}")}
	return errs.Also(err, s.store.PutOperation(context.WithoutCancel(ctx), owed, s.opt.Now()))
}

// Recovered adds to what a recovery did why the app could not be started after that, if it could not.
func Recovered(words string, notStarted error) string {
	if notStarted != nil {
		words += ", and the app could not be started: " + notStarted.Error()
	}
	return words
}

// KindStart is the kind of an operation that has to start the app, because the operation before could not: what starts it was unavailable. Its plan
// is empty.
const KindStart = "start"

func owedStart(a *App) ipc.OperationID { return ipc.OperationID("start-" + a.Rec().ID) }

// StartOwed starts the app as an operation of [KindStart] has to, and ends the operation.
func (s *Set) StartOwed(ctx context.Context, a *App) error {
	if a.Unit() != nil {
		if err := s.StartUnit(ctx, a); err != nil {
			return err
		}
	}
	return s.EndOwed(ctx, a)
}

// EndOwed ends what [App.OwesStart] is about, if the app owes a start: it was started, or is to stay down.
func (s *Set) EndOwed(ctx context.Context, a *App) error {
	if !a.OwesStart() {
		return nil
	}
	if err := s.store.EndOperation(ctx, owedStart(a)); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.unfinished.owed = false
	a.unfinished.down = a.unfinished.down && a.Rec().Domain != ""
	return nil
}

// StartUnit starts the app.
func (s *Set) StartUnit(ctx context.Context, a *App) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	return s.start(ctx, a.Unit().Start)
}

func (s *Set) start(ctx context.Context, do func(context.Context) error) error {
	if err := s.opt.Failpoint.At("start unit"); err != nil {
		return err
	}
	return do(ctx)
}

// StopCommand stops the command that the daemon supervises for an app.
func (s *Set) StopCommand(ctx context.Context, a *App) error {
	ctx, cancel := context.WithTimeout(ctx, s.hostLimit(a))
	defer cancel()
	return a.HostPart().Stop(ctx)
}

// StartCommand starts the app's supervised command, if it has one and wanted is true.
func (s *Set) StartCommand(ctx context.Context, a *App, wanted bool) error {
	if !wanted || len(a.Rec().Run) == 0 || a.HostPart() == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	return a.HostPart().Start(ctx)
}
