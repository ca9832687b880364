package config

import (
	"path/filepath"
	"strings"
)

// Ceph is how the daemon reaches Ceph clusters; "" stands for what a domain's definition says, or for Ceph's own defaults.
type Ceph struct {
	Conf    string // a path
	User    string // of cephx, without "client."
	Keyring string // a path
}

type ceph struct {
	Conf    string `toml:"conf"`
	User    string `toml:"user"`
	Keyring string `toml:"keyring"`
}

// setCeph reads how Ceph clusters are reached.
func (s *settings) setCeph(c *Config) error {
	f := s.file.Ceph
	for key, path := range map[string]string{"ceph.conf": f.Conf, "ceph.keyring": f.Keyring} {
		if path != "" && !filepath.IsAbs(path) {
			return s.doc.Errorf(key, 0, "%q is not an absolute path", path)
		}
	}
	if strings.HasPrefix(f.User, "client.") || strings.HasPrefix(f.User, "-") || strings.ContainsAny(f.User, " \t\n") {
		return s.doc.Errorf("ceph.user", 0, "%q is not the name of a cephx user", f.User).WithHint("without client.: user = \"mulligan\"")
	}
	c.Ceph = Ceph(f)
	return nil
}
