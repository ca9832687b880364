package appfile

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"mulligan/errs"
	"mulligan/ipc"
)

const whole = `slug = "shop"
owner = "alice"
workspace = "/srv/shop"
unit = "of-app-shop.service"
domain = "of-app-shop"
uri = "qemu:///system"
auto = true
exclude = ["*.log"]

[health]
url = "http://127.0.0.1:8080/healthz"
timeout = "10s"

[retention]
keep_last = 3
daily_days = 7
keep_turns = 50
max_bytes = "1.5GiB"
expire_after = "720h"

[[database]]
name = "main"
driver = "postgres"
dsn = "postgres:///shop"
mode = "physical"
data_dir = "/var/lib/postgresql/15/main"
unit = "postgresql@15-main.service"

[[database]]
driver = "sqlite"
dsn = "var/Cache.db"
`

func TestParse(t *testing.T) {
	got, err := Parse([]byte(whole))
	if err != nil {
		t.Fatal(err)
	}
	want := ipc.App{
		Slug: "shop", Owner: "alice", Workspace: "/srv/shop", Unit: "of-app-shop.service",
		Domain: "of-app-shop", URI: "qemu:///system", Auto: true, Exclude: []string{"*.log"},
		Health:    &ipc.Health{URL: "http://127.0.0.1:8080/healthz", Timeout: "10s"},
		Retention: ipc.Retention{KeepLast: 3, DailyDays: 7, KeepTurns: 50, KeepSafety: 10, MaxBytes: 3 << 29, ExpireAfter: "720h"},
		Databases: []ipc.Database{
			{Name: "main", Driver: "postgres", DSN: "postgres:///shop", Mode: "physical",
				DataDir: "/var/lib/postgresql/15/main", Unit: "postgresql@15-main.service"},
			{Name: "cache", Driver: "sqlite", DSN: "var/Cache.db"},
		},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestParseDefaults(t *testing.T) {
	got, err := Parse([]byte("slug = 'a'\nworkspace = '/w'\nrun = ['./a', '-v']\n[retention]\nmax_bytes = 5\n"))
	if err != nil {
		t.Fatal(err)
	}
	retention := ipc.DefaultRetention()
	retention.MaxBytes = 5
	want := ipc.App{Slug: "a", Workspace: "/w", Run: []string{"./a", "-v"}, Retention: retention}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestParseRefuses(t *testing.T) {
	tests := []struct {
		name, old, new string // the whole file with old replaced by new
		want, hint     string
	}{
		{"unknown key", "auto =", "atuo =", `app file:7: unknown key "atuo"`, `"auto"`},
		{"unknown key in table", "keep_last =", "keepLats =", `app file:15: unknown key "keepLats" in [retention]`, `"keep_last"`},
		{"unknown key in second database", "dsn = \"var", "path = \"var", `unknown key "path" in [database]`, "the keys here are name, driver, dsn, mode"},
		{"unknown table", "[health]", "[heatlh]", `app file:10: unknown key "heatlh"`, `"health"`},
		{"wrong type", "auto = true", "auto = \"yes\"", "app file:7: auto has the wrong type", "true or false"},
		{"not TOML", "auto = true", "auto true", "app file:7: this is not TOML", "quoted"},
		{"twice", "auto = true", "auto = true\nauto = true", "app file:8: this is not TOML", ""},
		{"no slug", `slug = "shop"`, "", "app file: the app has no slug", ""},
		{"bad slug", `"shop"`, `"Shop"`, `app file:1: "Shop" is not a slug`, "lower-case"},
		{"long slug", `"shop"`, `"` + strings.Repeat("a", 64) + `"`, "app file:1: ", "at most 63"},
		{"no workspace", `workspace = "/srv/shop"`, "", "no workspace", ""},
		{"relative workspace", `"/srv/shop"`, `"srv/shop"`, "app file:3: workspace", "absolute"},
		{"unclean workspace", `"/srv/shop"`, `"/srv/../shop"`, "app file:3: workspace", "absolute"},
		{"root workspace", `"/srv/shop"`, `"/"`, "whole host", ""},
		{"owner", `"alice"`, `"al ice"`, "app file:2: ", "user"},
		{"unit", `"of-app-shop.service"`, `"of-app-shop"`, "app file:4: ", "shop.service"},
		{"unit and run", "auto =", "run = ['x']\nauto =", "app file:7: the app has both", ""},
		{"uri alone", `domain = "of-app-shop"`, "", "app file:6: uri is set", "domain"},
		{"uri of another host", `uri = "qemu:///system"`, `uri = "qemu+ssh://db2/system"`, "app file:6: uri \"qemu+ssh://db2/system\" is not the address of", "qemu:///system"},
		{"containers", `"of-app-shop.service"`, `"compose:a/b"`, "app file:4: ", "compose:shop"},
		{"containers and domain", `"of-app-shop.service"`, `"compose:shop"`, "app file:5: the app has both a domain", "two apps"},
		{"volumes of a service", "auto =", "volumes = ['a']\nauto =", "app file:7: engine or volumes are set", "compose:shop"},
		{"exclude", `["*.log"]`, `[""]`, "app file:8: exclude", ""},
		{"health both", "timeout = \"10s\"", "command = ['x']", "app file:10: a health check", "exactly one"},
		{"health url", `"http://127.0.0.1:8080/healthz"`, `"ftp://h/"`, "app file:11: the health url", "http://"},
		{"health timeout", `"10s"`, `"10"`, "app file:12: health timeout", "10s"},
		{"negative", "keep_last = 3", "keep_last = -1", "app file:15: keep_last is negative", ""},
		{"negative size", `"1.5GiB"`, "-1", "app file:18: max_bytes is not a size", "20GiB"},
		{"size", `"1.5GiB"`, `"lots"`, "app file:18: max_bytes is not a size", "20GiB"},
		{"expiry in days", `"720h"`, `"30d"`, "app file:19: expire_after", "720h"},
		{"duplicate database", `driver = "sqlite"`, "driver = \"sqlite\"\nname = \"main\"", "app file:31: two databases", "of its own"},
		{"unknown driver", `driver = "sqlite"`, `driver = "oracle"`, "app file:30: ", "postgres"},
		{"unnamable", `"var/Cache.db"`, `"var/.db"`, "app file:29: the database needs a name", ""},
		{"mode", `"physical"`, `"magic"`, "app file:25: database main has no such mode", "logical"},
		{"physical without a cluster", "data_dir =", "#", "app file:21: database main has a unit, but no data_dir", "unit ="},
		{"physical without its folder", "data_dir = \"/var/lib/postgresql/15/main\"\nunit = \"postgresql@15-main.service\"", "", "app file:25: database main: mode physical needs the cluster's data folder", "data_dir ="},
		{"relative data folder", `"/var/lib/postgresql/15/main"`, `"pg"`, "app file:26: data_dir of database main", "data_dir ="},
		{"unit of a cluster", `"postgresql@15-main.service"`, `"postgresql"`, "app file:27: unit of database main", "unit ="},
		{"cluster of another", "driver = \"sqlite\"", "driver = \"sqlite\"\nunit = \"a.service\"", "data_dir and unit are for postgres", ""},
		{"mode of another", "driver = \"sqlite\"", "driver = \"sqlite\"\nmode = \"logical\"", "sqlite has only one", "leave mode out"},
		{"pairs that are none", `"postgres:///shop"`, `"dbname"`, "app file:24: the dsn", "dbname=DATABASE"},
		{"forks' folder", "[health]", "[fork]\ndir = \"../a/\"\n[health]", "app file:11: the forks' folder \"../a/\" is not a plain path", "../forks"},
		{"forks' port", "[health]", "[fork]\nexpose = [3000, 70000]\n[health]", "app file:11: 70000 is not a port", "65535"},
		{"forks' port twice", "[health]", "[fork]\nexpose = [3000, 3000]\n[health]", "app file:11: 3000 is not a port, or is listed twice", "65535"},
		{"forks' expiry", "[health]", "[fork]\nexpire_after = \"1d\"\n[health]", "app file:11: expire_after \"1d\" of forks", "24h"},
		{"forks' isolation", "[health]", "[fork]\nisolation = \"jail\"\n[health]", "app file:11: \"jail\" is not a way to keep forks apart", "namespace or ports"},
		{"forks' variable", "[health]", "[fork]\nports = [\"8080\"]\n[health]", "app file:11: \"8080\" is not a variable's name", "ports ="},
		{"forks' variable twice", "[health]", "[fork]\nports = [\"A\", \"PORT\", \"PORT\"]\n[health]", "app file:11: \"PORT\" is not a variable's name, or is listed twice", "ports ="},
		{"forks' dotenv outside", "[health]", "[fork]\ndotenv = [\"../.env\"]\n[health]", "app file:11: \"../.env\" is not the path", "dotenv ="},
		{"forks' dotenv twice", "[health]", "[fork]\ndotenv = [\"a/.env\", \"a/.env\"]\n[health]", "app file:11: \"a/.env\" is not the path", "dotenv ="},
		{"scheme of another", `"postgres:///shop"`, `"mysql:///shop"`, "app file:24: the dsn", "postgres://"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Parse([]byte(strings.Replace(whole, tt.old, tt.new, 1)))
			if err == nil {
				t.Fatal("accepted")
			}
			if errs.KindOf(err) != errs.Invalid || !strings.Contains(err.Error(), tt.want) || !strings.Contains(errs.HintOf(err), tt.hint) {
				t.Errorf("got %q (hint %q), want %q (hint %q)", err, errs.HintOf(err), tt.want, tt.hint)
			}
			if errs.HintOf(err) == "" || strings.Contains(err.Error()+errs.HintOf(err), "\n") {
				t.Errorf("%q (hint %q): not one line with a remedy", err, errs.HintOf(err))
			}
		})
	}
}

func TestParseDatabase(t *testing.T) {
	tests := []struct {
		spec string
		want ipc.Database
	}{
		{"sqlite:var/App.Data.db", ipc.Database{Name: "app.data", Driver: "sqlite", DSN: "var/App.Data.db"}},
		{"sqlite:guestbook.db", ipc.Database{Name: "guestbook", Driver: "sqlite", DSN: "guestbook.db"}},
		{"sqlite:///srv/a.db", ipc.Database{Name: "a", Driver: "sqlite", DSN: "/srv/a.db"}},
		{"main=sqlite:a=b.db", ipc.Database{Name: "main", Driver: "sqlite", DSN: "a=b.db"}},
		{"postgres://u:p@h:5432/Shop?sslmode=disable", ipc.Database{Name: "shop", Driver: "postgres", DSN: "postgres://u:p@h:5432/Shop?sslmode=disable"}},
		{"postgresql://h", ipc.Database{Name: "postgres", Driver: "postgres", DSN: "postgresql://h"}},
		{"db-1=mysql://h/x", ipc.Database{Name: "db-1", Driver: "mysql", DSN: "mysql://h/x"}},
		{"postgres:host=/run/pg dbname='My Shop' user=u", ipc.Database{Name: "db", Driver: "postgres"}}, // its own name isn't usable
		{"a=postgres:host=/run/pg dbname='My \\'Shop'", ipc.Database{Name: "a", Driver: "postgres", DSN: "host=/run/pg dbname='My \\'Shop'"}},
		{"postgres:dbname=Shop", ipc.Database{Name: "shop", Driver: "postgres", DSN: "dbname=Shop"}},
		{"postgres:///shop?host=/s#mode=physical&data_dir=/d/15&unit=pg@15-main.service", ipc.Database{Name: "shop", Driver: "postgres",
			DSN: "postgres:///shop?host=/s", Mode: "physical", DataDir: "/d/15", Unit: "pg@15-main.service"}},
		{"postgres:///shop#data_dir=/d/15", ipc.Database{Name: "shop", Driver: "postgres", DSN: "postgres:///shop", DataDir: "/d/15"}},
		{"redis://localhost/3", ipc.Database{Name: "redis-3", Driver: "redis", DSN: "redis://localhost/3"}},
		{"redis://localhost", ipc.Database{Name: "redis", Driver: "redis", DSN: "redis://localhost"}},
	}
	for _, tt := range tests {
		got, err := ParseDatabase(tt.spec)
		if tt.want.DSN == "" || tt.spec == "sqlite:var/App.Data.db" { // its own name isn't usable
			if errs.KindOf(err) != errs.Invalid {
				t.Errorf("%s: %v", tt.spec, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", tt.spec, err)
		} else if d := cmp.Diff(tt.want, got); d != "" {
			t.Errorf("%s: %s", tt.spec, d)
		}
	}
}

func TestParseDatabaseRefusesAndKeepsSecrets(t *testing.T) {
	for _, spec := range []string{
		"", "shop", "=sqlite:a.db", "sqlite:", "oracle://u:s3cret@h/x", "Bad Name=postgres://u:s3cret@h/x",
		"postgres://u:s3cret@h:port/x", "postgres:u:s3cret@h/x", "mysql://u:s3cret/@h/x", "postgres://u:%zzs3cret@h/x",
		"sqlite::memory:", "sqlite:file:x.db", "sqlite:a\nb.db", "redis:s3cret", "postgres://u:1/s3cret@h/x", "postgres:s3cret", "postgres:password='s3cret", "postgres:dbname=x s3cret",
		"postgres://u:s3cret@h/x#s3cret=1", "postgres://u:s3cret@h/x#mode=s3cret", "postgres://u:s3cret@h/x#mode=physical&unit=x.service", "postgres://h/x#%s3cret",
	} {
		_, err := ParseDatabase(spec)
		if err == nil {
			t.Errorf("%q accepted", spec)
			continue
		}
		if errs.KindOf(err) != errs.Invalid || errs.HintOf(err) == "" {
			t.Errorf("%q: %v lacks kind or hint", spec, err)
		}
		if strings.Contains(err.Error()+errs.HintOf(err), "s3cret") {
			t.Errorf("%q: the error shows the password: %v", spec, err)
		}
	}
}

// Whatever is wrong around it, a DSN in a file is never repeated.
func TestParseKeepsSecrets(t *testing.T) {
	for _, line := range []string{
		`dsn = postgres://u:s3cret@h/x`, `dsn = "postgres://u:s3cret@h/x`, `dsn = "postgres://u:s3cret@h/x" s3cret`,
		`dsn = "postgres://u:\s3cret@h/x"`, `dsn = 1s3cret`, `dsn = 2020-01-01s3cret`, `dsn = trues3cret`, `dsn = "mysql://u:s3cret@h/x"`,
		`driver = "postgres://u:s3cret@h/x"`, `name = "postgres://u:s3cret@h/x"`, `mode = "s3cret"`, `dsn = ["s3cret"]`,
		`dsn = 0xs3cret`, `dsn = +s3cret`, `dsn = infs3cret`, `dsn = 99999999999999999999`, "dsn = \"s3cret\x01\"", `dsn = '''s3cret`,
	} {
		_, err := Parse([]byte("slug = 'a'\nworkspace = '/w'\n[[database]]\nname = 'x'\ndriver = 'postgres'\n" + line + "\n"))
		if err == nil {
			t.Errorf("%s: accepted", line)
			continue
		}
		if s := err.Error() + errs.HintOf(err); strings.Contains(s, "s3cret") || strings.Contains(s, "999") {
			t.Errorf("%s: %s", line, s)
		}
	}
}

func TestLoad(t *testing.T) {
	path := filepath.Join(t.TempDir(), "shop.toml")
	if _, err := Load(path); errs.KindOf(err) != errs.NotFound {
		t.Errorf("missing file: %v", err)
	}
	if err := os.WriteFile(path, []byte("slug = 'shop'\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(path); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("error without the file's name: %v", err)
	}
	if err := os.WriteFile(path, []byte(whole), 0o600); err != nil {
		t.Fatal(err)
	}
	app, err := Load(path)
	if err != nil || app.Slug != "shop" {
		t.Errorf("%+v, %v", app, err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(whole)
	f.Add("slug = 'a'\nworkspace = '/w'\nhealth = { command = ['true'] }\n")
	f.Add("[[database]]\n[database]\n")
	f.Fuzz(func(t *testing.T, text string) {
		app, err := Parse([]byte(text))
		if err != nil {
			if errs.KindOf(err) != errs.Invalid || strings.Contains(err.Error()+errs.HintOf(err), "\n") {
				t.Fatalf("%q: kind %s", err, errs.KindOf(err))
			}
			return
		}
		if err := Validate(app); err != nil {
			t.Fatalf("parsed, and not valid: %v", err)
		}
	})
}

func FuzzParseDatabase(f *testing.F) {
	f.Add("", "postgres", "u", "h/x")
	f.Add("main", "redis", "", "localhost:6379/1")
	f.Fuzz(func(t *testing.T, name, scheme, user, rest string) {
		const secret = "s3cret-Pa55word"
		if name != "" {
			name += "="
		}
		db, err := ParseDatabase(name + scheme + "://" + user + ":" + secret + "@" + rest)
		if err != nil {
			if strings.Contains(err.Error()+errs.HintOf(err), secret) {
				t.Fatalf("shows the password: %v", err)
			}
			return
		}
		if f := checkDatabase(db); f != nil {
			t.Fatalf("parsed, and not valid: %v", f)
		}
	})
}
