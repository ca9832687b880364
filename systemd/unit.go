// Package systemd starts and stops units over D-Bus. It also has what a daemon needs to be a unit itself: readiness, the
// watchdog, and the sockets that the manager opened for it.
//
// A [Manager] is one systemd, the system's or a user's. A [Service] waits for jobs and then queries the unit's state. It uses
// signals only to know when to query.
package systemd

import (
	"context"
	"strings"
	"time"

	"mulligan/errs"
)

// Unit is a service that can be started and stopped: a systemd unit, or a
// command that the daemon supervises. Methods are safe for concurrent use.
// Errors are of type *errs.Error, possibly wrapped.
type Unit interface {
	Name() string

	// Start waits until the service is up: until its start job is done, which for Type=notify means that the service reported
	// readiness. If the service is up already, Start returns nil.
	Start(ctx context.Context) error

	// Stop waits until the service is down and all its processes have ended. If the service is down already, Stop returns nil. If
	// ctx ends earlier, the stop continues, and the error names the processes that are left.
	Stop(ctx context.Context) error

	// State returns the present state of the service.
	State(ctx context.Context) (Status, error)
}

// Status is the state of a service.
type Status struct {
	Active   string    // in systemd's words: active, reloading, inactive, failed, activating, deactivating
	Sub      string    // the finer state, which depends on the kind of unit: running, dead, auto-restart, …
	MainPID  int       // 0: none. A pid as the manager sees it
	Restarts int       // automatic ones since it was last started on purpose
	Since    time.Time // when it came into this state; zero: never was in another
	Result   string    // why it last went down: success, exit-code, signal, timeout, watchdog, …
	// Asked reports whether the service is down, or going down, because somebody
	// stopped it.
	Asked bool
}

// Running reports whether the service is up.
func (s Status) Running() bool { return s.Active == "active" || s.Active == "reloading" }

// Down reports whether nothing of the service runs, nor is about to.
func (s Status) Down() bool { return s.Active == "inactive" || s.Active == "failed" }

// Intent is whether a service is meant to be up.
type Intent int

// The intents.
const (
	// Unknown: the service is down, and nothing says whether somebody wanted that.
	Unknown Intent = iota
	// Up: the service runs, is starting, is between two restarts, or failed.
	Up
	// Stopped: somebody stopped the service.
	Stopped
)

// Intent tells from a service's state whether it is meant to be up.
func (s Status) Intent() Intent {
	switch {
	case s.Asked:
		return Stopped
	case !s.Down(), s.Active == "failed", s.Result != "" && s.Result != "success":
		return Up
	}
	return Unknown
}

// kinds are the sorts of unit that make sense as an app.
var kinds = []string{".service", ".target", ".socket", ".timer", ".path"}

// ParseName checks that name is the full name of one unit ("shop.service",
// "shop@1.service") of a kind that can be an app, and returns it. It says
// nothing on whether there is such a unit. The rules are those of systemd.unit(5).
func ParseName(name string) (string, error) {
	const op = "parse unit name"
	kind := ""
	for _, k := range kinds {
		if strings.HasSuffix(name, k) {
			kind = k
		}
	}
	prefix := strings.TrimSuffix(name, kind)
	switch {
	case kind == "":
		return "", errs.New(errs.Invalid, op, "%q is not the name of a unit", name).
			WithHint("give the whole name, like shop.service; known are %s", strings.Join(kinds, " "))
	case prefix == "", strings.HasPrefix(prefix, "@"), len(name) > 255:
		return "", errs.New(errs.Invalid, op, "%q is empty or too long before %s", name, kind)
	case strings.HasSuffix(prefix, "@"):
		return "", errs.New(errs.Invalid, op, "%q is a template", name).
			WithHint("name an instance of it, like %s1%s", prefix, kind)
	case strings.HasPrefix(prefix, "."), strings.HasPrefix(prefix, "-"), strings.Trim(prefix, nameChars) != "":
		return "", errs.New(errs.Invalid, op, "%q has a character that a unit's name can't have there", name).
			WithHint("use letters, digits and : - _ . \\ @, a letter or digit first; see systemd-escape(1)")
	}
	return name, nil
}

const nameChars = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789:-_.\\@"
