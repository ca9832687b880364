package pglogin

import (
	"strings"
	"testing"

	"mulligan/errs"
)

func TestParse(t *testing.T) {
	for _, tt := range []struct{ dsn, host, port, user, password, db string }{
		{"postgres://a:b%2Fc@h:1/d", "h", "1", "a", "b/c", "d"},
		{"postgresql:///d?host=/s&user=u&port=7", "/s", "7", "u", "", "d"},
		{"postgres://[::1]/d", "::1", "5432", "", "", "d"},
		{"postgres://%2Frun%2Fpg/d", "/run/pg", "5432", "", "", "d"},
		{`host=h user = u password='it''s' dbname=d`, "", "", "", "", ""},
		{`host=h user = u password='it\'s \\ = x' dbname = d`, "h", "5432", "u", `it's \ = x`, "d"},
		{"dbname=d", "/run/postgresql", "5432", "", "", "d"},
		{"", "/run/postgresql", "5432", "", "", ""},
	} {
		l, err := Parse(tt.dsn)
		if tt.host == "" {
			if err == nil {
				t.Errorf("%s is taken", tt.dsn)
			}
			continue
		}
		if err != nil || l.Host != tt.host || l.Port != tt.port || l.User != tt.user || l.Password != tt.password || l.Database != tt.db {
			t.Errorf("%s: %+v, %v", tt.dsn, l, err)
		}
	}
	for _, dsn := range []string{
		"postgres://u:s3cret@h:port/d", "postgres://u:s3cret@h,h2/d", "postgres://u:s3cret@h/d?service=x", "password='s3cret", "s3cret", "password=s3cret port=0",
		"postgres://u:s3cret@h/d?options=-c", "postgres://u:s3cret@h/d?sslkey=rel", "postgres://u:s3cret@h/d%00", "user=u password=s3cret nonsense=s3cret",
	} {
		if _, err := Parse(dsn); errs.KindOf(err) != errs.Invalid || strings.Contains(err.Error()+errs.HintOf(err), "s3cret") {
			t.Errorf("%s: %v", dsn, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(`host=h password='s\'`, "x")
	f.Add("postgres://u:p@h/d", "secret")
	f.Fuzz(func(t *testing.T, dsn, secret string) {
		_, err := Parse("password=" + Quote(secret) + " " + dsn)
		if err == nil && !strings.Contains(dsn, "password") {
			l, _ := Parse("password=" + Quote(secret) + " " + dsn)
			if l.Password != secret {
				t.Errorf("%q comes out as %q", secret, l.Password)
			}
		}
		_, _ = Parse(dsn)
	})
}
