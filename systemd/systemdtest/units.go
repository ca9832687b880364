package systemdtest

import (
	"os"
	"path/filepath"
)

const (
	manager  = "/lib/systemd/systemd"
	libUnits = "/lib/systemd/system"
)

// borrowed are the host's unit files that the manager sees: nothing that touches
// hardware, mounts, terminals, clocks, or the host's own services.
var borrowed = []string{
	"sysinit.target", "basic.target", "multi-user.target", "sockets.target", "paths.target", "timers.target",
	"slices.target", "local-fs.target", "network.target", "network-online.target", "shutdown.target",
	"umount.target", "final.target", "exit.target", "reboot.target", "poweroff.target", "halt.target",
	"rescue.target", "emergency.target", "systemd-exit.service", "systemd-reboot.service",
	"systemd-poweroff.service", "systemd-halt.service", "dbus.service", "dbus.socket",
	"systemd-journald.service", "systemd-journald.socket", "systemd-journald-dev-log.socket",
	"systemd-journald@.service", "systemd-journald@.socket",
}

// wanted are the units that are started at boot.
var wanted = []string{
	"sockets.target.wants/dbus.socket", "multi-user.target.wants/dbus.service",
	"sysinit.target.wants/systemd-journald.service",
	"sockets.target.wants/systemd-journald.socket", "sockets.target.wants/systemd-journald-dev-log.socket",
}

// writeLib fills dir, the lowest folder of the manager's unit path.
func writeLib(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, name := range borrowed {
		text, err := os.ReadFile(filepath.Join(libUnits, name))
		if os.IsNotExist(err) {
			continue
		}
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			return err
		}
	}
	for _, link := range wanted {
		link = filepath.Join(dir, link)
		if err := os.MkdirAll(filepath.Dir(link), 0o755); err != nil {
			return err
		}
		if err := os.Symlink("../"+filepath.Base(link), link); err != nil {
			return err
		}
	}
	return nil
}
