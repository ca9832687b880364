package systemd

import (
	"context"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	"mulligan/errs"
)

// Notify tells the manager that started this process something about it, in
// the words of sd_notify(3). Without such a manager it does nothing.
func Notify(state string) error {
	if _, err := daemon.SdNotify(false, state); err != nil {
		return errs.Wrap(errs.Unavailable, "notify systemd", err)
	}
	return nil
}

// Ready says that start-up is over.
func Ready() error { return Notify(daemon.SdNotifyReady) }

// Stopping says that the end has begun.
func Stopping() error { return Notify(daemon.SdNotifyStopping) }

// ReportStatus sets the line that systemctl status shows.
func ReportStatus(text string) error {
	return Notify("STATUS=" + strings.ReplaceAll(text, "\n", " "))
}

// Watchdog pings the manager's watchdog at half of its interval as long as
// alive returns nil, until ctx ends. Where the unit has no watchdog it returns
// at once. A failing alive is asked again at the next turn; the manager acts
// when none succeeded within the interval.
func Watchdog(ctx context.Context, alive func() error) error {
	interval, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		return errs.Wrap(errs.Invalid, "watchdog", err)
	}
	if interval == 0 {
		return nil
	}
	tick := time.NewTicker(interval / 2)
	defer tick.Stop()
	for {
		if alive() == nil {
			if err := Notify(daemon.SdNotifyWatchdog); err != nil {
				return err
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}
