package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mulligan/systemd/systemdtest"
)

// TestStartsAtLogin has a user's systemd start the user's daemon: because init asked it to, with a command after a stop, and by itself
// at the next login.
func TestStartsAtLogin(t *testing.T) {
	t.Parallel()
	h := systemdtest.Boot(t)
	user := h.StartUser(t)
	// The manager of the test reads its units from one folder, which is the user's here.
	home := filepath.Join(user.RuntimeDir, "home")
	if err := os.MkdirAll(filepath.Join(home, ".config/systemd"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("../../../units", filepath.Join(home, ".config/systemd/user")); err != nil {
		t.Fatal(err)
	}
	work := t.TempDir()
	for _, name := range []string{"shop", "blog"} {
		if err := os.Mkdir(filepath.Join(work, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	// The programs are in a folder of their version, and PATH has links to them.
	shell(t, work, `mkdir v1 bin; cp "$1/mulligan" "$1/mulligand" v1; ln -s ../v1/mulligan ../v1/mulligand bin`, bin)
	client := filepath.Join(work, "bin", "mulligan")
	inside := func(dir, script string) (string, error) {
		out, err := h.Exec("sh", "-c", `export PATH="$(dirname "$2"):$PATH" XDG_RUNTIME_DIR=/run/user/0 HOME=/run/user/0/home DBUS_SESSION_BUS_ADDRESS=unix:path=/run/user/0/bus
			unset MULLIGAN_SOCKET MULLIGAN_STATE_DIR XDG_STATE_HOME XDG_CONFIG_HOME; cd "$1" || exit; `+
			strings.ReplaceAll(script, "mulligan ", `"$2" `), "sh", dir, client)
		return strings.TrimSpace(string(out)), err
	}
	want := func(script, line string) {
		t.Helper()
		if got, err := inside(filepath.Join(work, "shop"), script); err != nil || !strings.Contains("\n"+got+"\n", "\n"+line+"\n") {
			t.Fatalf("%s: %v, without %q:\n%s\n%s", script, err, line, got, h.Journal("mulligan-test-user.service"))
		}
	}
	const state = `systemctl --user is-enabled mulligand; systemctl --user is-active mulligand` // "runtime", as its folder is in /run

	want(`mulligan init --yes --login 2>&1`, "result\tadded")
	want(state, "enabled-runtime\nactive")
	shell(t, work, `mv v1 v2; ln -sf ../v2/mulligan ../v2/mulligand bin`) // an update
	want(`systemctl --user stop mulligand && mulligan status >/dev/null && `+state, "enabled-runtime\nactive")
	if _, err := h.Exec("systemctl", "restart", "mulligan-test-user.service"); err != nil {
		t.Fatalf("log in anew: %v\n%s", err, h.Journal("mulligan-test-user.service"))
	}
	want(`systemctl --user start default.target; systemctl --user is-active mulligand`, "active") // the login's end; the daemon is a part of it
	want(`mulligan app list | cut -f1`, "shop")

	// A unit that names the folder of a version is renewed: by init, and, if the folder is gone, with the next start. Another one is left alone.
	const program = `sed -n 's/^ExecStart=//p' ~/.config/systemd/user/mulligand.service`
	names := func(dir string) string { return `"` + filepath.Join(dir, "mulligand") + `" --user` }
	name := func(dir string) {
		t.Helper()
		want(`sed -i 's,^ExecStart=.*,ExecStart=`+names(dir)+`,' ~/.config/systemd/user/mulligand.service && systemctl --user daemon-reload && echo ok`, "ok")
	}
	name(filepath.Join(work, "v2"))
	want(`mkdir ../wiki && mulligan init ../wiki --yes >/dev/null && `+program, names(filepath.Join(work, "bin")))
	name(filepath.Join(work, "v1"))
	want(`systemctl --user stop mulligand && mulligan status >/dev/null && `+state+` && `+program, "enabled-runtime\nactive\n"+names(filepath.Join(work, "bin")))
	name(bin) // another one, which is there
	want(`mkdir ../notes && mulligan init ../notes --yes >/dev/null && `+program, names(bin))

	// A container that shares the home folder leaves the unit of the host as it is: one where no manager answers, and one that shares the bus, and so the
	// host's manager, and lacks the program that the host has.
	want(`mkdir -p /run/user/0/other/run /run/user/0/other/.config/systemd/user ../other && unset DBUS_SESSION_BUS_ADDRESS &&
		sed 's,^ExecStart=.*,ExecStart="/gone/mulligand" --user,' ~/.config/systemd/user/mulligand.service >/run/user/0/other/.config/systemd/user/mulligand.service &&
		export HOME=/run/user/0/other XDG_RUNTIME_DIR=/run/user/0/other/run && mulligan init ../other --yes >/dev/null && `+program, `"/gone/mulligand" --user`)
	shell(t, work, `cp -r v2 v3`)
	name(filepath.Join(work, "v3"))
	want(`mkdir ../plans && unshare -m sh -c 'mount -t tmpfs tmpfs ../v3 && "$0" init ../plans --yes' "$2" >/dev/null && `+program, names(filepath.Join(work, "v3")))
	want(`systemctl --user stop mulligand && unshare -m sh -c 'mount -t tmpfs tmpfs ../v3 && "$0" status' "$2" >/dev/null && `+state+` && `+program,
		"enabled-runtime\nactive\n"+names(filepath.Join(work, "v3")))
	name(bin)

	// A daemon that cannot start at a login does so once it can, however often it was tried.
	want(`systemctl --user stop mulligand; sed -i 's,^RestartSec=.*,RestartSec=20ms,' ~/.config/systemd/user/mulligand.service; systemctl --user daemon-reload
		cd ~/.local/state/mulligan/ && mv mulligan.db moved.db && mkdir mulligan.db && systemctl --user start --no-block mulligand && echo ok`, "ok")
	becomes := func(script, line string) {
		t.Helper()
		eventually(t, script+" says "+line, func() bool {
			out, err := inside(work, script)
			return err == nil && out == line
		})
	}
	becomes(`test $(systemctl --user show -p NRestarts --value mulligand) -gt 5 && echo ok`, "ok")
	want(`cd ~/.local/state/mulligan/ && rmdir mulligan.db && mv moved.db mulligan.db && echo ok`, "ok")
	becomes(`systemctl --user is-active mulligand`, "active")

	out, err := inside(filepath.Join(work, "blog"), `mulligan init --yes --login 2>&1`)
	if err == nil || !strings.Contains(out, "starts your daemon at login already") {
		t.Errorf("a second time: %v %s", err, out)
	}
	if out, err = inside(filepath.Join(work, "blog"), `mulligan init --yes 2>&1`); err != nil || !strings.Contains(out, "result\tadded") {
		t.Errorf("a second app: %v %s", err, out)
	}

	// A unit that fails keeps nobody from the daemon: the command starts it as a process. The unit does not start a second one later.
	want(`systemctl --user stop mulligand; sed -i 's,^ExecStart=.*,ExecStart=/nowhere/mulligand,' ~/.config/systemd/user/mulligand.service
		systemctl --user daemon-reload; mulligan app list | cut -f1; case $(systemctl --user is-active mulligand) in inactive | failed) echo stopped ;; esac`, "wiki\nstopped")
}
