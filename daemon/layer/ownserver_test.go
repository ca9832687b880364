package layer

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mulligan/daemon/store"
	"mulligan/errs"
	"mulligan/ipc"
)

// TestOwnServerRefused refuses databases of which a fork cannot have a server of its own, with the reason.
func TestOwnServerRefused(t *testing.T) {
	had := serverPath
	t.Cleanup(func() { serverPath = had })
	program := t.TempDir()
	if err := os.WriteFile(filepath.Join(program, "valkey-server"), nil, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ driver, dsn, unit, path, says string }{
		{"redis", "redis://:pw@localhost:6379", "", program, ""},
		{"redis", "redis://127.0.0.1/3", "", program, ""},
		{"redis", "redis:///?socket=/run/redis/redis.sock", "", program, ""},
		{"redis", "redis://localhost", "", "/nonexistent", "no redis-server or valkey-server"},
		{"redis", "redis://db.example.org", "", program, "at db.example.org"},
		{"redis", "rediss://localhost", "", program, "TLS"},
		{"redis", "redis:///?socket=/tmp/redis.sock", "", program, "beside other files"},
		{"redis", "redis:///?socket=/srv/redis.sock", "", program, "beside other files"},
		{"redis", "redis://localhost", "shop.service", program, "unit shop.service"},
		{"mysql", "mysql://u@localhost/shop", "", program, "mysql databases are not supported"},
	} {
		serverPath = []string{c.path}
		rec := store.App{App: ipc.App{Slug: "shop", Workspace: "/srv/shop", Unit: c.unit}}
		err := CheckOwnServer(rec, ipc.Database{Name: "cache", Driver: c.driver, DSN: c.dsn})
		switch {
		case c.says == "" && err != nil:
			t.Errorf("%s is refused: %v", c.dsn, err)
		case c.says != "" && (err == nil || errs.KindOf(err) != errs.Unsupported || !strings.Contains(err.Error(), c.says)):
			t.Errorf("%s with %q: %v, want %q", c.dsn, c.unit, err, c.says)
		}
	}
}
