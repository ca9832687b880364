package mysql

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/cas"
)

// TestOwnServer makes the settings and the accounts of a fork's server from the description of another server. A name that
// contains quotes is quoted, and a setting that could be another option is left out.
func TestOwnServer(t *testing.T) {
	kind, err := json.Marshal(serverKind{
		User: "shopper", Port: "3306", Host: "127.0.0.1", Accounts: []string{"shopper@10.0.0.%", `cl'erk\@localhost`, "x\x00@y", "broken"},
		Settings: map[string]string{"sql_mode": "ANSI,TRADITIONAL", "innodb_page_size": "65536", "lower_case_table_names": "1",
			"event_scheduler": "DISABLED", "collation_server": "utf8 $(touch /x)", "max_allowed_packet": "1\n--init-file=/x", "datadir": "/x"},
	})
	check(t, err)
	p := snap.Parent{DSN: "mysql://shopper:hunter2@127.0.0.1/shop", Kind: string(kind)}
	s, err := OwnServer(p, p)
	check(t, err)
	args, config := strings.Join(s.Args, " "), string(s.Config)
	for _, want := range []string{"--sql-mode=ANSI,TRADITIONAL", "--innodb-page-size=65536", "--lower-case-table-names=1"} {
		if !strings.Contains(args, want) {
			t.Errorf("no %s in %s", want, args)
		}
	}
	for _, never := range []string{"touch", "/x", "event", "hunter2"} {
		if strings.Contains(args+s.Setup+config, never) {
			t.Errorf("%s is in %s\n%s\n%s", never, args, s.Setup, config)
		}
	}
	if !strings.Contains(s.Setup, " --innodb-page-size=65536") {
		t.Errorf("the system tables are made by %s", s.Setup)
	}
	for _, want := range []string{
		"CREATE USER IF NOT EXISTS 'shopper'@'10.0.0.%' IDENTIFIED VIA mysql_native_password USING '*58815970BE77B3720276F63DB198B1FA42E5CC02';\n",
		"CREATE USER IF NOT EXISTS 'shopper'@'localhost' IDENTIFIED VIA mysql_native_password",
		`CREATE USER IF NOT EXISTS 'cl\'erk\\'@'localhost' ACCOUNT LOCK;` + "\n",
	} {
		if strings.Count(config, want) != 1 {
			t.Errorf("no %s in %s", want, config)
		}
	}
	if s.Port != 3306 || s.Socket != "" || s.SocketName != "mysqld.sock" {
		t.Errorf("the server is at %+v", s)
	}
}

func driverOf(t *testing.T, s *server, db string) *Driver {
	t.Helper()
	dir := t.TempDir()
	cfg := config(dir, s.socket(), db)
	store, err := cas.Open(filepath.Join(dir, "store"), cas.Options{})
	check(t, err)
	t.Cleanup(func() { check(t, store.Close()) })
	cfg.Store = store
	d, err := New(cfg)
	check(t, err)
	return d
}

// TestServerKind describes a real server, which an own server's accounts and settings follow.
func TestServerKind(t *testing.T) {
	needServer(t)
	s := ownServer(t, "--sql-mode=ANSI")
	s.sql(t, "", `CREATE DATABASE kinds; CREATE USER ann@localhost; GRANT ALL ON *.* TO ann@localhost; CREATE DEFINER=bob@'%' VIEW kinds.v AS SELECT 1`)
	d := driverOf(t, s, "kinds")
	text, err := d.ServerKind(t.Context())
	if oracle {
		if errs.KindOf(err) != errs.Unsupported {
			t.Errorf("a MySQL server is described as %s, %v", text, err)
		}
		return
	}
	check(t, err)
	k, err := parseKind(text)
	check(t, err)
	if !strings.Contains(k.Settings["sql_mode"], "ANSI_QUOTES") || k.Settings["innodb_page_size"] != "16384" || k.Socket != s.socket() {
		t.Errorf("the server is described as %s", text)
	}
	if got := strings.Join(k.Accounts, " "); got != "root@localhost bob@%" {
		t.Errorf("the accounts are %s", got)
	}
	check(t, d.Answers(t.Context()))
	s.kill()
	if d.Answers(t.Context()) == nil {
		t.Error("a server that was killed answers")
	}
}
