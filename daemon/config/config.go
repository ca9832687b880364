// Package config is how mulligand learns where its things are and how far it
// may go: flags win over the environment, which wins over the file, which wins
// over the defaults.
package config

import (
	"log/slog"
	"time"

	"mulligan/errs"
	"mulligan/tomlfile"
)

const op = "read configuration"

// Config is all that mulligand is told. Paths are absolute and clean.
type Config struct {
	User     bool   // it serves one user's own projects, not the host
	File     string // the configuration file, which need not exist
	StateDir string
	Socket   string
	// AppsDir holds the app files that the host daemon registers at start; ""
	// for a user's daemon. It need not exist.
	AppsDir     string
	HTTP        string // the TCP address to serve; "" is none
	TLSCert     string // and what to prove that it is this daemon with; both or neither
	TLSKey      string
	Hosts       []string // names that TCP is reached by, beside its address
	LogLevel    slog.Level
	Limits      Limits
	Quota       Quota
	Guests      Guests
	StopTimeout time.Duration // how long an app may take to stop
	QuietGap    time.Duration // after which a write begins a turn that nobody announced
	RehearseMax int64         // bytes of the largest database whose restore is rehearsed; 0: none is
}

// Limits are what a workspace may hold; a larger one is refused.
type Limits struct {
	MaxFiles int64 // entries of the tree, folders included
	MaxBytes int64
}

// Quota is what one owner may have and ask for; 0 is no limit.
type Quota struct {
	Apps, Checkpoints int
	Bytes             int64
	RequestsPerSecond float64
	Concurrent        int // requests under way, event streams among them
}

// Guests are callers on TCP whom nobody knows but by the id that they give.
type Guests struct {
	Allow bool
	User  string // whose rights their apps run with
	Dir   string // each guest's folders are below Dir/ID
	Quota Quota  // of each
}

// Flags are the values given on the command line; "" where none was.
type Flags struct {
	Config, StateDir, Socket, HTTP, LogLevel string
}

// file is mulligand.toml.
type file struct {
	Socket      string   `toml:"socket"`
	StateDir    string   `toml:"state_dir"`
	HTTP        string   `toml:"http"`
	TLSCert     string   `toml:"tls_cert"`
	TLSKey      string   `toml:"tls_key"`
	Hosts       []string `toml:"hosts"`
	LogLevel    string   `toml:"log_level"`
	StopTimeout string   `toml:"stop_timeout"`
	QuietGap    string   `toml:"quiet_gap"`
	Limits      limits   `toml:"limits"`
	Quota       quota    `toml:"quota"`
	Guests      guests   `toml:"guests"`
	Rehearse    rehearse `toml:"rehearse"`
}

type rehearse struct {
	MaxBytes tomlfile.Size `toml:"max_bytes"`
}

type limits struct {
	MaxFiles int64         `toml:"max_files"`
	MaxBytes tomlfile.Size `toml:"max_bytes"`
}

// defaultFile is what a file that says nothing says.
func defaultFile() file {
	return file{
		LogLevel: "info", StopTimeout: "30s", QuietGap: "60s",
		Limits: limits{MaxFiles: 1_000_000, MaxBytes: tomlfile.Size{Bytes: 100 << 30}},
		Quota:  defaultQuota(), Guests: defaultGuests(),
		Rehearse: rehearse{MaxBytes: tomlfile.Size{Bytes: 1 << 30}},
	}
}

// Load works out the configuration of the host's daemon, or of a user's. env is
// os.Getenv, or a stand-in for it. A missing file is fine unless flags name it.
// Whatever is wrong is one error: what, where, and what to do.
func Load(user bool, flags Flags, env func(string) string) (Config, error) {
	paths, err := defaults(user, env)
	if err != nil {
		return Config{}, err
	}
	s := &settings{paths: paths, flags: flags, env: env}
	if err := s.read(); err != nil {
		return Config{}, err
	}
	return s.config(user)
}

// settings is what Load works on: the sources, strongest last.
type settings struct {
	paths paths
	file  file
	doc   *tomlfile.Doc // nil where there is no file
	env   func(string) string
	flags Flags
}

// read reads the file.
func (s *settings) read() error {
	s.file = defaultFile()
	if s.flags.Config != "" {
		path, err := absolute("--config", s.flags.Config)
		if err != nil {
			return err
		}
		s.paths.file = path
	}
	data, err := tomlfile.Read(op, s.paths.file)
	if errs.KindOf(err) == errs.NotFound && s.flags.Config == "" {
		return nil
	}
	if err != nil {
		return err
	}
	s.doc, err = tomlfile.Decode(op, s.paths.file, data, &s.file)
	return err
}

func (s *settings) config(user bool) (Config, error) {
	c := Config{User: user, File: s.paths.file, AppsDir: s.paths.apps()}
	for _, set := range []func(*Config) error{
		s.setStateDir, s.setSocket, s.setHTTP, s.setLogLevel, s.setTimes, s.setLimits, s.setQuota, s.setGuests, s.setRehearse,
	} {
		if err := set(&c); err != nil {
			return Config{}, err
		}
	}
	return c, nil
}

// value is one setting and where it came from.
type value struct {
	text   string
	source string // a flag, a variable; "" for the file's key
	key    string
}

// pick takes the strongest of what was said about a setting; variable may be "".
func (s *settings) pick(flag, flagName, variable, inFile, key string) value {
	if flag != "" {
		return value{flag, flagName, key}
	}
	if variable != "" {
		if v := s.env(variable); v != "" {
			return value{v, variable, key}
		}
	}
	return value{inFile, "", key}
}

// fault is an error about v, at the place where it was said.
func (s *settings) fault(v value, format string, args ...any) *errs.Error {
	if v.source == "" && s.doc != nil {
		return s.doc.Errorf(v.key, 0, format, args...)
	}
	return errs.New(errs.Invalid, op, v.source+": "+format, args...)
}

func (s *settings) setLogLevel(c *Config) error {
	v := s.pick(s.flags.LogLevel, "--log-level", "", s.file.LogLevel, "log_level")
	levels := map[string]slog.Level{"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError}
	level, ok := levels[v.text]
	if !ok {
		return s.fault(v, "%q is not a log level", v.text).WithHint("use debug, info, warn or error")
	}
	c.LogLevel = level
	return nil
}

func (s *settings) setTimes(c *Config) (err error) {
	if c.StopTimeout, err = s.time("stop_timeout", s.file.StopTimeout); err != nil {
		return err
	}
	c.QuietGap, err = s.time("quiet_gap", s.file.QuietGap)
	return err
}

// time reads a time of more than 0 from the file.
func (s *settings) time(key, text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		return 0, s.fault(value{key: key}, "%s %q is not a time", key, text).WithHint(`write a time like "30s"`)
	}
	return d, nil
}

func (s *settings) setRehearse(c *Config) error {
	m := s.file.Rehearse.MaxBytes
	if m.Bad || m.Bytes < 0 {
		return s.fault(value{key: "rehearse.max_bytes"}, "max_bytes is not a size").WithHint(`write a size like "1GiB"; 0 switches rehearsals off`)
	}
	c.RehearseMax = m.Bytes
	return nil
}

func (s *settings) setLimits(c *Config) error {
	l := s.file.Limits
	if l.MaxFiles <= 0 {
		return s.fault(value{key: "limits.max_files"}, "max_files must be more than 0").WithHint("a million is the default")
	}
	if l.MaxBytes.Bad || l.MaxBytes.Bytes <= 0 {
		return s.fault(value{key: "limits.max_bytes"}, "max_bytes must be a size of more than 0").WithHint(`write a size like "100GiB"`)
	}
	c.Limits = Limits{MaxFiles: l.MaxFiles, MaxBytes: l.MaxBytes.Bytes}
	return nil
}
