package doctor

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"mulligan/ipc"
)

// host checks the kernel, systemd, container engines and the limits of inotify.
func (e *exam) host() {
	e.kernel()
	e.systemd()
	e.engines()
	e.inotify()
	e.network()
}

// network checks for the program that gives forks a way out (isolate.Pasta in the daemon).
func (e *exam) network() {
	if e.glob("/usr/bin/pasta", "/usr/local/bin/pasta", "/run/current-system/sw/bin/pasta") {
		e.add("host", "pasta", OK, "forks reach what the host reaches", "")
		return
	}
	e.add("host", "pasta", Advice, "not there: forks of apps reach nothing outside", "apt-get install passt")
}

// kernel checks for openat2 (Linux 5.6), with which the daemon opens paths in a workspace.
func (e *exam) kernel() {
	var u unix.Utsname
	_ = unix.Uname(&u) // fails for a bad pointer only
	release := unix.ByteSliceToString(u.Release[:])
	fd, err := unix.Openat2(unix.AT_FDCWD, "/", &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS})
	if err == nil {
		unix.Close(fd)
	}
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) {
		e.add("host", "kernel", Problem, release+": it has no openat2, or a filter of system calls forbids it", "use Linux 5.6 or newer, and a container that allows openat2")
		return
	}
	e.add("host", "kernel", OK, "Linux "+release, "")
}

// systemd checks the D-Bus over which the daemon stops and starts units.
func (e *exam) systemd() {
	wanted := e.any(func(a ipc.App) bool { return a.Unit != "" && a.Engine == "" })
	whose, remedy := "the system's", "apt-get install systemd dbus, and boot with it"
	sockets := []string{"/run/systemd/private", "/run/dbus/system_bus_socket"}
	if !e.hostMode() {
		whose, remedy = "your own", "sudo loginctl enable-linger $USER; apt-get install dbus-user-session; log in anew"
		run := os.Getenv("XDG_RUNTIME_DIR")
		if run == "" {
			run = filepath.Join("/run/user", strconv.Itoa(e.UID))
		}
		sockets = []string{filepath.Join(run, "systemd/private"), filepath.Join(run, "bus")}
	}
	for _, s := range sockets {
		if fi, err := os.Stat(e.Root + s); err == nil && fi.Mode()&os.ModeSocket != 0 {
			e.add("host", "systemd", OK, whose+" manager is there: "+s, "")
			return
		}
	}
	e.add("host", "systemd", needed(wanted), whose+" manager is not there: apps with a unit need it", remedy)
}

// engines checks that the container engines of apps answer. The daemon may connect where the user who runs this may not: then it is not
// known here.
func (e *exam) engines() {
	var seen []string
	for _, a := range e.apps {
		if a.Engine == "" || slices.Contains(seen, a.Engine) {
			continue
		}
		seen = append(seen, a.Engine)
		c, err := net.DialTimeout("unix", e.Root+a.Engine, gapsTimeout)
		switch {
		case err == nil:
			e.add("host", "containers", OK, "an engine answers at "+a.Engine, "")
			c.Close()
		case errors.Is(err, os.ErrPermission):
			e.add("host", "containers", Advice, "you may not use the engine at "+a.Engine+", so it is not known whether it answers", "ask an administrator, or see `mulligan app show "+a.Slug+"`")
		default:
			e.add("host", "containers", Problem, "no container engine answers at "+a.Engine+", which runs "+a.Slug, "systemctl start docker, or podman.socket; mulligan app set engine=SOCKET names another one")
		}
	}
}

// inotify checks the kernel's limits. Following an app takes one instance, and a
// watch for each of its folders.
func (e *exam) inotify() {
	followed := e.any(func(a ipc.App) bool { return a.Auto })
	for _, l := range []struct {
		name  string
		least int
		raise int
	}{{"max_user_watches", 65536, 1048576}, {"max_user_instances", 128, 1024}} {
		text, err := os.ReadFile(e.Root + "/proc/sys/fs/inotify/" + l.name)
		n, bad := strconv.Atoi(strings.TrimSpace(string(text)))
		remedy := fmt.Sprintf("sysctl fs.inotify.%s=%d (and keep it in /etc/sysctl.d)", l.name, l.raise)
		switch {
		case err != nil || bad != nil:
			e.add("host", "inotify "+l.name, needed(followed), "the kernel has no inotify, which automatic checkpoints need", "use a kernel with CONFIG_INOTIFY_USER")
		case n < l.least:
			e.add("host", "inotify "+l.name, Advice, fmt.Sprintf("%d: few, where apps have many folders", n), remedy)
		default:
			e.add("host", "inotify "+l.name, OK, strconv.Itoa(n), "")
		}
	}
}

// program returns the path of a program in PATH, or "".
func program(name string) string {
	path, err := exec.LookPath(name)
	if err != nil {
		return ""
	}
	return path
}

// glob reports whether a file on the host matches one of the patterns.
func (e *exam) glob(patterns ...string) bool {
	for _, p := range patterns {
		if found, err := filepath.Glob(e.Root + p); err == nil && len(found) > 0 {
			return true
		}
	}
	return false
}

// reach returns an error unless a server accepts connections at addr.
func reach(network, addr string) error {
	conn, err := net.DialTimeout(network, addr, askTimeout)
	if err != nil {
		return err
	}
	return conn.Close()
}
