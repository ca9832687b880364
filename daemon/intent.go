package daemon

import (
	"context"
	"fmt"
	"time"

	"mulligan/daemon/health"
	"mulligan/daemon/store"
	"mulligan/systemd"
)

// startsAfter decides whether a rollback starts the app at its end, and if it does
// not, why. now is the app's state before the rollback, target the checkpoint that is
// gone to, and asked what the request says, if anything.
func startsAfter(now systemd.Status, target store.Checkpoint, asked *bool) (start bool, why string) {
	if asked != nil {
		if *asked {
			return true, ""
		}
		return false, "is left down, as requested"
	}
	const hint = "; --start starts it"
	switch now.Intent() {
	case systemd.Up:
		return true, ""
	case systemd.Stopped:
		return false, "was stopped on purpose before the rollback, and stays down" + hint
	}
	if target.Running != nil && *target.Running {
		return true, ""
	}
	return false, fmt.Sprintf("was not running, and did not run when %s was made: it stays down%s", target.ID, hint)
}

// standing words how a unit is doing, for people.
func standing(s systemd.Status) string {
	how := s.Active
	if s.Sub != "" && s.Sub != s.Active {
		how += ", " + s.Sub
	}
	if s.Result != "" && s.Result != "success" {
		how += ", " + s.Result
	}
	return how
}

// healthPatience is how long an app that a checkpoint is made of may take to say
// whether it is well.
const healthPatience = 2 * time.Second

// note records in a checkpoint whether the app runs and is well. What cannot be told
// stays null.
func (d *Daemon) note(ctx context.Context, a *app, now systemd.Status, cp *store.Checkpoint) {
	cp.Running, cp.Healthy = d.condition(ctx, a, now)
}

// condition tells whether the app runs and is well. One that is down is not asked, for
// another process may answer: it is not well if it is meant to be up, and of one that
// somebody stopped nobody knows. Of one that runs, its health check tells, if it has one.
func (d *Daemon) condition(ctx context.Context, a *app, now systemd.Status) (running, healthy *bool) {
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
	opts, err := d.healthOptions(a)
	if err != nil {
		return running, nil
	}
	well = health.Ask(ctx, *h, opts, healthPatience) == nil
	return running, &well
}

// ailing reports whether the app was not well when the checkpoint was made.
func ailing(cp store.Checkpoint) bool { return cp.Healthy != nil && !*cp.Healthy }

func (d *Daemon) checkHealth(ctx context.Context, a *app) error {
	opts, err := d.healthOptions(a)
	if err != nil {
		return err
	}
	return health.Check(ctx, *a.rec().Health, opts)
}

// healthOptions say as whom an app is asked: as its owner.
func (d *Daemon) healthOptions(a *app) (health.Options, error) {
	acc, err := d.AccountOf(a.rec())
	return health.Options{Owner: acc.User(), Dir: a.rec().Workspace}, err
}
