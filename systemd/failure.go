package systemd

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/godbus/dbus/v5"

	"mulligan/errs"
)

// failure returns err, the error of a call about unit, as an *errs.Error. unit may be empty.
func (m *Manager) failure(op, unit string, err error) error {
	var known *errs.Error
	if errors.As(err, &known) {
		return err
	}
	if unit != "" {
		op += " " + unit
	}
	if isContext(err) {
		return &errs.Error{Kind: errs.Unavailable, Op: op, Message: "cancelled while waiting for systemd", Err: err}
	}
	var de dbus.Error
	if !errors.As(err, &de) {
		return &errs.Error{Kind: errs.Unavailable, Op: op, Message: "systemd does not answer", Hint: m.reachHint(), Err: oneLine{err}}
	}
	e := &errs.Error{Kind: kindOf(de.Name), Op: op, Message: text(de)}
	switch e.Kind {
	case errs.NotFound:
		e.Hint = fmt.Sprintf("is the unit installed? %s cat %s", m.tool("systemctl"), unit)
	case errs.Denied:
		e.Hint = "run as root, or let polkit allow org.freedesktop.systemd1.manage-units"
	case errs.Unavailable:
		e.Hint = m.reachHint()
	case errs.Failed:
		if de.Name == errMasked {
			e.Hint = fmt.Sprintf("%s unmask %s", m.tool("systemctl"), unit)
		} else {
			e.Hint = m.journal(unit)
		}
	}
	return e
}

const errMasked = "org.freedesktop.systemd1.UnitMasked"

// kindOf returns the kind that belongs to the name of a D-Bus error; see sd-bus-errors(3) and bus-common-errors.h in systemd.
func kindOf(name string) errs.Kind {
	switch name {
	case "org.freedesktop.systemd1.NoSuchUnit":
		return errs.NotFound
	case "org.freedesktop.DBus.Error.AccessDenied", "org.freedesktop.DBus.Error.AuthFailed",
		"org.freedesktop.DBus.Error.InteractiveAuthorizationRequired":
		return errs.Denied
	case "org.freedesktop.DBus.Error.InvalidArgs":
		return errs.Invalid
	case "org.freedesktop.DBus.Error.NoReply", "org.freedesktop.DBus.Error.Disconnected",
		"org.freedesktop.DBus.Error.Timeout", "org.freedesktop.DBus.Error.NoServer",
		"org.freedesktop.DBus.Error.ServiceUnknown", "org.freedesktop.DBus.Error.NameHasNoOwner",
		"org.freedesktop.DBus.Error.LimitsExceeded":
		return errs.Unavailable
	}
	switch {
	case strings.HasPrefix(name, "org.freedesktop.PolicyKit1.Error."):
		return errs.Denied
	case strings.HasPrefix(name, "org.freedesktop.DBus.Error.Spawn."):
		return errs.Unavailable
	}
	return errs.Failed
}

// text returns the message of a D-Bus error in the form of this program's messages: one line without a full stop.
func text(e dbus.Error) string {
	if len(e.Body) > 0 {
		if s, ok := e.Body[0].(string); ok {
			return strings.TrimSuffix(strings.ReplaceAll(s, "\n", " "), ".")
		}
	}
	return e.Name
}

// oneLine is an error whose message is on one line.
type oneLine struct{ error }

func (o oneLine) Error() string { return strings.ReplaceAll(o.error.Error(), "\n", "; ") }
func (o oneLine) Unwrap() error { return o.error }

func isContext(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// tool is the command line of a systemd program for this manager.
func (m *Manager) tool(name string) string {
	if m.opts.User {
		return name + " --user"
	}
	return name
}

func (m *Manager) journal(unit string) string {
	if unit == "" {
		return m.tool("journalctl") + " -e"
	}
	return m.tool("journalctl") + " -u " + unit
}

func (m *Manager) reachHint() string {
	if m.opts.User {
		return "is a user manager running (loginctl enable-linger), and XDG_RUNTIME_DIR set? An app can have a run command instead of a unit"
	}
	return "does systemd run this host, and dbus? An app can have a run command instead of a unit"
}
