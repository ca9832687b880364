package own

import (
	"slices"
	"strings"
	"testing"

	"mulligan/errs"
	"mulligan/snap"
)

// TestServer makes the settings of a fork's server from descriptions of the parent's.
func TestServer(t *testing.T) {
	kind := func(user string, superuser bool) string {
		return Kind{Major: 15, User: user, Database: "a&b=c", Superuser: superuser}.String()
	}
	s, err := Server(snap.Parent{DSN: "postgres://ann@127.0.0.1:5433/x", Kind: kind(`a"nn`, true)}, snap.Parent{Kind: kind("bob", false)},
		snap.Parent{Kind: kind("postgres", true)}, snap.Parent{Kind: kind(`a"nn`, true)})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := string(s.Config), `CREATE ROLE "a""nn" LOGIN SUPERUSER;`+"\n\n"; got != want {
		t.Errorf("the first roles are %q, want %q", got, want)
	}
	if s.Port != 5433 || s.SocketName != ".s.PGSQL.5433" || s.Socket != "" {
		t.Errorf("the server is at %+v", s)
	}
	if !slices.Contains(s.Programs, "/usr/lib/postgresql/15/bin/postgres") {
		t.Errorf("the programs are %v", s.Programs)
	}
	dsn, err := DSN(snap.Parent{Kind: kind("ann", false)}, "/run/it's/at/.s.PGSQL.5433")
	if err != nil || !strings.Contains(dsn, `host='/run/it\'s/at' port='5433'`) || !strings.Contains(dsn, "dbname='a&b=c'") {
		t.Errorf("the driver's DSN is %s, %v", dsn, err)
	}

	for _, bad := range []string{"", "major=x&user=a&database=b", "major=15"} {
		if _, err := Server(snap.Parent{DSN: "postgres://ann@127.0.0.1/x", Kind: bad}); err == nil {
			t.Errorf("%q describes a server", bad)
		}
	}
	if _, err := Server(snap.Parent{DSN: "postgres://ann@127.0.0.1/x", Kind: kind("a;\n\nb", true)}); errs.KindOf(err) != errs.Unsupported {
		t.Errorf("a user with line breaks: %v", err)
	}
}
