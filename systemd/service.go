package systemd

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/godbus/dbus/v5"

	"mulligan/errs"
)

// leftoverGrace bounds how long Stop waits for processes that a stopped unit leaves behind, as with KillMode=process.
const leftoverGrace = 5 * time.Second

// lookTimeout bounds a query of the unit's state after the caller's context has ended.
const lookTimeout = 3 * time.Second

// Service is a unit of a manager. It implements Unit.
type Service struct {
	m    *Manager
	name string
}

var _ Unit = (*Service)(nil)

// Name is the unit's full name.
func (s *Service) Name() string { return s.name }

// State asks the manager for the unit's state. The error is of kind errs.NotFound if the unit has no file.
func (s *Service) State(ctx context.Context) (Status, error) {
	d, err := s.look(ctx)
	if err != nil {
		return Status{}, s.m.failure("look at", s.name, err)
	}
	return d.Status, nil
}

// Start starts the unit, and its triggers if Stop stopped them. The error is of kind errs.Failed if the unit does not start,
// and errs.Conflict if another stop cancelled the start. Start does not notice that a unit which cannot report when it is ready
// (Type=simple, exec) crashes right afterwards; a health check does.
func (s *Service) Start(ctx context.Context) error {
	if err := s.release(ctx); err != nil {
		return err
	}
	if err := s.forgive(ctx); err != nil {
		return err
	}
	d, result, err := s.run(ctx, "StartUnit")
	if err == nil && !d.Running() && d.Result == "start-limit-hit" {
		// Checkpoints start a unit often. The start limit is meant for crashes.
		if err = s.m.do(ctx, s.reset(ctx)); err == nil {
			d, result, err = s.run(ctx, "StartUnit")
		}
	}
	switch {
	case err != nil && ctx.Err() != nil:
		return s.outOfTime(ctx, "start", "activating")
	case err != nil:
		return s.m.failure("start", s.name, err)
	case d.Running(), d.oneshot && result == "done" && d.Result == "success" && d.conditions:
		return nil
	case result == "canceled":
		return s.error(errs.Conflict, "start", "another systemd job replaced the start; the unit is %s", d.Active).
			WithHint("someone else stops the unit, or a conflicting unit was started: %s", s.m.journal(s.name))
	}
	return s.error(errs.Failed, "start", "%s", d.whyDown(result)).WithHint("%s", s.m.journal(s.name))
}

// forgive resets the failure state of a unit that is down. Without it, the manager refuses for a while to start a unit that
// crashed in a loop.
func (s *Service) forgive(ctx context.Context) error {
	d, err := s.look(ctx)
	if err == nil && d.Down() && d.Result != "" && d.Result != "success" {
		err = s.m.do(ctx, s.reset(ctx))
	}
	if err != nil {
		return s.m.failure("start", s.name, err)
	}
	return nil
}

func (s *Service) reset(ctx context.Context) func(*bus) error {
	return func(b *bus) error { return b.manager(ctx, "ResetFailedUnit", s.name).Err }
}

// Stop stops the unit, also between two automatic restarts. It first stops the sockets, timers and paths that would start the
// unit again. The error is of kind errs.Failed if the unit is not down when ctx ends.
func (s *Service) Stop(ctx context.Context) error {
	if err := s.hold(ctx); err != nil {
		return err
	}
	d, result, err := s.run(ctx, "StopUnit")
	switch {
	case errs.KindOf(err) == errs.NotFound:
		return err
	case err != nil && ctx.Err() != nil:
		return s.outOfTime(ctx, "stop", "deactivating")
	case err != nil:
		return s.m.failure("stop", s.name, err)
	case d.Down():
		return s.leftovers(ctx)
	case result == "canceled":
		return s.error(errs.Conflict, "stop", "another systemd job replaced the stop; the unit is %s", d.Active).
			WithHint("someone else, or another unit, starts it: %s", s.m.journal(s.name))
	}
	return s.error(errs.Failed, "stop", "the unit is %s (%s) after the stop, whose result is %q", d.Active, d.Sub, result).
		WithHint("does a socket, timer or other unit start it again? %s", s.m.journal(s.name))
}

// run has the manager run a job for the unit, and returns the unit's state afterwards with the job's result.
func (s *Service) run(ctx context.Context, method string) (details, string, error) {
	var (
		d      details
		result string
	)
	err := s.m.do(ctx, func(b *bus) (err error) {
		defer s.pin(ctx, b)()
		if result, err = b.job(ctx, method, s.name); err != nil {
			return err
		}
		d, err = s.lookOn(ctx, b)
		return err
	})
	return d, result, err
}

// pin keeps the manager from unloading the unit, and so from forgetting its job's result, until the returned function is
// called. It ignores errors: a caller without this permission may not start units either, and gets that error.
func (s *Service) pin(ctx context.Context, b *bus) func() {
	if b.manager(ctx, "RefUnit", s.name).Err != nil {
		return func() {}
	}
	return func() {
		unref, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookTimeout)
		defer cancel()
		b.manager(unref, "UnrefUnit", s.name) // a lost connection removes the reference too
	}
}

// leftovers waits until a unit that is down has no processes left.
func (s *Service) leftovers(ctx context.Context) error {
	grace, cancel := context.WithTimeout(ctx, leftoverGrace)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		look, done := context.WithTimeout(context.WithoutCancel(ctx), lookTimeout)
		list, err := s.processes(look)
		done()
		if err != nil {
			return s.m.failure("stop", s.name, err)
		}
		if len(list) == 0 {
			return nil
		}
		select {
		case <-tick.C:
		case <-grace.Done():
			return s.error(errs.Failed, "stop", "the unit is down but left processes: %s", describe(list)).
				WithHint("set KillMode=control-group in the unit, or end them: kill %s", pids(list))
		}
	}
}

// outOfTime returns the error for a job that was not complete when ctx ended. The job continues.
func (s *Service) outOfTime(ctx context.Context, op, during string) error {
	if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return &errs.Error{Kind: errs.Unavailable, Op: op + " " + s.name, Message: "the wait was cancelled; systemd goes on with the job", Err: ctx.Err()}
	}
	look, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookTimeout)
	defer cancel()
	d, err := s.look(look)
	if err != nil {
		return s.m.failure(op, s.name, err)
	}
	state := d.Active
	if state == during {
		state = "still " + state
	}
	e := s.error(errs.Failed, op, "%s (%s) at the timeout", state, d.Sub)
	e.Hint = s.m.journal(s.name)
	if op == "stop" {
		list, err := s.processes(look)
		if err == nil && len(list) > 0 {
			e.Message += "; left: " + describe(list)
		}
		e.Hint += fmt.Sprintf("; to end it at once: %s kill --signal=SIGKILL %s", s.m.tool("systemctl"), s.name)
	}
	return e
}

// error returns an error about the unit.
func (s *Service) error(k errs.Kind, op, format string, args ...any) *errs.Error {
	return errs.New(k, op+" "+s.name, format, args...)
}

// details are a Status with the properties that explain it.
type details struct {
	Status
	oneshot    bool
	conditions bool // the conditions in the unit's file held at the last start
	exitCode   int  // CLD_EXITED and so on, of the main process; 0: none ended
	exitStatus int
}

func (s *Service) look(ctx context.Context) (d details, err error) {
	err = s.m.do(ctx, func(b *bus) (err error) {
		d, err = s.lookOn(ctx, b)
		return err
	})
	return d, err
}

func (s *Service) lookOn(ctx context.Context, b *bus) (details, error) {
	var (
		d       details
		load    string
		since   uint64
		left    uint64 // when the unit last left the active state; this and the next two are monotonic
		began   uint64 // when the main process was started last
		ended   uint64 // when it ended
		job     pendingJob
		typ     string
		pid, nr uint32
		code    int32
		status  int32
	)
	path, err := b.load(ctx, s.name)
	if err != nil {
		return d, err
	}
	b.keep(ctx, s.name)
	type property struct {
		iface, name string
		value       any
	}
	list := []property{
		{unitIf, "LoadState", &load}, {unitIf, "ActiveState", &d.Active}, {unitIf, "SubState", &d.Sub},
		{unitIf, "StateChangeTimestamp", &since}, {unitIf, "ConditionResult", &d.conditions},
		{unitIf, "Job", &job}, {unitIf, "ActiveExitTimestampMonotonic", &left},
	}
	if strings.HasSuffix(s.name, ".service") {
		list = append(list, property{serviceIf, "Type", &typ}, property{serviceIf, "MainPID", &pid},
			property{serviceIf, "NRestarts", &nr}, property{serviceIf, "Result", &d.Result},
			property{serviceIf, "ExecMainCode", &code}, property{serviceIf, "ExecMainStatus", &status},
			property{serviceIf, "ExecMainStartTimestampMonotonic", &began}, property{serviceIf, "ExecMainExitTimestampMonotonic", &ended})
	}
	for _, p := range list {
		if err := b.get(ctx, path, p.iface, p.name, p.value); err != nil {
			return d, err
		}
	}
	if load == "not-found" {
		return d, s.error(errs.NotFound, "look at", "there is no such unit").
			WithHint("is it installed? %s list-unit-files", s.m.tool("systemctl"))
	}
	if since > 0 {
		d.Since = time.UnixMicro(int64(since))
	}
	d.oneshot, d.MainPID, d.Restarts = typ == "oneshot", int(pid), int(nr)
	d.exitCode, d.exitStatus = int(code), int(status)
	switch {
	case d.Active == "deactivating":
		d.Asked = b.stopping(ctx, job)
	case d.Down() && began > 0 && d.Result != "watchdog":
		// If the process ends by itself, the unit goes down afterwards. If somebody stops the unit, the unit leaves the active state
		// first, and then the process ends.
		d.Asked = began <= left && (left < ended || d.oneshot)
	}
	return d, nil
}

// whyDown returns the reason why a unit is not up after a start whose job had this result.
func (d details) whyDown(result string) string {
	if result == "done" && d.Active == "inactive" && !d.conditions {
		return "a condition in its unit file does not hold"
	}
	parts := []string{"the job's result is " + result, "the unit is " + d.Active}
	if d.Result != "" {
		parts = append(parts, "its result "+d.Result)
	}
	switch d.exitCode { // see waitid(2)
	case 1:
		parts = append(parts, "exit status "+strconv.Itoa(d.exitStatus))
	case 2, 3:
		parts = append(parts, fmt.Sprintf("killed by signal %d (%s)", d.exitStatus, syscall.Signal(d.exitStatus)))
	}
	return strings.Join(parts, ", ")
}

// process is a process of a unit, in the manager's terms.
type process struct {
	Cgroup  string
	PID     uint32
	Command string
}

// processes lists the processes in the unit's control group.
func (s *Service) processes(ctx context.Context) (list []process, err error) {
	err = s.m.do(ctx, func(b *bus) error {
		err := b.manager(ctx, "GetUnitProcesses", s.name).Store(&list)
		var de dbus.Error
		if errors.As(err, &de) && kindOf(de.Name) == errs.NotFound {
			return nil // the unit is not loaded any more
		}
		return err
	})
	return list, err
}

// describe names processes, at most five of them.
func describe(list []process) string {
	var parts []string
	for i, p := range list {
		if i == 5 {
			parts = append(parts, fmt.Sprintf("and %d more", len(list)-i))
			break
		}
		cmd, _, _ := strings.Cut(p.Command, "\n")
		if r := []rune(cmd); len(r) > 60 {
			cmd = string(r[:60]) + "…"
		}
		parts = append(parts, fmt.Sprintf("pid %d (%s)", p.PID, cmd))
	}
	return strings.Join(parts, ", ")
}

func pids(list []process) string {
	var parts []string
	for _, p := range list {
		parts = append(parts, strconv.Itoa(int(p.PID)))
	}
	return strings.Join(parts, " ")
}
