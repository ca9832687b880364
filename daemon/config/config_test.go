package config

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"mulligan/errs"
)

func environment(vars map[string]string) func(string) string {
	return func(name string) string { return vars[name] }
}

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "m.toml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// What is in force where the file says nothing.
var (
	owners   = Quota{Apps: 100, Checkpoints: 5000, RequestsPerSecond: 200, Concurrent: 256}
	guestsOf = Guests{
		User: "nobody", Dir: "/var/lib/mulligan-guests",
		Quota: Quota{Apps: 5, Checkpoints: 100, Bytes: 2 << 30, RequestsPerSecond: 20, Concurrent: 16},
	}
)

func TestDefaults(t *testing.T) {
	common := Config{LogLevel: slog.LevelInfo, StopTimeout: 30 * time.Second, QuietGap: time.Minute, Titles: true, Limits: Limits{MaxFiles: 1_000_000, MaxForks: 32, MaxBytes: 100 << 30}, Quota: owners, Guests: guestsOf, RehearseMax: 1 << 30}
	with := func(user bool, file, apps, state, socket string) Config {
		c := common
		c.User, c.File, c.AppsDir, c.StateDir, c.Socket = user, file, apps, state, socket
		return c
	}
	file := write(t, "") // an empty file of the host's: the one in /etc may say anything
	tests := []struct {
		name  string
		user  bool
		flags Flags
		env   map[string]string
		want  Config
	}{
		{"host", false, Flags{Config: file}, map[string]string{"HOME": "/root", "XDG_RUNTIME_DIR": "/run/user/0"},
			with(false, file, filepath.Join(filepath.Dir(file), "apps.d"), "/var/lib/mulligan", "/run/mulligan/mulligan.sock")},
		{"user with XDG", true, Flags{}, map[string]string{"XDG_RUNTIME_DIR": "/nowhere/run", "XDG_STATE_HOME": "/nowhere/state", "XDG_CONFIG_HOME": "/nowhere/conf"},
			with(true, "/nowhere/conf/mulligan/mulligand.toml", "", "/nowhere/state/mulligan", "/nowhere/run/mulligan/mulligan.sock")},
		{"user without", true, Flags{}, map[string]string{"HOME": "/nowhere/al", "XDG_STATE_HOME": "relative"},
			with(true, "/nowhere/al/.config/mulligan/mulligand.toml", "", "/nowhere/al/.local/state/mulligan", fmt.Sprintf("/tmp/mulligan-%d/mulligan.sock", os.Getuid()))},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Load(tt.user, tt.flags, environment(tt.env))
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Error(d)
			}
		})
	}
	p, err := defaults(false, environment(nil))
	if err != nil || p.file != "/etc/mulligan/mulligand.toml" || p.apps() != "/etc/mulligan/apps.d" {
		t.Errorf("host: %+v, %v", p, err)
	}
}

func TestPrecedence(t *testing.T) {
	file := write(t, "state_dir = '/file/state/'\nsocket = '/file/sock'\nlog_level = 'warn'\nstop_timeout = '5s'\nquiet_gap = '7s'\n[limits]\nmax_files = 7\nmax_bytes = '1KiB'\n")
	vars := map[string]string{"MULLIGAN_STATE_DIR": "/env/state", "MULLIGAN_SOCKET": "/env/sock"}
	flags := Flags{Config: file, StateDir: "/flag/state", Socket: "/flag/../sock", LogLevel: "debug"}

	c, err := Load(false, Flags{Config: file}, environment(nil))
	if err != nil {
		t.Fatal(err)
	}
	want := Config{
		File: file, AppsDir: filepath.Join(filepath.Dir(file), "apps.d"), StateDir: "/file/state", Socket: "/file/sock",
		LogLevel: slog.LevelWarn, StopTimeout: 5 * time.Second, QuietGap: 7 * time.Second, Titles: true, Limits: Limits{MaxFiles: 7, MaxForks: 32, MaxBytes: 1024}, Quota: owners, Guests: guestsOf, RehearseMax: 1 << 30,
	}
	if d := cmp.Diff(want, c); d != "" {
		t.Errorf("file: %s", d)
	}
	if c, err = Load(false, Flags{Config: file}, environment(vars)); err != nil || c.StateDir != "/env/state" || c.Socket != "/env/sock" {
		t.Errorf("environment: %+v, %v", c, err)
	}
	if c, err = Load(false, flags, environment(vars)); err != nil || c.StateDir != "/flag/state" || c.Socket != "/sock" || c.LogLevel != slog.LevelDebug {
		t.Errorf("flags: %+v, %v", c, err)
	}
}

func TestRelativeFlagIsFromHere(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	c, err := Load(true, Flags{StateDir: "state"}, environment(map[string]string{"HOME": "/nowhere"}))
	if err != nil || c.StateDir != filepath.Join(dir, "state") {
		t.Errorf("%q, %v", c.StateDir, err)
	}
}

func TestRefuses(t *testing.T) {
	tests := []struct {
		name, file string
		flags      Flags
		env        map[string]string
		kind       errs.Kind
		want       string
	}{
		{"unknown key", "stat_dir = '/x'", Flags{}, nil, errs.Invalid, `:1: unknown key "stat_dir"`},
		{"syntax", "\nsocket = x", Flags{}, nil, errs.Invalid, ":2: this is not TOML"},
		{"relative in file", "socket = 'x'", Flags{}, nil, errs.Invalid, `:1: socket "x" is not an absolute path`},
		{"level in file", "\nlog_level = 'loud'", Flags{}, nil, errs.Invalid, `:2: "loud" is not a log level`},
		{"level flag", "", Flags{LogLevel: "loud"}, nil, errs.Invalid, `--log-level: "loud" is not a log level`},
		{"http in file", "http = '192.0.2.1:80'", Flags{}, nil, errs.Invalid, ":1: 192.0.2.1:80 is not on loopback"},
		{"http flag", "", Flags{HTTP: ":80"}, nil, errs.Invalid, "--http: :80 is not on loopback"},
		{"http no address", "http = 'x'", Flags{}, nil, errs.Invalid, `:1: "x" is not a TCP address`},
		{"key alone", "http = '127.0.0.1:1'\ntls_key = '/k'", Flags{}, nil, errs.Invalid, ":2: tls_cert and tls_key"},
		{"certificate's path", "tls_cert = 'c'\ntls_key = '/k'", Flags{}, nil, errs.Invalid, `:1: tls_cert "c" is not an absolute path`},
		{"hosts", "hosts = ['a b']", Flags{}, nil, errs.Invalid, `:1: "a b" is not a host's name`},
		{"quota", "[quota]\napps = -1", Flags{}, nil, errs.Invalid, ":2: apps must not be negative"},
		{"quota's bytes", "[quota]\nbytes = 'many'", Flags{}, nil, errs.Invalid, ":2: bytes is not a size"},
		{"quota's rate", "[guests]\nrequests_per_second = 0.001", Flags{}, nil, errs.Invalid, ":2: requests_per_second must be"},
		{"guest root", "[guests]\nuser = 'root'", Flags{}, nil, errs.Invalid, ":2: guests cannot have root's rights"},
		{"guests' folder", "[guests]\nallow = true\ndir = 'x'", Flags{}, nil, errs.Invalid, `:3: guests.dir "x" is not an absolute path`},
		{"stop timeout", "stop_timeout = '0s'", Flags{}, nil, errs.Invalid, ":1: stop_timeout"},
		{"quiet gap", "quiet_gap = 'a while'", Flags{}, nil, errs.Invalid, ":1: quiet_gap"},
		{"rehearse", "[rehearse]\nmax_bytes = 'many'", Flags{}, nil, errs.Invalid, ":2: max_bytes is not a size"},
		{"max files", "[limits]\nmax_files = 0", Flags{}, nil, errs.Invalid, ":2: max_files"},
		{"max forks", "[limits]\nmax_forks = -1", Flags{}, nil, errs.Invalid, ":2: max_forks"},
		{"max bytes", "[limits]\nmax_bytes = 'many'", Flags{}, nil, errs.Invalid, ":2: max_bytes"},
		{"state is root", "", Flags{}, map[string]string{"MULLIGAN_STATE_DIR": "/"}, errs.Invalid, "MULLIGAN_STATE_DIR: / cannot"},
		{"long socket", "", Flags{Socket: "/" + strings.Repeat("s", 107)}, nil, errs.Invalid, "--socket: socket path"},
		{"no such file", "", Flags{Config: "/nowhere/m.toml"}, nil, errs.NotFound, "/nowhere/m.toml"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if tt.flags.Config == "" {
				tt.flags.Config = write(t, tt.file)
			}
			_, err := Load(false, tt.flags, environment(tt.env))
			if errs.KindOf(err) != tt.kind || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("got %v (%s), want %q", err, errs.KindOf(err), tt.want)
			}
			if errs.HintOf(err) == "" || strings.Contains(err.Error(), "\n") {
				t.Errorf("%v: not one line with a remedy", err)
			}
		})
	}
	if _, err := Load(true, Flags{}, environment(nil)); errs.KindOf(err) != errs.Invalid || !strings.Contains(err.Error(), "HOME") {
		t.Errorf("no HOME: %v", err)
	}
}
