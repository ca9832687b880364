package rollback

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"mulligan/daemon/app"
	"mulligan/daemon/layer"
	"mulligan/daemon/store"
	"mulligan/errs"
	"mulligan/snap"
	"mulligan/systemd"
)

// unit stops what runs of the app for the time in which its layers are switched, and starts it
// again: the app's unit, or only the app's part on the host when the rollback leaves the disks of
// a guest alone. An app without a unit has nothing to stop. plan and parts are the rollback's own.
type unit struct {
	a        *app.App
	apps     *app.Set
	goal     goal
	plan     *rollbackPlan
	parts    *parts
	hints    *hints
	warnings *warnings
	steady   time.Duration  // how long a unit is watched after its start
	before   systemd.Status // how the unit was when the rollback began
	ran      []string       // the containers that ran then
	lost     bool           // halt leaves out containers that are gone
	unseen   bool           // a warning says already that the state of the guest is unknown
	halted   time.Time      // when halt began first
	down     *time.Duration // from then until the unit had started; nil where it did not, or did not run before
}

// status returns the state of the app's unit. If the app has a guest which is out of reach and which
// the rollback leaves alone, status returns the state of the app's part on the host.
func (u *unit) status(ctx context.Context) (systemd.Status, error) {
	now, err := u.a.Status(ctx)
	if err == nil {
		return now, nil
	}
	err = u.a.Setup().OfGuest(ctx, err)
	var away *layer.Error
	switch {
	case u.stopsAll() && u.parts.has(snap.Disk):
		return now, u.hints.orWithout(err)
	case u.stopsAll() || !errors.As(err, &away):
		return now, err
	}
	m := u.a.Unit().(*layer.Machine)
	if !u.unseen {
		u.warnings.add("it is not known whether the %s runs, so it is left as it is: %v", m.Vm.Name(), away.Err)
	}
	u.unseen = true
	return app.StatusOf(ctx, m.Host)
}

// states returns the state of the app's unit and that of its part on the host. An operation that stops nothing goes on where they cannot be read: they
// are zero then.
func (u *unit) states(ctx context.Context) (now, onHost systemd.Status, err error) {
	now, err = u.status(ctx)
	if err == nil {
		onHost, err = app.StatusOf(ctx, u.a.HostPart())
	}
	if err != nil && !u.goal.stopsApp() {
		u.warnings.add("it is not known whether %s runs: %v", u.a.Unit().Name(), err)
		return systemd.Status{}, systemd.Status{}, nil
	}
	return now, onHost, err
}

// ready returns an error if the unit could not be stopped and started, as far as that is known beforehand. What need not be started may have lost
// containers: what makes them anew may need files that the rollback brings back. start is what the request says of that, if anything.
func (u *unit) ready(ctx context.Context, start *bool) error {
	c, ok := u.a.Unit().(*layer.Containers)
	if !ok || !u.stops() {
		return nil
	}
	var remarks []string
	var err error
	u.ran, remarks, err = c.Ready(ctx)
	for _, words := range remarks {
		u.warnings.add("%s", words)
	}
	switch {
	case errs.KindOf(err) != errs.NotFound:
		return err
	case start == nil || *start:
		return u.hints.noStartFirst(err)
	}
	u.lost = true
	u.warnings.add("%s", errs.Words(err))
	return nil
}

// stops reports whether something is stopped while the layers are switched. A revert stops nothing:
// it changes some files, as an editor does.
func (u *unit) stops() bool {
	return u.goal.stopsApp() && u.a.Unit() != nil && (u.stopsAll() || u.a.HostPart() != nil)
}

// stopsAll reports whether the whole app is stopped. A guest is stopped for its disks only: for
// other layers it is enough to stop what runs on the host beside the guest.
func (u *unit) stopsAll() bool {
	m, ok := u.a.Unit().(*layer.Machine)
	return !ok || m.HostStarts || slices.Contains(u.plan.Layers, snap.Disk)
}

// halt stops the app, or only its part on the host when the rollback leaves the disks alone.
func (u *unit) halt(ctx context.Context) error {
	if u.halted.IsZero() {
		u.halted = time.Now()
	}
	if c, ok := u.a.HostPart().(*layer.Containers); ok {
		c.Expect(u.ran, u.lost)
	}
	if u.stopsAll() {
		return u.apps.StopUnit(ctx, u.a)
	}
	return u.apps.PauseHost(ctx, u.a)
}

// haltRest is halt for an app whose layers may be half switched, of which containers may be gone meanwhile: these write nothing.
func (u *unit) haltRest(ctx context.Context) error {
	u.lost = true
	return u.halt(ctx)
}

// haltedName returns the name of the unit that halt stops.
func (u *unit) haltedName() string {
	if u.stopsAll() {
		return u.a.Unit().Name()
	}
	return u.a.HostPart().Name()
}

// stopped says what halt did, by the state of the unit before it. The error is errSkipped if there
// was nothing to stop.
func (u *unit) stopped() (string, error) {
	switch now := u.before; {
	case !u.stops():
		return u.runsOn(), errSkipped
	case now.Down():
		return fmt.Sprintf("%s was not running (%s)", u.haltedName(), standing(now)), errSkipped
	case !now.Running():
		return fmt.Sprintf("%s was not up (%s), and is held down", u.haltedName(), standing(now)), nil
	}
	return u.haltedName() + " stopped", nil
}

// runsOn says why nothing is stopped.
func (u *unit) runsOn() string {
	if u.a.Unit() == nil {
		return "the app has no unit"
	}
	return "the app runs on"
}

// intend writes into the plan how the app runs before the rollback, which is now, and whether the
// rollback starts the app at its end. start is what the request says of that, if anything.
func (u *unit) intend(now systemd.Status, target store.Checkpoint, start *bool) {
	u.before = now
	owed := u.a.OwesStart()
	u.plan.Running = owed || !now.Down() && now.Intent() == systemd.Up
	u.plan.Limping = !now.Running()
	if !u.stops() {
		return
	}
	if start == nil && owed {
		start = &owed
	}
	u.plan.Start, u.plan.WhyDown = startsAfter(now, target, start)
	if !u.plan.Start {
		u.warnings.add("%s %s", u.haltedName(), u.plan.WhyDown)
	}
}

// starts reports whether the rollback starts the app at its end.
func (u *unit) starts() bool {
	return u.plan.Start || u.plan.WhyDown == "" && u.plan.Running
}

// settle ends what the daemon had yet to start before the rollback, which has decided whether the app runs.
func (u *unit) settle(ctx context.Context) error {
	if !u.stops() {
		return nil
	}
	if !u.starts() {
		u.a.NoteDown(false)
	}
	return u.apps.EndOwed(ctx, u.a)
}

// isPaused reports whether s is the state of a paused guest.
func isPaused(s systemd.Status) bool { return s.Sub == "paused" }

// bringUp starts the app. If the app has no health check, bringUp watches the unit for a moment.
func (u *unit) bringUp(ctx context.Context) error {
	if err := u.apps.StartUnit(ctx, u.a); err != nil {
		return err
	}
	u.up()
	if u.a.Rec().Health != nil {
		return nil
	}
	return u.staysUp(ctx)
}

// up notes that the unit has started.
func (u *unit) up() {
	if u.before.Running() && !u.halted.IsZero() {
		down := time.Since(u.halted)
		u.down = &down
	}
}

// staysUp watches a unit that says that it has started, and returns an error if it ends soon: many
// programs read their data only then.
func (u *unit) staysUp(ctx context.Context) error {
	first, err := u.status(ctx)
	if err != nil {
		return err
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for over := time.After(u.steady); ; {
		now, err := u.status(ctx)
		if err != nil {
			return err
		}
		if !now.Running() || now.Restarts > first.Restarts {
			return errs.New(errs.Failed, "start "+u.a.Unit().Name(), "it ended soon after its start: %s", cmp.Or(now.Result, now.Active)).
				WithHint("read its output; the app may be unable to start from the state of this checkpoint")
		}
		select {
		case <-tick.C:
		case <-over:
			return nil
		}
	}
}

// startAgain starts the app after an undo, if it was up before the rollback. An app that was not well
// up before may fail to start.
func (u *unit) startAgain(ctx context.Context) error {
	if !u.stops() {
		return nil
	}
	err := u.apps.StartAgain(ctx, u.a, u.plan.Running)
	if err == nil && u.plan.Running {
		u.up()
	}
	if err != nil && u.plan.Limping {
		u.warnings.add("the app was not well up before, and does not start: %v", err)
		return nil
	}
	return err
}
