package appfile

import (
	"strings"
	"testing"

	"mulligan/errs"
	"mulligan/ipc"
)

const word = "s3cret"

func TestRedact(t *testing.T) {
	for _, c := range []struct{ driver, dsn, want string }{
		{"sqlite", "data/shop.db", "data/shop.db"},
		{"sqlite", "data/password.db", "data/password.db"},
		{"sqlite", "sqlite://u:s3cret@h/x", "***"},
		{"postgres", "postgres:///shop", "postgres:///shop"},
		{"postgres", "postgres://app@db:5432/shop", "postgres://app@db:5432/shop"},
		{"postgres", "postgres://app:s3cret@db/shop?sslmode=require", "postgres://app:***@db/shop?sslmode=require"},
		{"postgres", "postgres://db/shop?password=s3cret&user=x", "postgres://db/shop?user=x&***"},
		{"postgres", "postgres://db/shop?s3cret", "postgres://db/shop?***"},
		{"postgres", "postgres://db/shop?PASSWORD=s3cret&options=s3cret", "postgres://db/shop?***"},
		{"postgres", "postgres://db/shop?user=x&p%61ssword=s3cret", "postgres://db/shop?user=x&***"},
		{"postgres", "postgres://db/shop?user=x;password=s3cret", "postgres://db/shop?***"},
		{"postgres", "postgres://app:s3@cret@db/shop", "postgres://app:***@db/shop"},
		{"postgres", "postgres://app:s3%2Fcret@db/shop", "postgres://app:***@db/shop"},
		{"postgres", "postgres://app:s3/s3cret@db/shop", "postgres://***"},
		{"postgres", "postgres://app:12/s3cret@db/shop", "postgres://***"},
		{"postgres", "postgres://app:12?s3cret@db/shop", "postgres://app:12?***"},
		{"postgres", "postgres://app:12#s3cret@db/shop", "postgres://app:12"},
		{"postgres", "postgres://app:s3cret%zz@db/shop", "postgres://***"},
		{"postgres", "postgres://app:s3cret@%2Frun%2Fpostgresql:5433/shop", "postgres://app:***@%2Frun%2Fpostgresql:5433/shop"},
		{"postgres", "postgresql://app:s3cret@[::1]:5432/shop#s3cret", "postgresql://app:***@[::1]:5432/shop"},
		{"postgres", "host=/s dbname=x", "dbname=x host=/s"},
		{"postgres", "password=s3cret dbname=x", "dbname=x password=***"},
		{"postgres", `dbname='a\'b' sslpassword='s3cret x' x=`, `dbname='a\'b' ***`},
		{"postgres", "dbname=x password='s3cret", "***"},
		{"postgres", "s3cret", "***"},
		{"mysql", "mysql://u:s3cret@h:3306/x?socket=/s&passwd=s3cret", "mysql://u:***@h:3306/x?socket=/s&***"},
		{"mysql", "mariadb://u@h/x?tls=true", "mariadb://u@h/x?tls=true"},
		{"mysql", "u:s3cret@tcp(h)/x", "***"},
		{"mysql", "postgres://u:s3cret@h/x", "***"},
		{"redis", "redis://:s3cret@h:6379/0#s3cret", "redis://:***@h:6379/0"},
		{"redis", "rediss://h?password=s3cret", "rediss://h?***"},
		{"redis", "redis://h:s3cret/0", "redis://***"},
		{"", "redis://:s3cret@h/0", "redis://:***@h/0"},
		{"", "s3cret", "***"},
	} {
		if got := Redact(ipc.Database{Driver: c.driver, DSN: c.dsn}); got != c.want {
			t.Errorf("%s: %s, want %s", c.dsn, got, c.want)
		}
	}
}

// Wherever a secret stands but in the places that are shown, it is not shown, and
// what is shown is shown the same again.
func FuzzRedact(f *testing.F) {
	for _, dsn := range []string{"postgres://app:%@db/shop?user=x", "mysql://u:%@h/x?tls=true&%", "redis://:%@h/0#%", "host=h password=% dbname=x",
		"mariadb://u:%@h/x?%=1", "postgres://u:%@%2Frun/x", "rediss://u:%40%@h"} {
		f.Add("postgres", dsn)
		f.Add("mysql", dsn)
		f.Add("redis", dsn)
	}
	f.Fuzz(func(t *testing.T, driver, form string) {
		if driver == "sqlite" || driver == "" {
			return
		}
		db := ipc.Database{Driver: driver, DSN: strings.ReplaceAll(form, "%", word)}
		shown := Redact(db)
		if again := Redact(ipc.Database{Driver: driver, DSN: shown}); again != shown {
			t.Errorf("%q is shown as %q, and that as %q", db.DSN, shown, again)
		}
		// As a password, before the last @ of what stands before the path.
		for _, scheme := range schemes[driver] {
			for _, odd := range []string{"", "@", ":", "%40", "/", "?", "#", "%", "&", "=", ";", " "} {
				dsn := scheme + "://user:" + odd + word + odd + "@host/db?socket=/s"
				if shown := Redact(ipc.Database{Driver: driver, DSN: dsn}); strings.Contains(shown, word) {
					t.Errorf("%q is shown as %q", dsn, shown)
				}
			}
		}
	})
}

// What a driver does not know is refused, and not repeated.
func TestUnknownParameters(t *testing.T) {
	for spec, refused := range map[string]bool{
		"mysql://u@h/x?passwd=" + word:     true,
		"mysql://u@h/x?" + word + "=1":     true,
		"mysql://u@h/x?tls=true;x=" + word: true,
		"mysql://u@h/x#" + word:            true,
		"mysql://u@h/x?tls=true&socket=":   false,
		"redis://h/0?password=" + word:     true,
		"redis://h/0?tls=true":             true,
		"redis://h/0#" + word:              true,
		"redis:///?socket=/s":              false,
		"postgres://h/x?sslpasswd=" + word: true,
		"postgres://h/x?sslmode=require":   false,
	} {
		_, err := ParseDatabase(spec)
		if (err != nil) != refused || err != nil && (errs.KindOf(err) != errs.Invalid || errs.HintOf(err) == "") {
			t.Errorf("%s: %v", spec, err)
		}
		if err != nil && strings.Contains(err.Error()+errs.HintOf(err), word) {
			t.Errorf("%s: the error repeats it: %v", spec, err)
		}
	}
}

func TestOnlyKnown(t *testing.T) {
	for in, want := range map[string]string{
		"mysql://u:p@h/x?serverVersion=8&tls=true&charset=utf8": "mysql://u:p@h/x?tls=true",
		"postgres://h/x?schema=public":                          "postgres://h/x",
		"postgres://h/x?schema=public#mode=logical":             "postgres://h/x#mode=logical",
		"redis://h/0":     "redis://h/0",
		"postgres:host=h": "postgres:host=h",
	} {
		if got := OnlyKnown(in); got != want {
			t.Errorf("%s: %s, want %s", in, got, want)
		}
	}
}
