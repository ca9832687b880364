package launch

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"mulligan/durable"
	"mulligan/errs"
)

// Unit is the name of the unit with which a user's service manager runs the user's daemon.
const Unit = "mulligand.service"

// writtenBy begins the units that Enable writes.
const writtenBy = "# Written by mulligan init."

// unitText is the unit; the daemon's program and the environment are put in.
const unitText = writtenBy + ` To take it back: systemctl --user disable --now mulligand, and remove this file.
[Unit]
Description=mulligan: checkpoints of your apps, and the way back to them
# A daemon that cannot start is never given up: it starts once what is wrong is put right.
StartLimitIntervalSec=0

[Service]
Type=notify
@ENVIRONMENT@ExecStart=@PROGRAM@ --user
Restart=on-failure
RestartSec=3
# A clean stop waits for the operation under way; what a kill cuts short, the next start finishes or undoes.
TimeoutStopSec=90
TimeoutStartSec=infinity
# Commands that the daemon supervises outlive a crash of it: the next start takes them over.
KillMode=process
# A supervised command that runs out of memory is ended alone: the daemon goes on.
OOMPolicy=continue

[Install]
WantedBy=default.target
`

const opLogin = "start the daemon at login"

// managerTimeout bounds a call of the user's service manager, besides starts: a manager that hangs holds up no command.
const managerTimeout = 5 * time.Second

// usual reports whether the daemon is the user's usual one: one at a socket or with a state folder of its own is nobody's default.
func (l Launcher) usual() bool {
	return l.Socket == "" && os.Getenv("MULLIGAN_SOCKET") == "" && os.Getenv("MULLIGAN_STATE_DIR") == ""
}

// AtLogin reports whether the user's service manager can start the usual daemon at every login: there is one, and it does not so far.
func (l Launcher) AtLogin(ctx context.Context) bool {
	if !l.usual() {
		return false
	}
	path, err := unitPath()
	if err != nil {
		return false
	}
	if _, err := os.Lstat(path); err == nil {
		return false
	}
	_, err = manager(ctx, "show-environment")
	return err == nil
}

// Enable has the user's service manager start the daemon at every login. It starts none now.
func (l Launcher) Enable(ctx context.Context) error {
	program, err := findDaemon()
	if err != nil {
		return err
	}
	path, err := unitPath()
	if err == nil {
		err = os.MkdirAll(filepath.Dir(path), 0o755)
	}
	if err != nil {
		return errs.Wrap(errs.Failed, opLogin, err)
	}
	environment := ""
	if dir := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		environment = "Environment=" + quote("XDG_STATE_HOME="+dir) + "\n"
	}
	text := strings.NewReplacer("@ENVIRONMENT@", environment, "@PROGRAM@", quote(Lasting("mulligand", program))).Replace(unitText)
	if err := durable.WriteFile(path, []byte(text), 0o644); err != nil {
		return errs.Wrap(errs.Failed, opLogin, err)
	}
	for _, args := range [][]string{{"daemon-reload"}, {"enable", Unit}} {
		if _, err := manager(ctx, args...); err != nil {
			os.Remove(path) // else the next init would take it for done
			return errs.Wrap(errs.Failed, opLogin, err)
		}
	}
	return nil
}

// execStart finds the program, quoted, in a unit that Enable wrote.
var execStart = regexp.MustCompile(`(?m)^ExecStart="(.+)" --user$`)

// Renew has the unit that Enable wrote name the present mulligand by its path in PATH, if it names it by another path.
func (l Launcher) Renew(ctx context.Context) error {
	_, err := l.renew(ctx, func(named, program string) bool { return named == program })
	return err
}

// renew has the unit that Enable wrote name the program that this mulligan would start, if old says so of the one that it names, and reports whether
// it did. The rest of the unit, and a unit that somebody else wrote, stay as they are, and so does all where no manager answers: in a container that
// shares the home folder, the unit is the host's.
func (l Launcher) renew(ctx context.Context, old func(named, program string) bool) (bool, error) {
	if !l.usual() {
		return false, nil
	}
	path, err := unitPath()
	if err != nil {
		return false, nil
	}
	text, err := os.ReadFile(path)
	found := execStart.FindSubmatchIndex(text)
	if err != nil || !bytes.HasPrefix(text, []byte(writtenBy)) || found == nil {
		return false, nil
	}
	program, err := findDaemon()
	if err != nil {
		return false, err
	}
	named, lasting := unquote(string(text[found[2]:found[3]])), Lasting("mulligand", program)
	if named == lasting || !old(named, program) {
		return false, nil
	}
	if _, err := manager(ctx, "show-environment"); err != nil {
		return false, nil
	}
	renewed := slices.Concat(text[:found[2]-1], []byte(quote(lasting)), text[found[3]+1:])
	err = durable.WriteFile(path, renewed, 0o644)
	if err == nil {
		if _, err = manager(ctx, "daemon-reload"); err != nil {
			_ = durable.WriteFile(path, text, 0o644) // else it would be taken for done the next time
		}
	}
	return err == nil, errs.Wrap(errs.Failed, opLogin, err)
}

// startUnit has the service manager start the daemon if that is its work, and reports whether the daemon was started. Where no manager
// answers, as in a container that shares the home folder, or the unit fails, it reports false: the daemon is then started without it.
// A unit fails whose program is gone, as after an update that put it into another folder. It is renewed only then: in a container that shares the
// host's manager, a program can be missing that the manager has.
func (l Launcher) startUnit(ctx context.Context) bool {
	path, err := unitPath()
	if err != nil {
		return false
	}
	if _, err := os.Lstat(path); err != nil {
		return false
	}
	if _, err := manager(ctx, "show-environment"); err != nil {
		return false
	}
	if _, err := manager(ctx, "is-enabled", Unit); err != nil {
		return false // somebody switched it off
	}
	_ = l.Renew(ctx) // if that fails, the unit starts as it is
	if startEnabled(ctx) {
		return true
	}
	renewed, _ := l.renew(ctx, func(named, _ string) bool { // if that fails, the daemon is started without the unit
		_, err := os.Stat(named)
		return errors.Is(err, fs.ErrNotExist)
	})
	return renewed && startEnabled(ctx)
}

// startEnabled has the service manager start the unit, and reports whether it did.
func startEnabled(ctx context.Context) bool {
	short, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	_, err := run(short, "start", Unit)
	if err != nil && short.Err() == nil {
		_, _ = manager(ctx, "stop", Unit) // else it is tried again and again, beside the daemon that is started without it
	}
	return err == nil
}

func unitPath() (string, error) {
	dir := os.Getenv("XDG_CONFIG_HOME")
	if !filepath.IsAbs(dir) {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", err
		}
		dir = filepath.Join(home, ".config")
	}
	return filepath.Join(dir, "systemd", "user", Unit), nil
}

// manager asks the user's service manager something that is answered at once.
func manager(ctx context.Context, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, managerTimeout)
	defer cancel()
	return run(ctx, args...)
}

func run(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "systemctl", append([]string{"--user", "--no-pager"}, args...)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil && stderr.Len() > 0 {
		err = errs.New(errs.Failed, "systemctl --user "+args[0], "%s", strings.TrimSpace(stderr.String()))
	}
	return string(out), err
}

// quote writes a word as systemd reads it in a unit: its specifiers are not expanded.
func quote(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "%", "%%").Replace(s) + `"`
}

// unquote returns the word that quote wrote between its quotes.
func unquote(s string) string { return strings.NewReplacer(`\\`, `\`, `\"`, `"`, "%%", "%").Replace(s) }
