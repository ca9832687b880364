package config

import (
	"os"
	"strings"
)

type bucket struct {
	URL       string   `toml:"url"`
	Endpoint  string   `toml:"endpoint"`
	Region    string   `toml:"region"`
	AccessKey string   `toml:"access_key"`
	SecretKey string   `toml:"secret_key"`
	Users     []string `toml:"users"`
}

// setBuckets reads the buckets. A file with their keys must be for its owner and group alone.
func (s *settings) setBuckets(c *Config) error {
	for i, b := range s.file.Buckets {
		fault := func(key, format string, args ...any) error {
			return s.doc.Errorf("bucket."+key, i, format, args...).WithHint("a bucket has url, access_key and secret_key, as in the reference")
		}
		switch {
		case !strings.HasPrefix(b.URL, "s3://") || len(b.URL) < len("s3://abc"):
			return fault("url", "%q is not the URL of a bucket, like s3://BUCKET/PREFIX", b.URL)
		case b.Endpoint != "" && !strings.HasPrefix(b.Endpoint, "http://") && !strings.HasPrefix(b.Endpoint, "https://"):
			return fault("endpoint", "%q is not the URL of a server", b.Endpoint)
		case b.AccessKey == "" || b.SecretKey == "":
			return fault("access_key", "access_key and secret_key go together, and both are needed")
		}
		c.Buckets = append(c.Buckets, Bucket(*b))
	}
	if len(c.Buckets) == 0 {
		return nil
	}
	info, err := os.Stat(s.paths.file)
	if err != nil {
		return err
	}
	if info.Mode().Perm()&0o007 != 0 {
		return s.doc.Errorf("bucket.secret_key", 0, "the file has a secret key, and everybody may read it").WithHint("chmod 640 %s", s.paths.file)
	}
	return nil
}
