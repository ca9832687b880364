package systemd

import (
	"context"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	"mulligan/errs"
)

// Notify sends a state of sd_notify(3) to the manager that started this process. If no manager did, Notify does nothing.
func Notify(state string) error {
	if _, err := daemon.SdNotify(false, state); err != nil {
		return errs.Wrap(errs.Unavailable, "notify systemd", err)
	}
	return nil
}

// Ready tells the manager that the start-up is complete.
func Ready() error { return Notify(daemon.SdNotifyReady) }

// Stopping tells the manager that this process is shutting down.
func Stopping() error { return Notify(daemon.SdNotifyStopping) }

// ReportStatus sets the status line that systemctl status shows.
func ReportStatus(text string) error {
	return Notify("STATUS=" + strings.ReplaceAll(text, "\n", " "))
}

// Watchdog pings the manager's watchdog at half of its interval until ctx ends, each time after alive returned nil. It returns
// at once if the unit has no watchdog. If alive fails, Watchdog sends no ping and calls it again after the next half interval;
// the manager acts if the whole interval passes without a ping.
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
