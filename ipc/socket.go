package ipc

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"mulligan/errs"
)

// HostSocket is the socket of the host's daemon, which root runs.
const HostSocket = "/run/mulligan/mulligan.sock"

// ErrNoDaemon is wrapped by every error which means that no daemon listens.
var ErrNoDaemon = errors.New("no daemon is listening")

// UserSocket returns the path of the socket of the calling user's own daemon.
func UserSocket() string {
	dir := fmt.Sprintf("/tmp/mulligan-%d", os.Getuid())
	if run := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(run) {
		dir = filepath.Join(run, "mulligan")
	}
	return filepath.Join(dir, "mulligan.sock")
}

// FindSocket chooses the socket: flag, the value of --socket, if it is not empty; then MULLIGAN_SOCKET; then the user's socket
// if it exists; then the host's. It ignores a user socket in a folder that others can write to, because anybody could have made
// it there. Some agents start their servers without XDG_RUNTIME_DIR; then FindSocket also looks in the folder that systemd
// makes for the user.
func FindSocket(flag string) string {
	if flag != "" {
		return flag
	}
	if env := os.Getenv("MULLIGAN_SOCKET"); env != "" {
		return env
	}
	candidates := []string{UserSocket()}
	if os.Getenv("XDG_RUNTIME_DIR") == "" {
		candidates = append(candidates, filepath.Join(runUser, strconv.Itoa(os.Getuid()), "mulligan", "mulligan.sock"))
	}
	for _, user := range candidates {
		if _, err := os.Lstat(user); err == nil && checkPrivate(filepath.Dir(user)) == nil {
			return user
		}
	}
	return HostSocket
}

// runUser is the folder in which systemd makes a folder for each user. Tests use another one.
var runUser = "/run/user"

// checkPrivate checks the folder of a user's socket: it must be a real folder with mode 0700 that belongs to the caller.
func checkPrivate(dir string) error {
	fi, err := os.Lstat(dir)
	if err != nil {
		return errs.Wrap(errs.Unavailable, "check the socket's folder", err)
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	switch {
	case !fi.IsDir():
		return errs.New(errs.Denied, "check the socket's folder", "%s is not a folder", dir).
			WithHint("remove it, or set XDG_RUNTIME_DIR")
	case !ok || int(st.Uid) != os.Geteuid():
		return errs.New(errs.Denied, "check the socket's folder", "%s belongs to another user", dir).
			WithHint("ask its owner or root to remove it, or set XDG_RUNTIME_DIR")
	case fi.Mode().Perm()&0o077 != 0:
		return errs.New(errs.Denied, "check the socket's folder", "%s is open to other users (mode %04o)", dir, fi.Mode().Perm()).
			WithHint("chmod 700 %s", dir)
	}
	return nil
}

// noDaemon returns the error for a socket whose dial failed with err.
func noDaemon(socket string, err error) error {
	const op = "reach the daemon"
	if errors.Is(err, os.ErrPermission) {
		e := errs.New(errs.Denied, op, "%s", socket).WithHint("name a socket of your own with --socket or MULLIGAN_SOCKET")
		e.Err = syscall.EACCES
		return e
	}
	e := errs.New(errs.Unavailable, op, "%s", socket)
	e.Err = ErrNoDaemon
	switch socket {
	case HostSocket:
		if os.Getuid() != 0 {
			return e.WithHint("`mulligan init` in a project starts one of your own; the host's is started with `systemctl start mulligand`")
		}
		return e.WithHint("start it with `systemctl start mulligand`, or one of your own with `mulligan init` in a project")
	case UserSocket():
		return e.WithHint("start it with `mulligand --user &`")
	}
	return e.WithHint("start it with `mulligand --user --socket %s &`", socket)
}
