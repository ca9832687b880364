package systemdtest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mulligan/testkit"
)

// User is a user's manager (systemd --user) inside a Host. Its user is the one
// who runs the test, so that the test may use its bus.
type User struct {
	Address    string // of the user's bus
	UnitDir    string
	RuntimeDir string // XDG_RUNTIME_DIR, as the test's process sees it
}

// userDir is the runtime folder inside; it is root's, as Boot demands root.
const userDir = "/run/user/0"

// userUnits are the host's unit files that the user's manager sees.
var userUnits = []string{"basic.target", "default.target", "sockets.target", "paths.target", "timers.target",
	"shutdown.target", "exit.target", "systemd-exit.service", "app.slice", "session.slice", "dbus.socket", "dbus.service"}

const userService = `[Service]
Type=notify
Delegate=yes
KillMode=mixed
Environment=XDG_RUNTIME_DIR=` + userDir + ` DBUS_SESSION_BUS_ADDRESS=unix:path=` + userDir + `/bus HOME=` + userDir + `/home
Environment=SYSTEMD_UNIT_PATH=` + userDir + `/units:` + userDir + `/lib SYSTEMD_GENERATOR_PATH=` + userDir + `/none
ExecStart=` + manager + ` --user
`

// StartUser starts the user's manager, which ends with the Host. The host
// needs a bus for users; see testkit.Need.
func (h *Host) StartUser(t testing.TB) *User {
	t.Helper()
	const lib = "/usr/lib/systemd/user"
	testkit.Need(t, "user-bus")
	dir := filepath.Join(h.RunDir, strings.TrimPrefix(userDir, "/run/"))
	u := &User{Address: "unix:path=" + dir + "/bus", UnitDir: dir + "/units", RuntimeDir: dir}
	for _, d := range []string{u.UnitDir, dir + "/home", dir + "/lib/sockets.target.wants"} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range userUnits {
		text, err := os.ReadFile(filepath.Join(lib, name))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, "lib", name), text, 0o644)
		}
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("../dbus.socket", dir+"/lib/sockets.target.wants/dbus.socket"); err != nil {
		t.Fatal(err)
	}
	h.WriteUnit(t, "mulligan-test-user.service", userService)
	if out, err := h.Exec("systemctl", "start", "mulligan-test-user.service"); err != nil {
		t.Fatalf("start the user's manager: %v: %s\n%s", err, out, h.Journal("mulligan-test-user.service"))
	}
	return u
}

// WriteUnit writes a unit file; the manager reads it when it is told to reload,
// or when it first hears of the unit.
func (u *User) WriteUnit(t testing.TB, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(u.UnitDir, name), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}
