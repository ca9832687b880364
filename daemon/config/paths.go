package config

import (
	"fmt"
	"os"
	"path/filepath"

	"mulligan/errs"
)

// maxSocket is the maximal length of a unix socket's path in bytes: sun_path has 108 bytes with its final NUL (unix(7)).
const maxSocket = 107

// paths are the default paths.
type paths struct {
	user                   bool
	file, stateDir, socket string
}

// apps returns the folder of app files, which is beside the configuration of the host's daemon.
func (p paths) apps() string {
	if p.user {
		return ""
	}
	return filepath.Join(filepath.Dir(p.file), "apps.d")
}

func defaults(user bool, env func(string) string) (paths, error) {
	if !user {
		return paths{
			file: "/etc/mulligan/mulligand.toml", stateDir: "/var/lib/mulligan", socket: "/run/mulligan/mulligan.sock",
		}, nil
	}
	home := env("HOME")
	state, okState := xdg(env("XDG_STATE_HOME"), home, ".local/state")
	conf, okConf := xdg(env("XDG_CONFIG_HOME"), home, ".config")
	if !okState || !okConf {
		return paths{}, errs.New(errs.Invalid, op, "HOME is not an absolute path").
			WithHint("set HOME, or XDG_STATE_HOME and XDG_CONFIG_HOME")
	}
	return paths{
		user: true, file: filepath.Join(conf, "mulligan/mulligand.toml"),
		stateDir: filepath.Join(state, "mulligan"), socket: UserSocket(env),
	}, nil
}

// xdg returns a base folder of the XDG specification (version 0.8). As the specification says, it ignores relative values.
func xdg(value, home, below string) (string, bool) {
	if filepath.IsAbs(value) {
		return value, true
	}
	return filepath.Join(home, below), filepath.IsAbs(home)
}

// UserSocket returns the default socket of this user's daemon.
func UserSocket(env func(string) string) string {
	if dir := env("XDG_RUNTIME_DIR"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "mulligan/mulligan.sock")
	}
	return fmt.Sprintf("/tmp/mulligan-%d/mulligan.sock", os.Getuid())
}

func (s *settings) setStateDir(c *Config) (err error) {
	v := s.pick(s.flags.StateDir, "--state-dir", "MULLIGAN_STATE_DIR", s.file.StateDir, "state_dir")
	c.StateDir, err = s.path(v, s.paths.stateDir)
	if err == nil && c.StateDir == "/" {
		return s.fault(v, "/ cannot be the state folder").WithHint("give it a folder of its own")
	}
	return err
}

func (s *settings) setSocket(c *Config) (err error) {
	v := s.pick(s.flags.Socket, "--socket", "MULLIGAN_SOCKET", s.file.Socket, "socket")
	c.Socket, err = s.path(v, s.paths.socket)
	if err == nil && len(c.Socket) > maxSocket {
		return s.fault(v, "socket path %s is longer than %d bytes", c.Socket, maxSocket).WithHint("choose a shorter one with --socket")
	}
	return err
}

// path returns v as an absolute path, or otherwise if v is empty. A flag or an environment
// variable is relative to the working directory of mulligand; a path in the file must be absolute.
func (s *settings) path(v value, otherwise string) (string, error) {
	switch {
	case v.text == "":
		return filepath.Clean(otherwise), nil
	case v.source != "":
		return absolute(v.source, v.text)
	case !filepath.IsAbs(v.text):
		return "", s.fault(v, "%s %q is not an absolute path", v.key, v.text).WithHint("write a path that begins with /")
	}
	return filepath.Clean(v.text), nil
}

func absolute(source, path string) (string, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", &errs.Error{Kind: errs.Invalid, Op: op, Message: source, Err: err, Hint: "give an absolute path"}
	}
	return abs, nil
}
