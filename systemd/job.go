package systemd

import (
	"context"
	"errors"
	"time"

	"github.com/godbus/dbus/v5"
)

// recheck is the interval at which a waiter asks for its job. The signal of the job's end never comes if the manager
// re-executes itself meanwhile.
const recheck = 2 * time.Second

// jobGone is the result of a job whose end was not signalled.
const jobGone = "gone"

// errLost means that the connection broke. Whether the manager carried out the request is not known.
var errLost = errors.New("the connection to the bus was lost")

// jobWait collects the results of jobs. It begins before a job is requested, because the job may end before its name is known.
// Guarded by bus.mu.
type jobWait struct {
	results map[dbus.ObjectPath]string
	cue     chan struct{} // has room for one value, sent when results changes
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

// pendingJob is the property Job of a unit. An ID of 0 means that there is no job.
type pendingJob struct {
	ID   uint32
	Path dbus.ObjectPath
}

// stopping reports whether the job stops the unit.
func (b *bus) stopping(ctx context.Context, job pendingJob) bool {
	var typ string
	return job.ID != 0 && b.get(ctx, job.Path, "org.freedesktop.systemd1.Job", "JobType", &typ) == nil && typ == "stop"
}

// pending reports whether the manager still has the job. It also returns true if it could not find out, because the caller asks
// again.
func (b *bus) pending(ctx context.Context, job dbus.ObjectPath) bool {
	var state string
	err := b.get(ctx, job, "org.freedesktop.systemd1.Job", "State", &state)
	var de dbus.Error
	return !errors.As(err, &de) || de.Name != "org.freedesktop.DBus.Error.UnknownObject"
}
