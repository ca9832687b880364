package layer

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mulligan/daemon/accounts"
	"mulligan/daemon/settings"
	"mulligan/daemon/store"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/snap/postgres/own"
)

// TestOwnServerRefused refuses databases of which a fork cannot have a server of its own, with the reason.
func TestOwnServerRefused(t *testing.T) {
	had := serverPath
	t.Cleanup(func() { serverPath = had })
	programs := t.TempDir()
	for _, name := range []string{"valkey-server", "mariadbd"} {
		if err := os.WriteFile(filepath.Join(programs, name), nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	postgres := own.Kind{Major: 7, User: "shopper", Database: "shop"}.String()
	maria := func(host, socket string) string {
		return `{"User":"shopper","Host":"` + host + `","Port":"3306","Socket":"` + socket + `","Accounts":["shopper@%"]}`
	}
	for _, c := range []struct{ dsn, kind, unit, path, says string }{
		{"redis://:pw@localhost:6379", "", "", programs, ""},
		{"redis://127.0.0.1/3", "", "", programs, ""},
		{"redis:///?socket=/run/redis/redis.sock", "", "", programs, ""},
		{"redis://localhost", "", "", "/nonexistent", "no redis-server or valkey-server"},
		{"redis://db.example.org", "", "", programs, "at db.example.org"},
		{"rediss://localhost", "", "", programs, "TLS"},
		{"redis:///?socket=/tmp/redis.sock", "", "", programs, "beside other files"},
		{"redis:///?socket=/srv/redis.sock", "", "", programs, "beside other files"},
		{"redis://localhost", "", "shop.service", programs, ""},

		{"postgres://shopper@localhost/shop", postgres, "", programs, "this host has no"},
		{"postgres://shopper@localhost/shop", "", "", programs, "before the app had this database"},
		{"postgres://shopper@db.example.org/shop", postgres, "", programs, "at db.example.org"},
		{"postgres://shopper@localhost/shop?sslmode=require", postgres, "", programs, "TLS"},

		{"mysql://shopper@localhost/shop", maria("127.0.0.1", ""), "", programs, ""},
		{"mysql://shopper@/shop", maria("", "/run/mysqld/mysqld.sock"), "", programs, ""},
		{"mysql://shopper@localhost/shop", maria("127.0.0.1", ""), "", "/nonexistent", "no mariadbd"},
		{"mysql://shopper@db/shop", maria("db", ""), "", programs, "at db"},
		{"mysql://shopper@localhost/shop?tls=true", maria("127.0.0.1", ""), "", programs, "TLS"},
		{"mysql://shopper@localhost/shop", "", "", programs, "before the app had this database"},
		{"mysql://shopper@/shop", maria("", "/tmp/mysqld.sock"), "", programs, "beside other files"},
	} {
		serverPath = []string{c.path}
		driver, _, _ := strings.Cut(c.dsn, ":")
		driver = strings.Replace(driver, "rediss", "redis", 1)
		opt := &settings.Options{StateDir: t.TempDir()}
		b := NewBinder(opt, accounts.New(opt), nil, nil)
		rec := store.App{
			App: ipc.App{
				Slug: "shop-1", Owner: "nobody", Workspace: "/srv/shop-1", Unit: c.unit,
				Fork:      &ipc.Fork{ParentPath: "/srv/shop", ParentUnit: c.unit, Servers: map[string]string{"main": c.kind}},
				Databases: []ipc.Database{{Name: "main", Driver: driver, DSN: c.dsn}},
			},
			OwnerUID: 65534,
		}
		err := b.CheckOwnServers(rec)
		switch {
		case c.says == "" && err != nil:
			t.Errorf("%s is refused: %v", c.dsn, err)
		case c.says != "" && (err == nil || errs.KindOf(err) != errs.Unsupported || !strings.Contains(err.Error(), c.says)):
			t.Errorf("%s with %q: %v, want %q", c.dsn, c.unit, err, c.says)
		}
	}
}

// TestOneServerOfTwoDatabases gives a fork one server where the parent has two databases on one.
func TestOneServerOfTwoDatabases(t *testing.T) {
	opt := &settings.Options{StateDir: t.TempDir()}
	b := NewBinder(opt, accounts.New(opt), nil, nil)
	rec := store.App{App: ipc.App{Slug: "shop-1", Owner: "nobody", Fork: &ipc.Fork{ParentPath: "/srv/shop", Servers: map[string]string{
		"main": own.Kind{Major: 15, User: "ann", Database: "shop", Superuser: true}.String(),
		"old":  own.Kind{Major: 15, User: "bob", Database: "old", Superuser: true}.String(),
		"far":  own.Kind{Major: 15, User: "ann", Database: "far"}.String(),
	}}, Databases: []ipc.Database{
		{Name: "main", Driver: "postgres", DSN: "postgres://ann@localhost/shop"}, {Name: "old", Driver: "postgres", DSN: "postgres://bob@localhost/old"},
		{Name: "far", Driver: "postgres", DSN: "postgres://ann@localhost:5433/far"}, {Name: "cache", Driver: "redis", DSN: "redis://localhost"},
	}}, OwnerUID: 65534}
	list, err := b.ownServers(rec)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, o := range list {
		names = append(names, o.name+": "+strings.Join(o.dbs, ","))
	}
	if got, want := strings.Join(names, "; "), "main: main,old; far: far; cache: cache"; got != want {
		t.Fatalf("the servers are %s, want %s", got, want)
	}
	for _, role := range []string{`"ann"`, `"bob"`} {
		if !strings.Contains(string(list[0].Config), "CREATE ROLE "+role) {
			t.Errorf("no role %s in %s", role, list[0].Config)
		}
	}
}
