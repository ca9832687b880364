package logical

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"mulligan/errs"
	"mulligan/privsep"
	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/postgres/pglogin"
	"mulligan/snap/postgres/pgtest"
	"mulligan/testkit"
)

const password = `it's:secret\`

// fails checks that err is of the kind, one line, with a hint that has a word
// in it, and without a password.
func fails(t *testing.T, what string, err error, kind errs.Kind, hint string) {
	t.Helper()
	switch {
	case errs.KindOf(err) != kind:
		t.Errorf("%s: %v is %q, want %q", what, err, errs.KindOf(err), kind)
	case err == nil:
	case !strings.Contains(errs.HintOf(err), hint):
		t.Errorf("%s: the hint of %v is %q, without %q", what, err, errs.HintOf(err), hint)
	case strings.Contains(err.Error(), "\n"), strings.Contains(err.Error(), password), strings.Contains(err.Error(), "secret"):
		t.Errorf("%s: %q", what, err)
	}
}

// with gives a driver of the same state with another configuration.
func (s *subject) with(t *testing.T, change func(*Config)) *Driver {
	t.Helper()
	cfg := s.cfg
	change(&cfg)
	d, err := New(cfg)
	check(t, err)
	return d
}

func tryCapture(t *testing.T, d *Driver) error {
	_, err := d.Capture(t.Context(), snap.CaptureRequest{ID: "db-fails"})
	if kind := errs.KindOf(d.Verify(t.Context(), "db-fails", snap.Quick)); err != nil && kind != errs.NotFound {
		t.Errorf("after a capture that failed, the snapshot is %q", kind)
	}
	return err
}

// Whatever is wrong, there is one clear error, and the live database is as it was.
func testTroubles(t *testing.T) {
	t.Parallel()
	c := startCluster(t, pgtest.Options{})
	s := newSubject(t, c)
	s.Mutate(t, 1)
	good := s.capture(t)
	s.Mutate(t, 2)
	base, before := s.capture(t), s.dump(t, "")
	prepare := func(d *Driver) error {
		_, err := d.Prepare(t.Context(), snap.RestoreRequest{ID: "op-1", Target: good, Base: base})
		if _, none := d.Resume(t.Context(), "op-1"); err != nil && errs.KindOf(none) != errs.NotFound {
			t.Errorf("after a Prepare that failed there is a switch: %v", none)
		}
		return err
	}
	for _, tt := range []struct {
		name   string
		change func(*Config)
		do     func(*Driver) error
		kind   errs.Kind
		hint   string
	}{
		{"wrong password", func(c *Config) { c.DSN = s.c.TCP(s.owner(), "wrong secret", s.db) }, nil, errs.Denied, "password"},
		{"no password", func(c *Config) { c.DSN = s.c.TCP(s.owner(), "", s.db) }, nil, errs.Denied, "password"},
		{"right password", func(c *Config) { c.DSN = s.c.TCP(s.owner(), password, s.db) }, nil, "", ""},
		{"nobody listens", func(c *Config) { c.DSN = "postgres://a:secret@127.0.0.1:1/x?sslmode=disable" }, nil, errs.Unavailable, "start PostgreSQL"},
		{"no socket", func(c *Config) { c.DSN = "host=/nowhere user=a password=secret dbname=x" }, nil, errs.Unavailable, "start PostgreSQL"},
		{"no such database", func(c *Config) { c.App, c.DSN = "other", s.c.DSNAs(s.owner(), "nowhere") }, nil, errs.NotFound, "create it"},
		{"no tools", func(c *Config) { c.App, c.BinDirs = "fresh", []string{t.TempDir()} }, nil, errs.Unsupported, "apt-get install postgresql-client-15"},
		{"no tools to restore", func(c *Config) { c.BinDirs = []string{t.TempDir()} }, prepare, errs.Unsupported, "postgresql-client-15"},
		{"not the owner", func(cfg *Config) {
			c.Psql(t, "postgres", "DROP ROLE IF EXISTS stranger; CREATE ROLE stranger LOGIN CREATEDB")
			cfg.DSN = s.c.DSNAs("stranger", s.db)
		}, prepare, errs.Denied, `GRANT "` + s.owner() + `" TO "stranger"`},
		{"may not read", func(cfg *Config) { cfg.App, cfg.DSN = "fresh", s.c.DSNAs("stranger", s.db) }, nil, errs.Denied, ""},
		{"may not create", func(*Config) { c.Psql(t, "postgres", "ALTER ROLE "+s.owner()+" NOCREATEDB") }, prepare, errs.Denied, `ALTER ROLE "` + s.owner() + `" CREATEDB`},
		{"may create again", func(*Config) { c.Psql(t, "postgres", "ALTER ROLE "+s.owner()+" CREATEDB") }, nil, "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := s.with(t, tt.change)
			do := tt.do
			if do == nil {
				do = func(d *Driver) error { return tryCapture(t, d) }
			}
			fails(t, tt.name, do(d), tt.kind, tt.hint)
			if tt.kind == "" {
				check(t, d.Delete(t.Context(), "db-fails"))
			}
			if s.c.Running() {
				s.lives(t, tt.name, before)
				s.leftovers(t)
			}
		})
	}

	t.Run("locked by a migration", func(t *testing.T) {
		d := s.with(t, func(c *Config) { c.App, c.LockTimeout = "fresh", 50e6 })
		conn, err := d.connect(t.Context(), s.db)
		check(t, err)
		defer conn.close()
		check(t, conn.exec(t.Context(), "BEGIN; LOCK TABLE api.docs"))
		fails(t, "locked", tryCapture(t, d), errs.Busy, "pg_locks")
	})
	t.Run("sessions of others", func(t *testing.T) {
		c.Psql(t, "postgres", "REVOKE pg_signal_backend FROM "+s.owner())
		other, err := s.with(t, func(cfg *Config) { cfg.DSN = c.DSN(s.db) }).connect(t.Context(), s.db)
		check(t, err)
		defer other.close()
		sw := s.prepare(t, good)
		fails(t, "sessions of others", sw.Commit(t.Context()), errs.Denied, "GRANT pg_signal_backend")
		s.lives(t, "sessions of others", before)
		check(t, sw.Undo(t.Context()))
		check(t, sw.Finish(t.Context()))
		s.leftovers(t)
	})
	t.Run("server down", func(t *testing.T) {
		sw := s.prepare(t, good)
		c.Stop(t)
		fails(t, "capture", tryCapture(t, s.driver), errs.Unavailable, "start PostgreSQL")
		fails(t, "prepare", prepare(s.driver), errs.Unavailable, "start PostgreSQL")
		fails(t, "commit", sw.Commit(t.Context()), errs.Unavailable, "start PostgreSQL")
		c.Start(t)
		s.lives(t, "server down", before)
		check(t, sw.Commit(t.Context()))
		check(t, sw.Undo(t.Context()))
		check(t, sw.Finish(t.Context()))
		s.lives(t, "server up", before)
	})
}

// Where the store's disk or the server's is full, nothing is half there.
func testDiskFull(t *testing.T) {
	testkit.Need(t, "root")
	mount := func(size string) string {
		dir := t.TempDir()
		check(t, os.Chmod(filepath.Dir(dir), 0o755))
		if err := unix.Mount("small", dir, "tmpfs", 0, "mode=0777,size="+size); err != nil {
			testkit.Lack(t, "cannot mount a small file system here: ", err)
		}
		t.Cleanup(func() { check(t, unix.Unmount(dir, unix.MNT_DETACH)) })
		return dir
	}
	small, disk := mount("3m"), mount("400m")
	wal := mount("200m") // apart: where that is full, PostgreSQL itself stops
	c := startCluster(t, pgtest.Options{Dir: disk, Init: []string{"--waldir=" + filepath.Join(wal, "wal")}})
	s := newSubject(t, c)
	s.Mutate(t, 1)
	good := s.capture(t)
	// Random text, which neither the server nor the store makes smaller.
	s.as(t, "INSERT INTO api.docs (seed, body) SELECT 1, string_agg(md5(random()::text), '') FROM generate_series(1, 250000) g GROUP BY g % 2000")
	before := s.dump(t, "")

	store, err := cas.Open(filepath.Join(small, "store"), cas.Options{SegmentBytes: 64 << 10})
	check(t, err)
	defer store.Close()
	d := s.with(t, func(c *Config) { c.Store = store })
	err = tryCapture(t, d)
	if err == nil {
		t.Error("a capture fits into a store of 3 MiB")
	}
	fails(t, "a full store", err, errs.Failed, "")
	s.lives(t, "a full store", before)

	big := s.capture(t)
	s.as(t, "INSERT INTO public.fast VALUES (9)")
	// A server that has to stop loses what is in unlogged tables, and values of sequences since its last checkpoint.
	s.as(t, "ALTER TABLE public.fast SET LOGGED")
	c.Psql(t, "postgres", "CHECKPOINT")
	base := s.capture(t)
	before = s.dump(t, "")
	fill(t, disk, 12<<20) // an empty database takes 8 MiB of that
	_, err = s.driver.Prepare(t.Context(), snap.RestoreRequest{ID: "op-1", Target: big, Base: base})
	fails(t, "the server's disk is full", err, errs.Failed, "")
	if err == nil {
		t.Error("a second database fits beside the first")
	}
	// From version 15 on, the server may stop where it finds no room for the pages of a database that it has just created.
	check(t, os.Remove(filepath.Join(disk, "fill")))
	testkit.Eventually(t, "the server accepts connections, also after a crash for lack of space", func() bool {
		return c.Command("psql", "-h", c.Socket, "-p", strconv.Itoa(c.Port), "-U", pgtest.Superuser, "-c", "SELECT 1", "postgres").Run() == nil
	})
	s.lives(t, "the server's disk is full", before)
	check(t, s.driver.Sweep(t.Context(), snap.Gone{Restores: []snap.RestoreID{"op-1"}}))
	check(t, s.driver.Verify(t.Context(), good, snap.Full))
	s.leftovers(t)
}

// fill leaves so many bytes free.
func fill(t *testing.T, dir string, leave uint64) {
	t.Helper()
	var st unix.Statfs_t
	check(t, unix.Statfs(dir, &st))
	f, err := os.Create(filepath.Join(dir, "fill"))
	check(t, err)
	check(t, unix.Fallocate(int(f.Fd()), 0, 0, int64(st.Bavail*uint64(st.Bsize)-leave)))
	check(t, f.Close())
}

// A role that is gone comes back with what it had.
func testRoles(t *testing.T) {
	t.Parallel()
	c := startCluster(t, pgtest.Options{})
	s := newSubject(t, c)
	s.cfg.DSN = c.DSN(s.db) // a superuser may make roles
	s.Reopen(t)
	c.Psql(t, "postgres", "CREATE ROLE staff; ALTER ROLE "+s.owner()+"_ro LOGIN PASSWORD 'reader' CONNECTION LIMIT 3 VALID UNTIL '2040-01-01'; GRANT staff TO "+s.owner()+"_ro")
	roles := func() string {
		return c.Psql(t, "postgres", `SELECT rolname, rolcanlogin, rolinherit, rolconnlimit, rolpassword, rolvaliduntil,
			ARRAY(SELECT roleid::regrole FROM pg_auth_members WHERE member = r.oid ORDER BY 1) FROM pg_authid r ORDER BY 1`)
	}
	good, before, then := s.capture(t), s.dump(t, ""), roles()
	drop := "DROP OWNED BY MYOWNER_ro; DROP ROLE MYOWNER_ro"
	c.Psql(t, s.db, strings.ReplaceAll(drop, "MYOWNER", s.owner()))
	bad, after, now := s.capture(t), s.dump(t, ""), roles()

	sw := s.prepare(t, good)
	check(t, sw.Undo(t.Context()))
	check(t, sw.Finish(t.Context()))
	s.lives(t, "undone", after)
	if roles() != now {
		t.Error("a restore that was undone leaves roles")
	}
	s.restore(t, good)
	s.lives(t, "back", before)
	if got := roles(); got != then {
		t.Errorf("roles are\n%s\nand were\n%s", got, then)
	}
	s.restore(t, bad)
	s.lives(t, "forward", after)

	c.Psql(t, "postgres", "DROP ROLE "+s.owner()+"_ro")
	s.cfg.DSN = c.DSNAs(s.owner(), s.db)
	s.Reopen(t)
	_, err := s.driver.Prepare(t.Context(), snap.RestoreRequest{ID: "op-r", Target: good, Base: s.capture(t)})
	fails(t, "a role that may not make roles", err, errs.Denied, "CREATE ROLE")
	s.leftovers(t)
}

// Encodings, collations and names of all sorts come back.
func testEncodings(t *testing.T) {
	t.Parallel()
	c := startCluster(t, pgtest.Options{})
	for i, tt := range []struct{ create, sql string }{
		{"ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C'", "CREATE TABLE \"größe\" (\"é\" text); INSERT INTO \"größe\" VALUES ('äöü'), (chr(255))"},
		{"ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C'", `CREATE TABLE t (x text); INSERT INTO t VALUES (E'\xff\xfe'), ('ok')`},
		{"LOCALE_PROVIDER icu ICU_LOCALE 'de-u-kn' LC_COLLATE 'C' LC_CTYPE 'C'", "CREATE TABLE t (x text PRIMARY KEY, y text COLLATE \"C\"); INSERT INTO t VALUES ('a10', 'ß'), ('a9', 'ä')"},
		{"ENCODING 'UTF8' LC_COLLATE 'C' LC_CTYPE 'C.UTF-8'", `CREATE TABLE "tab	""le" ("a\b" money, d interval, x xml, r regclass); INSERT INTO "tab	""le" VALUES (1.5, '1 mon -2 days', '<a/>', 'pg_class')`},
	} {
		t.Run(tt.create, func(t *testing.T) {
			s := &subject{c: c, db: fmt.Sprintf(`Ünd'"=%d and a name that is about as long as names may be`, i)}
			c.Psql(t, "postgres", "CREATE DATABASE "+quote(s.db)+" TEMPLATE template0 "+tt.create)
			s.db = c.Psql(t, "postgres", "SELECT datname FROM pg_database WHERE datname LIKE '%="+strconv.Itoa(i)+"%'")
			s.open(t, c.DSN(s.db))
			c.Psql(t, s.dsnDB(), tt.sql)
			good := s.capture(t)
			print := s.rowsOf(t)
			c.Psql(t, s.dsnDB(), "DROP SCHEMA public CASCADE; CREATE SCHEMA other")
			s.restore(t, good)
			if got := s.rowsOf(t); got != print {
				t.Errorf("got %q, want %q", got, print)
			}
			c.Psql(t, "postgres", "DROP DATABASE "+quote(s.db))
		})
	}
}

// dsnDB is the database for psql, which takes a name with "=" for a DSN.
func (s *subject) dsnDB() string { return "dbname=" + pglogin.Quote(s.db) }

// rowsOf is what independent SQL says of the database.
func (s *subject) rowsOf(t *testing.T) string {
	t.Helper()
	return s.c.Psql(t, s.dsnDB(), `SET client_encoding = SQL_ASCII; SELECT n, convert_to(query_to_xml('TABLE ' || n, true, true, '')::text, getdatabaseencoding())
		FROM (SELECT c.oid::regclass::text n FROM pg_class c WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace) x ORDER BY 1;
		SELECT pg_encoding_to_char(encoding), datcollate, datctype, datlocprovider, daticulocale FROM pg_database WHERE datname = current_database()`)
}

// As root, the daemon enters by the owner's peer login and reads the owner's
// password file, and never its own.
func TestOwner(t *testing.T) {
	t.Parallel()
	testkit.Need(t, "root")
	nobody, err := user.Lookup("nobody")
	check(t, err)
	uid, err := strconv.Atoi(nobody.Uid)
	check(t, err)
	gid, err := strconv.Atoi(nobody.Gid)
	check(t, err)
	c := startCluster(t, pgtest.Options{HBA: "local all postgres trust\nlocal all all peer\nhost all all 127.0.0.1/32 scram-sha-256\n"})
	c.Psql(t, "postgres", "CREATE ROLE nobody LOGIN CREATEDB PASSWORD 'x'; CREATE ROLE root LOGIN SUPERUSER; CREATE DATABASE mine OWNER nobody")
	s := &subject{c: c, db: "mine"}
	s.open(t, "host="+c.Socket+" port="+strconv.Itoa(c.Port)+" dbname=mine")
	s.cfg.Owner = privsep.User{UID: uid, GID: gid}
	s.Reopen(t)
	c.Psql(t, "mine", "SET ROLE nobody; CREATE SCHEMA n; CREATE TABLE n.t AS SELECT 1 AS i")
	good, before := s.capture(t), s.dump(t, "")
	c.Psql(t, "mine", "DROP TABLE n.t")
	s.restore(t, good)
	s.lives(t, "as its owner", before)

	fails(t, "as another role", tryCapture(t, s.with(t, func(cfg *Config) { cfg.DSN += " user=root" })), errs.Denied, "pg_hba.conf")

	pass := filepath.Join(t.TempDir(), "pass")
	check(t, os.WriteFile(pass, []byte("*:*:*:*:x\n"), 0o600))
	tcp := fmt.Sprintf("host=127.0.0.1 port=%d dbname=mine sslmode=disable user=nobody passfile=%s", c.Port, pass)
	fails(t, "root's password file", tryCapture(t, s.with(t, func(cfg *Config) { cfg.DSN = tcp })), errs.Denied, "password")
	for dir := filepath.Dir(pass); dir != "/tmp" && dir != "/"; dir = filepath.Dir(dir) {
		check(t, os.Chmod(dir, 0o755))
	}
	check(t, os.Chown(pass, uid, gid))
	check(t, tryCapture(t, s.with(t, func(cfg *Config) { cfg.DSN = tcp })))
}

// testTablesOfExtensions has tables that were added to an extension, which pg_dump leaves out: a checkpoint says so, and no restore loses one.
func testTablesOfExtensions(t *testing.T) {
	t.Parallel()
	s := newSubject(t, startCluster(t, pgtest.Options{}))
	before, target := s.dump(t, ""), s.capture(t)
	refused := func(what string, target snap.SnapshotID) {
		t.Helper()
		_, err := s.driver.Prepare(t.Context(), snap.RestoreRequest{ID: "op-q", Target: target, Base: s.capture(t)})
		fails(t, what, err, errs.Unsupported, `ALTER EXTENSION "hstore" DROP TABLE api.queue`)
		fails(t, what+", rehearsed", s.driver.Rehearse(t.Context(), "rehearse-0123456789ab", target), errs.Unsupported, "ALTER EXTENSION")
		s.leftovers(t)
	}
	s.as(t, `CREATE TABLE api.queue (i int)`)
	ordinary := s.capture(t)
	s.as(t, `INSERT INTO api.queue VALUES (7); ALTER EXTENSION hstore ADD TABLE api.queue`)
	snapshot, err := s.driver.Capture(t.Context(), snap.CaptureRequest{ID: "db-queue"})
	check(t, err)
	if said := strings.Join(snapshot.Warnings, " "); !strings.Contains(said, "api.queue of hstore") {
		t.Errorf("the checkpoint says %q", said)
	}
	refused("to before the table", target)
	refused("to when it was ordinary", ordinary)

	s.as(t, `ALTER EXTENSION hstore DROP TABLE api.queue`)
	after, made := s.dump(t, ""), s.capture(t)
	s.restore(t, target)
	s.lives(t, "back", before)
	sw := s.prepare(t, made)
	s.as(t, `CREATE TABLE api.queue (i int); INSERT INTO api.queue VALUES (8); ALTER EXTENSION hstore ADD TABLE api.queue`)
	if stale, err := sw.Stale(t.Context()); err != nil || !stale {
		t.Errorf("with a table added since, a prepared restore is stale: %v, %v", stale, err)
	}
	if err := sw.Commit(t.Context()); !errors.Is(err, snap.ErrChanged) {
		t.Errorf("with a table added since: %v", err)
	}
	_, err = s.driver.Prepare(t.Context(), snap.RestoreRequest{ID: s.prepared, Target: made, Base: s.capture(t)})
	fails(t, "prepared again", err, errs.Unsupported, "ALTER EXTENSION")
	s.leftovers(t)
	s.as(t, `ALTER EXTENSION hstore DROP TABLE api.queue; DROP TABLE api.queue`)
	s.restore(t, made)
	s.lives(t, "forward", after)
}

// testTablesOfScripts has an extension whose script makes a table that is no configuration: what was before the extension, and what was after it, can be restored.
func testTablesOfScripts(t *testing.T) {
	t.Parallel()
	testkit.Need(t, "root") // extensions are files of the server's programs
	c := startCluster(t, pgtest.Options{})
	s := newSubject(t, c)
	name := "mulligan_" + s.db
	dir := filepath.Join(strings.TrimSpace(c.Psql(t, s.db, "SELECT setting FROM pg_config() WHERE name = 'SHAREDIR'")), "extension")
	for file, text := range map[string]string{
		name + ".control":  "default_version = '1.0'\ntrusted = true\n",
		name + "--1.0.sql": "CREATE TABLE own (i int);",
	} {
		path := filepath.Join(dir, file)
		check(t, os.WriteFile(path, []byte(text), 0o644))
		t.Cleanup(func() { check(t, os.Remove(path)) })
	}
	before, target := s.dump(t, ""), s.capture(t)
	s.as(t, `CREATE EXTENSION `+name+` SCHEMA api`)
	c.Psql(t, s.db, `INSERT INTO api.own VALUES (1)`) // the table is the superuser's
	after, made := s.dump(t, ""), s.capture(t)
	s.restore(t, target)
	s.lives(t, "before the extension", before)
	s.restore(t, made)
	s.lives(t, "with the extension", after)
}

// testLimitedSessions has a server whose settings end sessions that are idle or read for long: those of the driver are not ended.
func testLimitedSessions(t *testing.T) {
	t.Parallel()
	c := startCluster(t, pgtest.Options{})
	s := newSubject(t, c)
	limits := strings.Fields(c.Psql(t, s.db, `SELECT name FROM pg_settings WHERE context = 'user' AND name ~ '_timeout$' AND name !~ '^(tcp|wal)_'`))
	for _, name := range limits {
		c.Psql(t, "postgres", "ALTER ROLE "+s.owner()+" SET "+name+" = '1min'")
	}
	conn, err := s.driver.connect(t.Context(), s.db)
	check(t, err)
	defer conn.close()
	left, err := conn.list(t.Context(), `SELECT name FROM pg_settings WHERE context = 'user' AND name ~ '_timeout$' AND source = 'user'`)
	check(t, err)
	if len(limits) < 3 || len(left) > 0 {
		t.Errorf("of the limits %q, %q are not lifted or set by the driver", limits, left)
	}
	ended, err := conn.list(t.Context(), `SELECT name FROM pg_settings WHERE name IN ('statement_timeout', 'idle_session_timeout', 'transaction_timeout') AND setting <> '0'`)
	check(t, err)
	if len(ended) > 0 {
		t.Errorf("%q end the driver's sessions", ended)
	}
}
