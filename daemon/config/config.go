// Package config reads mulligand's configuration: paths and limits. Flags override the environment, which overrides the file,
// which overrides the defaults.
package config

import (
	"log/slog"
	"time"

	"mulligan/errs"
	"mulligan/tomlfile"
)

const op = "read configuration"

// Config is the configuration of mulligand. Its paths are absolute and clean.
type Config struct {
	User     bool   // serve one user's own projects, and not the host
	File     string // the configuration file, which need not exist
	StateDir string
	Socket   string
	// AppsDir is the folder of the app files that the host's daemon registers at start; "" for a user's daemon. It need not exist.
	AppsDir     string
	HTTP        string // the TCP address; "" means none
	TLSCert     string // certificate and key for TLS; both or neither
	TLSKey      string
	Hosts       []string // host names of the TCP address, beside the address itself
	LogLevel    slog.Level
	Limits      Limits
	Quota       Quota
	Guests      Guests
	StopTimeout time.Duration // how long an app may take to stop
	QuietGap    time.Duration // after which a write begins a turn that nobody announced
	Titles      bool          // apps may keep the first words of prompts
	Ceph        Ceph
	Buckets     []Bucket // with credentials, for the remotes of apps
	RehearseMax int64    // size in bytes of the largest database whose restore is rehearsed; 0 means none
}

// Limits bound the size of a workspace. A larger one is refused.
type Limits struct {
	MaxFiles int64 // number of files and folders
	MaxForks int   // of an app
	MaxBytes int64
}

// Quota bounds what one owner may have and request; 0 means no limit.
type Quota struct {
	Apps, Checkpoints int
	Bytes             int64
	RequestsPerSecond float64
	Concurrent        int // concurrent requests, including event streams
}

// Guests are the settings for callers on TCP that are identified only by an id that they choose.
type Guests struct {
	Allow bool
	User  string // the user whose rights their apps run with
	Dir   string // each guest's folders are below Dir/ID
	Quota Quota  // of each guest
}

// Bucket is a bucket of an S3-compatible server, or a part of one, with credentials.
type Bucket struct {
	URL, Endpoint, Region string
	AccessKey, SecretKey  string
	Users                 []string // who may use it beside root
}

// Flags are the values of the command line; "" means that a flag was not given.
type Flags struct {
	Config, StateDir, Socket, HTTP, LogLevel string
}

// file has the keys of mulligand.toml.
type file struct {
	Socket      string    `toml:"socket"`
	StateDir    string    `toml:"state_dir"`
	HTTP        string    `toml:"http"`
	TLSCert     string    `toml:"tls_cert"`
	TLSKey      string    `toml:"tls_key"`
	Hosts       []string  `toml:"hosts"`
	LogLevel    string    `toml:"log_level"`
	StopTimeout string    `toml:"stop_timeout"`
	QuietGap    string    `toml:"quiet_gap"`
	Titles      bool      `toml:"titles"`
	Limits      limits    `toml:"limits"`
	Quota       quota     `toml:"quota"`
	Guests      guests    `toml:"guests"`
	Rehearse    rehearse  `toml:"rehearse"`
	Ceph        ceph      `toml:"ceph"`
	Buckets     []*bucket `toml:"bucket"`
}

type rehearse struct {
	MaxBytes tomlfile.Size `toml:"max_bytes"`
}

type limits struct {
	MaxFiles int64         `toml:"max_files"`
	MaxForks int           `toml:"max_forks"`
	MaxBytes tomlfile.Size `toml:"max_bytes"`
}

// defaultFile has the defaults of the file's keys.
func defaultFile() file {
	return file{
		LogLevel: "info", StopTimeout: "30s", QuietGap: "60s", Titles: true,
		Limits: limits{MaxFiles: 1_000_000, MaxForks: 32, MaxBytes: tomlfile.Size{Bytes: 100 << 30}},
		Quota:  defaultQuota(), Guests: defaultGuests(),
		Rehearse: rehearse{MaxBytes: tomlfile.Size{Bytes: 1 << 30}},
	}
}

// Load returns the configuration of the host's daemon or of a user's. env is os.Getenv, or a replacement in tests. A missing
// file is an error only if flags name it. Every error says what is wrong, where, and what to do.
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

// settings has the sources of Load, in the order of their precedence.
type settings struct {
	paths paths
	file  file
	doc   *tomlfile.Doc // nil if there is no file
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
		s.setStateDir, s.setSocket, s.setHTTP, s.setLogLevel, s.setTimes, s.setLimits, s.setQuota, s.setGuests, s.setRehearse, s.setCeph, s.setBuckets,
	} {
		if err := set(&c); err != nil {
			return Config{}, err
		}
	}
	return c, nil
}

// value is the value of a setting, with its source.
type value struct {
	text   string
	source string // a flag or a variable; "" for a key of the file
	key    string
}

// pick returns the value of a setting from the source with the highest precedence. variable may be "".
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

// fault returns an error about v that names its source.
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
	c.Titles = s.file.Titles
	c.QuietGap, err = s.time("quiet_gap", s.file.QuietGap)
	return err
}

// time reads a positive duration from the file.
func (s *settings) time(key, text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		return 0, s.fault(value{key: key}, "%s %q is not a duration", key, text).WithHint(`write a duration like "30s"`)
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
		return s.fault(value{key: "limits.max_files"}, "max_files must be more than 0").WithHint("the default is 1000000")
	}
	if l.MaxForks < 0 {
		return s.fault(value{key: "limits.max_forks"}, "max_forks must not be negative").WithHint("the default is 32; 0 means no limit")
	}
	if l.MaxBytes.Bad || l.MaxBytes.Bytes <= 0 {
		return s.fault(value{key: "limits.max_bytes"}, "max_bytes must be a size of more than 0").WithHint(`write a size like "100GiB"`)
	}
	c.Limits = Limits{MaxFiles: l.MaxFiles, MaxForks: l.MaxForks, MaxBytes: l.MaxBytes.Bytes}
	return nil
}
