package systemdtest

import (
	"os"
	"os/exec"

	"mulligan/testkit/box"
)

// prefix begins the names of an instance's folder and control group.
var prefix = "sdt-"

// possible says why nothing can be booted here, if so.
func possible() (reason string) {
	for _, f := range []string{manager, "/etc/machine-id", libUnits + "/dbus.service"} {
		if !exists(f) {
			return f + " is missing (packages systemd and dbus)"
		}
	}
	for _, tool := range []string{"unshare", "nsenter", "systemctl", "dbus-daemon"} {
		if _, err := exec.LookPath(tool); err != nil {
			return tool + " is missing"
		}
	}
	_, reason = box.Hierarchy()
	return reason
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
