package main

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"mulligan/ipc"
	"mulligan/snap/postgres/pgtest"
	"mulligan/systemd/systemdtest"
	"mulligan/testkit"
)

const shopSQL = `SET ROLE shopper;
	CREATE TABLE items (id serial PRIMARY KEY, name text NOT NULL, price int DEFAULT 1);
	CREATE TABLE orders (id bigserial PRIMARY KEY, item int REFERENCES items, at timestamptz DEFAULT now());
	CREATE VIEW dear AS SELECT * FROM items WHERE price > 3;
	INSERT INTO items (name, price) SELECT 'item ' || i, i % 7 FROM generate_series(1, 300) i;
	INSERT INTO orders (item) SELECT 1 + i % 300 FROM generate_series(1, 1000) i`

// postgresDisasters are what agents do to databases: by themselves in a database, or
// to one, from another.
var postgresDisasters = []struct{ db, sql string }{
	{"shop", `SET ROLE shopper; ALTER TABLE items DROP COLUMN price CASCADE`},
	{"shop", `SET ROLE shopper; UPDATE items SET name = 'same'`},
	{"shop", `SET ROLE shopper; DROP TABLE orders`},
	{"postgres", `DROP DATABASE shop WITH (FORCE)`},
	{"shop", `SET ROLE shopper; TRUNCATE items CASCADE`},
	{"shop", `SET ROLE shopper; BEGIN; ALTER TABLE items ADD COLUMN half int; UPDATE items SET half = 1; COMMIT; ALTER TABLE orders RENAME TO orders_new`},
}

// lookPostgres reads the definitions and the rows of the shop's tables.
func lookPostgres(t *testing.T, c *pgtest.Cluster) string {
	if c.Psql(t, "postgres", `SELECT count(*) FROM pg_database WHERE datname = 'shop'`) == "0" {
		return "no database"
	}
	return c.Psql(t, "shop", `SELECT string_agg(t || ':' || column_name || ':' || data_type, ' ' ORDER BY t, ordinal_position)
			FROM (SELECT table_name t, * FROM information_schema.columns WHERE table_schema = 'public') x`) +
		c.Psql(t, "shop", `SELECT table_name, (xpath('/row/c/text()', query_to_xml('SELECT md5(string_agg(x::text, E''\n'' ORDER BY x::text)) c FROM ' || quote_ident(table_name) || ' x', false, true, '')))[1]
			FROM information_schema.tables WHERE table_schema = 'public' ORDER BY 1`)
}

// survive rolls the whole app back over disasters, one of them in a run, which rotate, forward
// into it again, and back once more. cause brings it about; look reads the database.
func (a *testApp) survive(t *testing.T, disasters []string, layers int, cause func(n int), look func() string) {
	t.Helper()
	d := a.d
	before := look()
	cp := a.create()
	if len(cp.DBSnapshots) != layers-1 {
		t.Fatalf("the checkpoint holds %+v", cp.DBSnapshots)
	}
	for _, n := range testkit.Sample(t, "disasters", len(disasters), 1) {
		disaster := disasters[n]
		cause(n)
		a.set(t, "later")
		after := look()
		if after == before {
			t.Fatalf("%s changes nothing", disaster)
		}
		back := ask[ipc.RollbackResult](d, "rollback", string(cp.ID), "--app", "shop")
		if !back.RolledBack || back.Verification == nil || !back.Verification.Match || len(back.Verification.Layers) != layers {
			t.Fatalf("%s: %+v", disaster, back)
		}
		if got := look(); got != before {
			t.Fatalf("%s: rolled back to\n%s\nwant\n%s", disaster, got, before)
		}
		if got := a.word(t); got != "zero" {
			t.Fatalf("%s: the app says %q", disaster, got)
		}
		ask[ipc.RollbackResult](d, "rollback", string(back.SafetyCheckpoint.ID), "--app", "shop")
		if got := look(); got != after {
			t.Fatalf("%s: rolled forward to\n%s\nwant\n%s", disaster, got, after)
		}
		if got := a.word(t); got != "later" {
			t.Fatalf("%s: the app says %q", disaster, got)
		}
		ask[ipc.RollbackResult](d, "rollback", string(cp.ID), "--app", "shop")
		if got := look(); got != before {
			t.Fatalf("%s: rolled back again to\n%s\nwant\n%s", disaster, got, before)
		}
	}
	if got := a.sound(t); got != "zero" { // all that is listed is whole, too
		t.Fatalf("in the end the app says %q", got)
	}
}

func (a *testApp) survivePostgres(t *testing.T, c *pgtest.Cluster) {
	t.Helper()
	var names []string
	for _, x := range postgresDisasters {
		names = append(names, x.sql)
	}
	a.survive(t, names, 3, func(n int) { c.Psql(t, postgresDisasters[n].db, postgresDisasters[n].sql) }, func() string { return lookPostgres(t, c) })
}

// keepsSecret checks that a password is nowhere to be seen.
func (d *daemonProcess) keepsSecret(t *testing.T, secret string) {
	t.Helper()
	if text := d.must("log", "--json", "--limit", "0", "--app", "shop") + d.must("app", "show", "--json", "--app", "shop") + d.log.String(); strings.Contains(text, secret) {
		t.Error("a password is shown")
	}
}

// testPostgres rolls a whole app, with files, SQLite and a Postgres database, back
// over what agents do to databases, and forward into it again.
func testPostgres(t *testing.T) {
	t.Parallel()
	c := pgtest.Start(t, pgtest.Options{})
	d := startDaemon(t)
	a := newApp(t, d, 50)
	c.Psql(t, "postgres", `CREATE ROLE shopper LOGIN CREATEDB PASSWORD 'hunter2'; CREATE DATABASE shop OWNER shopper`)
	c.Psql(t, "shop", shopSQL)
	d.must("app", "set", fmt.Sprintf("database=main=postgres:host=127.0.0.1 port=%d user=shopper password=hunter2 dbname=shop sslmode=disable", c.Port), "--app", "shop")
	if shown := d.must("app", "show", "--app", "shop"); !strings.Contains(shown, "db:main (postgres, logical: the app's settings name no data folder") {
		t.Errorf("app show does not say how the database is covered:\n%s", shown)
	}
	a.survivePostgres(t, c)
	d.keepsSecret(t, "hunter2")
}

// clusterUnit has the host's systemd serve a cluster.
func clusterUnit(t *testing.T, h *systemdtest.Host, c *pgtest.Cluster, name string) {
	t.Helper()
	h.WriteUnit(t, name, fmt.Sprintf("[Service]\nType=notify\nUser=postgres\nExecStart=%s/postgres -D %s\nKillSignal=SIGINT\nTimeoutSec=120\nStandardOutput=append:%s\nStandardError=inherit\n", c.Bin, c.DataDir, c.Log))
	if out, err := h.Exec("systemctl", "start", name); err != nil {
		t.Fatalf("start %s: %v\n%s", name, err, out)
	}
}

// testPostgresPhysical does the same on a host with systemd, for a database whose
// cluster the daemon manages: in care with one command, and out of it again.
func testPostgresPhysical(t *testing.T) {
	t.Parallel()
	c := pgtest.New(t, pgtest.Options{Settings: map[string]string{"wal_level": "replica"}})
	h := systemdtest.Boot(t)
	clusterUnit(t, h, c, "pg.service")
	c.Psql(t, "postgres", `CREATE ROLE shopper LOGIN; CREATE DATABASE shop OWNER shopper; CREATE ROLE mule SUPERUSER LOGIN PASSWORD 'hunter2'`)
	c.Psql(t, "shop", shopSQL)
	d := newHostDaemon(t, h)
	d.start()
	a := newUnitApp(t, h, d)

	dsn := c.TCP("mule", "hunter2", "shop")
	set := func(settings string) (string, string, int) {
		return d.mulligan("app", "set", "database=main="+dsn+"#data_dir="+c.DataDir+settings, "--app", "shop")
	}
	if _, stderr, code := set("&unit=shop.service"); code != 2 || !strings.Contains(stderr, "have the same unit") {
		t.Errorf("the app's own unit: exit %d, %s", code, stderr)
	}
	if _, stderr, code := set("&unit=nosuch.service"); code != 3 || !strings.Contains(stderr, "nosuch.service") {
		t.Errorf("no unit: exit %d, %s", code, stderr)
	}
	if _, stderr, code := d.mulligan("app", "set", "database=main="+dsn+"#unit=pg.service", "--app", "shop"); code != 2 || !strings.Contains(stderr, "has a unit, but no data_dir") {
		t.Errorf("a unit alone: exit %d, %s", code, stderr)
	}
	d.refusesOthers(t, c)
	plain := "database=main=" + c.DSNAs("shopper", "shop") + "#data_dir=" + c.DataDir + "&unit=pg.service"
	if _, stderr, code := d.mulligan("app", "set", plain+"&mode=physical", "--app", "shop"); code != 5 || !strings.Contains(stderr, "is not a superuser") {
		t.Errorf("physical, by a plain role: exit %d, %s", code, stderr)
	}
	if said := d.must("app", "set", plain, "--app", "shop"); !strings.Contains(said, "db:main (postgres, logical: ") || !strings.Contains(said, "is not a superuser") {
		t.Errorf("auto, by a plain role:\n%s", said)
	}
	said, stderr, code := set("&unit=pg.service")
	if code != 0 {
		t.Fatalf("app set: %s", stderr)
	}
	for _, word := range []string{"db:main (postgres, physical: ", "archive_mode was set", "archive_command was set", "Restart the server once", ".mulligan"} {
		if !strings.Contains(said, word) {
			t.Errorf("app set says nothing of %q:\n%s", word, said)
		}
	}
	if out, err := h.Exec("systemctl", "restart", "pg.service"); err != nil {
		t.Fatalf("restart: %v\n%s", err, out)
	}
	a.survivePostgres(t, c)
	d.keepsSecret(t, "hunter2")

	// Out of care, what is stored stays; in care again, it is as good as before.
	cp := a.create()
	before := lookPostgres(t, c)
	settings := func() string {
		return c.Psql(t, "postgres", "SELECT string_agg(name || '=' || setting, ' ') FROM pg_file_settings WHERE sourcefile LIKE '%auto.conf'")
	}
	d.must("app", "set", "database=", "database=sqlite:shop.db", "--app", "shop")
	if got := settings(); got != "archive_command=true" {
		t.Errorf("out of care, the server has %q", got)
	}
	c.Psql(t, "shop", "DELETE FROM orders")
	if out, stderr, code := set("&unit=pg.service"); code != 0 || !strings.Contains(out, "physical") {
		t.Fatalf("in care again: exit %d, %s%s", code, out, stderr)
	}
	ask[ipc.RollbackResult](d, "rollback", string(cp.ID), "--app", "shop")
	if got := lookPostgres(t, c); got != before {
		t.Errorf("after a time out of care, rolled back to\n%s\nwant\n%s", got, before)
	}
	d.must("app", "remove", "shop", "--purge")
	if _, err := os.Lstat(c.DataDir + ".mulligan"); !os.IsNotExist(err) {
		t.Errorf("purged, the store is left: %v", err)
	}
	if got := settings(); got != "archive_command=true" {
		t.Errorf("purged, the server has %q", got)
	}
}

// newHostDaemon prepares a daemon that serves the host h as root.
func newHostDaemon(t *testing.T, h *systemdtest.Host) *daemonProcess {
	t.Helper()
	d := newDaemon(t)
	config := filepath.Join(d.dir, "mulligand.toml")
	if err := os.WriteFile(config, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	d.args, d.env = []string{"--config", config}, []string{"DBUS_SYSTEM_BUS_ADDRESS=" + h.Address}
	return d
}

// newUnitApp registers the app as a unit of h.
func newUnitApp(t *testing.T, h *systemdtest.Host, d *daemonProcess) *testApp {
	t.Helper()
	a := &testApp{d: d, ws: filepath.Join(d.dir, "ws"), addr: freeAddr(t)}
	if err := os.Mkdir(a.ws, 0o755); err != nil {
		t.Fatal(err)
	}
	for i := range 50 {
		a.write(t, fmt.Sprintf("src/d0/f%d", i), "file")
	}
	a.set(t, "zero")
	h.WriteUnit(t, "shop.service", fmt.Sprintf("[Service]\nType=exec\nWorkingDirectory=%s\nExecStart=%s serve-app %s page.html\n", a.ws, filepath.Join(bin, "app"), a.addr))
	if out, err := h.Exec("systemctl", "start", "shop.service"); err != nil {
		t.Fatalf("start: %v\n%s", err, out)
	}
	d.must("app", "add", "--slug", "shop", "--dir", a.ws, "--unit", "shop.service", "--db", "sqlite:shop.db", "--health", "http://"+a.addr+"/")
	a.up(t)
	return a
}

// refusesOthers checks that only root names a cluster, and that it is said whom to ask.
func (d *daemonProcess) refusesOthers(t *testing.T, c *pgtest.Cluster) {
	t.Helper()
	ws := filepath.Join(d.dir, "theirs")
	if err := os.Mkdir(ws, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(ws, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	d.cred = &syscall.Credential{Uid: 65534, Gid: 65534}
	defer func() { d.cred = nil }()
	_, stderr, code := d.mulligan("app", "add", "--slug", "theirs", "--dir", ws, "--db", c.TCP("mule", "hunter2", "shop")+"#data_dir="+c.DataDir+"&unit=pg.service")
	if code != 5 || !strings.Contains(stderr, "only root may name") || !strings.Contains(stderr, "ask an administrator: `mulligan app set") || strings.Contains(stderr, "hunter2") {
		t.Errorf("another user: exit %d, %s", code, stderr)
	}
}

// ownServer starts the server of a cluster as its owner would, by pg_ctl.
func ownServer(t testing.TB, c *pgtest.Cluster) {
	t.Helper()
	pgCtl(t, c, "start")
	t.Cleanup(func() {
		_ = c.Command("pg_ctl", "stop", "-s", "-m", "immediate", "-D", c.DataDir).Run() // it may be down
	})
}

func pgCtl(t testing.TB, c *pgtest.Cluster, verb string) {
	t.Helper()
	args := []string{verb, "-w", "-s", "-D", c.DataDir}
	if verb != "stop" {
		args = append(args, "-l", c.Log)
	}
	cmd := c.Command("pg_ctl", args...)
	if err := cmd.Run(); err != nil { // without pipes, which the server would keep open
		t.Fatalf("pg_ctl %s: %v", verb, err)
	}
}

// postmaster is the first line of the server's postmaster.pid.
func postmaster(t *testing.T, c *pgtest.Cluster) string {
	t.Helper()
	text, err := os.ReadFile(c.DataDir + "/postmaster.pid")
	if err != nil {
		t.Fatal(err)
	}
	pid, _, _ := strings.Cut(string(text), "\n")
	return pid
}

// testPostgresOwned takes a cluster back that its owner started, without systemd and
// without a word of root's: at a daemon of the owner's own, or at the host's; the next run
// takes the other.
func testPostgresOwned(t *testing.T) {
	t.Parallel()
	daemons := map[string]func(t *testing.T, cred *syscall.Credential) *daemonProcess{
		"rootless": func(t *testing.T, cred *syscall.Credential) *daemonProcess {
			d := newDaemon(t)
			if err := os.Chown(d.dir, int(cred.Uid), int(cred.Gid)); err != nil {
				t.Fatal(err)
			}
			d.cred = cred
			d.start()
			return d
		},
		"host": func(t *testing.T, cred *syscall.Credential) *daemonProcess {
			d := hostDaemon(t)
			d.cred = cred
			return d
		},
	}
	names := slices.Sorted(maps.Keys(daemons))
	for _, i := range testkit.Sample(t, "daemons", len(names), 1) {
		name := names[i]
		t.Run(name, func(t *testing.T) {
			c := pgtest.New(t, pgtest.Options{Settings: map[string]string{"wal_level": "replica"}})
			ownServer(t, c)
			t.Cleanup(func() {
				if text, err := os.ReadFile(c.DataDir + ".mulligan/server.log"); err == nil && t.Failed() {
					t.Logf("the log of the server that the daemon started:\n%s", text)
				}
			})
			c.Psql(t, "postgres", "CREATE ROLE shopper LOGIN; CREATE DATABASE shop OWNER shopper")
			c.Psql(t, "shop", shopSQL)
			uid, gid := c.Owner()
			d := daemons[name](t, &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)})
			a := newApp(t, d, 5)
			if name == "host" {
				d.refusesFolders(t, c)
			}
			said := d.must("app", "set", "database=main="+c.DSN("shop")+"#data_dir="+c.DataDir, "--app", "shop")
			for _, word := range []string{"db:main (postgres, physical: ", "Restart the server once"} {
				if !strings.Contains(said, word) {
					t.Errorf("app set says nothing of %q:\n%s", word, said)
				}
			}
			pgCtl(t, c, "restart")
			a.survivesOwned(t, c)
			d.must("app", "remove", "shop", "--purge")
			if _, err := os.Lstat(c.DataDir + ".mulligan"); !os.IsNotExist(err) {
				t.Errorf("purged, the store is left: %v", err)
			}
			c.Psql(t, "postgres", "SELECT 1")
		})
	}
}

func (a *testApp) survivesOwned(t *testing.T, c *pgtest.Cluster) {
	t.Helper()
	d := a.d
	before := lookPostgres(t, c)
	cp := a.create()
	c.Psql(t, "postgres", "DROP DATABASE shop WITH (FORCE)")
	to := func(id ipc.CheckpointID, want string) ipc.RollbackResult {
		t.Helper()
		res := ask[ipc.RollbackResult](d, "rollback", string(id), "--app", "shop")
		if got := lookPostgres(t, c); !res.RolledBack || got != want {
			t.Fatalf("rolled back to\n%s\nwant\n%s\n%+v", got, want, res)
		}
		return res
	}
	back := to(cp.ID, before)
	to(back.SafetyCheckpoint.ID, "no database")
	to(cp.ID, before)

	// The daemon's end is not the server's, and the next daemon knows it.
	server := postmaster(t, c)
	d.kill()
	if now := postmaster(t, c); now != server {
		t.Errorf("the server was %s, and is %s", server, now)
	}
	c.Psql(t, "shop", "DELETE FROM orders")
	cred := d.cred
	if d.args != nil { // the host's
		d.cred = nil
	}
	d.start()
	d.cred = cred
	to(cp.ID, before)

	// A server that is down is started by a rollback.
	pgCtl(t, c, "stop")
	to(cp.ID, before)

	// A cluster that nothing can start any more goes back all the same.
	for _, ruin := range []func() error{
		func() error { return os.RemoveAll(c.DataDir) }, // under the running server
		func() error {
			pgCtl(t, c, "stop")
			return os.WriteFile(c.DataDir+"/postgresql.conf", []byte("port = many\n"), 0o600)
		},
	} {
		if err := ruin(); err != nil {
			t.Fatal(err)
		}
		back := to(cp.ID, before)
		a.up(t)
		if warned := strings.Join(back.Warnings, " "); !strings.Contains(warned, "bytes were kept") {
			t.Errorf("the receipt does not say that files were kept as they are: %q", warned)
		}
	}
}

// refusesFolders checks that nobody has the daemon handle a folder that is another's, or
// can be put in the place of another.
func (d *daemonProcess) refusesFolders(t *testing.T, c *pgtest.Cluster) {
	t.Helper()
	link := filepath.Join(d.dir, "link")
	open := filepath.Join(d.dir, "open")
	if err := errors.Join(os.Symlink(c.DataDir, link), os.MkdirAll(open+"/data", 0o700), os.Chmod(open, 0o777),
		os.Chown(open+"/data", int(d.cred.Uid), int(d.cred.Gid))); err != nil {
		t.Fatal(err)
	}
	refused := func(dir string) {
		t.Helper()
		_, stderr, code := d.mulligan("app", "set", "database=main="+c.DSN("shop")+"#data_dir="+dir, "--app", "shop")
		if code != 5 || !strings.Contains(stderr, "the data folder") {
			t.Errorf("%s: exit %d, %s", dir, code, stderr)
		}
	}
	for _, dir := range []string{"/root", "/etc", link, open + "/data", "/nowhere"} {
		refused(dir)
	}
	mine := d.cred
	d.cred = &syscall.Credential{Uid: stranger, Gid: stranger}
	defer func() { d.cred = mine }()
	ws := filepath.Join(d.dir, "theirs")
	if err := errors.Join(os.Mkdir(ws, 0o755), os.Chown(ws, stranger, stranger)); err != nil {
		t.Fatal(err)
	}
	_, stderr, code := d.mulligan("app", "add", "--slug", "theirs", "--dir", ws, "--db", "main="+c.DSN("shop")+"#mode=physical&data_dir="+c.DataDir)
	if code != 5 || !strings.Contains(stderr, "the data folder") {
		t.Errorf("another user: exit %d, %s", code, stderr)
	}
}
