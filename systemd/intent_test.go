package systemd_test

import (
	"testing"

	"mulligan/systemd"
)

// TestIntent tells units that somebody stopped from those that failed, that ended by
// themselves, and that are between two states.
func TestIntent(t *testing.T) {
	_, h, m := setup(t)
	units := map[string]string{
		"never.service":  "[Service]\nExecStart=/bin/sleep 1000\n",
		"plain.service":  "[Service]\nExecStart=/bin/sleep 1000\n",
		"rude.service":   "[Service]\nType=notify\nNotifyAccess=all\nExecStart=/bin/sh -c 'trap \"exit 143\" TERM; systemd-notify --ready; while :; do sleep 0.05; done'\nSuccessExitStatus=0\n",
		"ends.service":   "[Service]\nExecStart=/bin/true\n",
		"loops.service":  "[Unit]\nStartLimitBurst=3\nStartLimitIntervalSec=600\n[Service]\nRestart=on-failure\nRestartSec=1ms\nExecStart=/bin/sh -c 'exit 3'\n",
		"waits.service":  "[Service]\nRestart=on-failure\nRestartSec=600\nExecStart=/bin/sh -c 'exit 3'\n",
		"slow.service":   "[Service]\nType=notify\nNotifyAccess=all\nExecStart=/bin/sh -c 'trap \"\" TERM; systemd-notify --ready; while :; do sleep 0.05; done'\nTimeoutStopSec=600\n",
		"dies.service":   "[Service]\nExecStart=/bin/sh -c 'exit 3'\nExecStopPost=/bin/sleep 600\n",
		"again.service":  "[Service]\nExecStart=/bin/sleep 1000\n",
		"remain.service": "[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=/bin/true\n",
	}
	for name, text := range units {
		h.WriteUnit(t, name, text)
	}
	exec := func(args ...string) {
		t.Helper()
		if out, err := h.Exec(append([]string{"systemctl"}, args...)...); err != nil {
			t.Fatalf("systemctl %q: %v\n%s", args, err, out)
		}
	}
	for name := range units { // as a daemon has done that knows them
		state(t, m.Unit(name))
		if name != "never.service" {
			exec("start", "--no-block", name)
		}
	}
	up := func(s systemd.Status) bool { return s.Active == "active" } // those that notify have set their traps then
	for _, name := range []string{"plain.service", "rude.service", "slow.service", "again.service", "remain.service"} {
		until(t, m.Unit(name), "up", up)
	}
	exec("stop", "plain.service", "rude.service", "remain.service")
	exec("stop", "--no-block", "slow.service")
	exec("restart", "again.service")
	exec("kill", "-s", "KILL", "again.service")
	for _, c := range []struct {
		name, active string
		want         systemd.Intent
	}{
		{"never.service", "inactive", systemd.Unknown}, {"plain.service", "inactive", systemd.Stopped}, {"rude.service", "failed", systemd.Stopped},
		{"ends.service", "inactive", systemd.Unknown}, {"loops.service", "failed", systemd.Up}, {"waits.service", "activating", systemd.Up},
		{"slow.service", "deactivating", systemd.Stopped}, {"dies.service", "deactivating", systemd.Up}, {"again.service", "failed", systemd.Up},
		{"remain.service", "inactive", systemd.Stopped},
	} {
		s := until(t, m.Unit(c.name), c.active, func(s systemd.Status) bool { return s.Active == c.active })
		if got := s.Intent(); got != c.want {
			t.Errorf("%s: intent %v, want %v: %+v", c.name, got, c.want, s)
		}
	}
	exec("kill", "-s", "KILL", "slow.service")
}
