package config

import (
	"math"
	"path/filepath"
	"strings"

	"mulligan/daemon/gate"
	"mulligan/errs"
	"mulligan/tomlfile"
)

// quota has the keys of [quota], which [guests] has too.
type quota struct {
	Apps              int           `toml:"apps"`
	Checkpoints       int           `toml:"checkpoints"`
	Bytes             tomlfile.Size `toml:"bytes"`
	RequestsPerSecond float64       `toml:"requests_per_second"`
	Concurrent        int           `toml:"concurrent"`
}

type guests struct {
	Allow bool   `toml:"allow"`
	User  string `toml:"user"`
	Dir   string `toml:"dir"`

	Apps              int           `toml:"apps"`
	Checkpoints       int           `toml:"checkpoints"`
	Bytes             tomlfile.Size `toml:"bytes"`
	RequestsPerSecond float64       `toml:"requests_per_second"`
	Concurrent        int           `toml:"concurrent"`
}

func defaultQuota() quota {
	return quota{Apps: 100, Checkpoints: 5000, RequestsPerSecond: 200, Concurrent: 256}
}

func defaultGuests() guests {
	return guests{
		User: "nobody", Dir: "/var/lib/mulligan-guests",
		Apps: 5, Checkpoints: 100, Bytes: tomlfile.Size{Bytes: 2 << 30}, RequestsPerSecond: 20, Concurrent: 16,
	}
}

// setHTTP reads the TCP address and the certificate.
func (s *settings) setHTTP(c *Config) (err error) {
	cert, key := value{text: s.file.TLSCert, key: "tls_cert"}, value{text: s.file.TLSKey, key: "tls_key"}
	if c.TLSCert, err = s.optional(cert); err != nil {
		return err
	}
	if c.TLSKey, err = s.optional(key); err != nil {
		return err
	}
	if (cert.text == "") != (key.text == "") {
		if cert.text == "" {
			cert = key
		}
		return s.fault(cert, "tls_cert and tls_key go together").WithHint("name the files of both")
	}
	for _, name := range s.file.Hosts {
		if name == "" || strings.ContainsAny(name, " /:\t\n") {
			return s.fault(value{key: "hosts"}, "%q is not a host's name", name).WithHint("write it without scheme and port")
		}
	}
	c.Hosts = s.file.Hosts
	v := s.pick(s.flags.HTTP, "--http", "", s.file.HTTP, "http")
	if c.HTTP = v.text; v.text == "" {
		return nil
	}
	if err := gate.CheckAddr(v.text, c.TLSCert != ""); err != nil {
		return s.fault(v, "%s", err.Error()).WithHint("%s", errs.HintOf(err))
	}
	return nil
}

// optional does the same as path, for a setting that may be missing.
func (s *settings) optional(v value) (string, error) {
	if v.text == "" {
		return "", nil
	}
	return s.path(v, "")
}

func (s *settings) setQuota(c *Config) (err error) {
	c.Quota, err = s.quota("quota", s.file.Quota)
	return err
}

func (s *settings) setGuests(c *Config) (err error) {
	g := s.file.Guests
	c.Guests = Guests{Allow: g.Allow, User: g.User, Dir: filepath.Clean(g.Dir)}
	switch {
	case g.User == "" || g.User == "root" || g.User == "0":
		return s.fault(value{key: "guests.user"}, "guests cannot have root's rights").WithHint("name a user who owns nothing else")
	case !filepath.IsAbs(g.Dir):
		return s.fault(value{key: "guests.dir"}, "guests.dir %q is not an absolute path", g.Dir).WithHint("write a path that begins with /")
	}
	c.Guests.Quota, err = s.quota("guests", quota{g.Apps, g.Checkpoints, g.Bytes, g.RequestsPerSecond, g.Concurrent})
	return err
}

func (s *settings) quota(table string, q quota) (Quota, error) {
	fault := func(key, format string, args ...any) error {
		return s.fault(value{key: table + "." + key}, format, args...).WithHint("0 means no limit")
	}
	for _, n := range []struct {
		key   string
		value int
	}{{"apps", q.Apps}, {"checkpoints", q.Checkpoints}, {"concurrent", q.Concurrent}} {
		if n.value < 0 {
			return Quota{}, fault(n.key, "%s must not be negative", n.key)
		}
	}
	if q.Bytes.Bad {
		return Quota{}, s.fault(value{key: table + ".bytes"}, "bytes is not a size").WithHint("%s", tomlfile.SizeHint)
	}
	// A rate below one request in ten seconds would lock out every client, and cannot be intended.
	if r := q.RequestsPerSecond; math.IsNaN(r) || r != 0 && r < 0.1 || r > 1e6 {
		return Quota{}, fault("requests_per_second", "requests_per_second must be from 0.1 to 1000000")
	}
	return Quota{Apps: q.Apps, Checkpoints: q.Checkpoints, Bytes: q.Bytes.Bytes, RequestsPerSecond: q.RequestsPerSecond, Concurrent: q.Concurrent}, nil
}
