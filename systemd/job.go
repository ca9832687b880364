package systemd

import (
	"context"
	"errors"
	"time"

	"github.com/godbus/dbus/v5"
)

// recheck is how often a waiter looks for its job itself, for the case that
// the signal of its end never comes (the manager was executed anew).
const recheck = 2 * time.Second

// jobGone is the result of a job that ended without telling.
const jobGone = "gone"

// errLost means that the connection broke; what was asked for may be done or not.
var errLost = errors.New("the connection to the bus was lost")

// jobWait gathers the ends of jobs from before a job is asked for, since a job
// may end before the answer with its name is read. Guarded by bus.mu.
type jobWait struct {
	results map[dbus.ObjectPath]string
	cue     chan struct{} // one place: there is news in results
}

func (w *jobWait) removed(job dbus.ObjectPath, result string) {
	w.results[job] = result
	select {
	case w.cue <- struct{}{}:
	default:
	}
}

func (b *bus) result(w *jobWait, job dbus.ObjectPath) (string, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	r, ok := w.results[job]
	return r, ok
}

// job calls a method that enqueues a job for unit (StartUnit, StopUnit) and
// waits for the job's end. It returns the result as systemd has it: done,
// canceled, timeout, failed, dependency, skipped, or jobGone.
func (b *bus) job(ctx context.Context, method, unit string) (string, error) {
	w := &jobWait{results: map[dbus.ObjectPath]string{}, cue: make(chan struct{}, 1)}
	b.mu.Lock()
	b.waits[w] = struct{}{}
	b.mu.Unlock()
	defer func() {
		b.mu.Lock()
		delete(b.waits, w)
		b.mu.Unlock()
	}()

	var job dbus.ObjectPath
	if err := b.manager(ctx, method, unit, "replace").Store(&job); err != nil {
		return "", err
	}
	tick := time.NewTicker(recheck)
	defer tick.Stop()
	for {
		if r, ok := b.result(w, job); ok {
			return r, nil
		}
		select {
		case <-w.cue:
		case <-tick.C:
			if !b.pending(ctx, job) {
				if r, ok := b.result(w, job); ok {
					return r, nil
				}
				return jobGone, nil
			}
		case <-b.conn.Context().Done():
			return "", errLost
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}
}

// pendingJob is a unit's property Job: what the manager is about to do with it. ID 0
// is nothing.
type pendingJob struct {
	ID   uint32
	Path dbus.ObjectPath
}

// stopping reports whether the job is somebody's stop.
func (b *bus) stopping(ctx context.Context, job pendingJob) bool {
	var typ string
	return job.ID != 0 && b.get(ctx, job.Path, "org.freedesktop.systemd1.Job", "JobType", &typ) == nil && typ == "stop"
}

// pending reports whether the manager still has the job. An error other than
// its plain absence counts as yes: there will be another look.
func (b *bus) pending(ctx context.Context, job dbus.ObjectPath) bool {
	var state string
	err := b.get(ctx, job, "org.freedesktop.systemd1.Job", "State", &state)
	var de dbus.Error
	return !errors.As(err, &de) || de.Name != "org.freedesktop.DBus.Error.UnknownObject"
}
