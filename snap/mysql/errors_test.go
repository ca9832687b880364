package mysql

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"mulligan/errs"
	"mulligan/privsep"
	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/testkit"
)

const secret = "s3cret-word" // no error and no file may hold it

// refuses checks that err is of the kind, one line, with what to do, and without the password.
func refuses(t *testing.T, err error, kind errs.Kind) {
	t.Helper()
	switch {
	case errs.KindOf(err) != kind:
		t.Errorf("want %s, have %s: %v", kind, errs.KindOf(err), err)
	case errs.HintOf(err) == "" || strings.Contains(err.Error(), "\n"):
		t.Errorf("the error has no hint, or several lines: %v", err)
	}
	if all := fmt.Sprintf("%+v %v", err, errs.HintOf(err)); strings.Contains(all, secret) || strings.Contains(all, "wr0ng") {
		t.Errorf("the error holds the password: %s", all)
	}
}

func (s *subject) capture(id snap.SnapshotID) error {
	_, err := s.driver.Capture(context.Background(), snap.CaptureRequest{ID: id})
	return err
}

func (s *subject) dsn(login, socket string) string {
	return "mysql://" + login + "@localhost/" + s.db + "?socket=" + url.QueryEscape(socket)
}

func TestCannotLogIn(t *testing.T) {
	s := newSubject(t, sharedServer(t))
	before := s.dump(t, s.db)
	s.sql(t, "", "CREATE OR REPLACE USER bob@localhost IDENTIFIED BY '"+secret+"'")
	for dsn, kind := range map[string]errs.Kind{
		s.dsn("bob:wr0ng", s.socket()):                   errs.Denied,
		s.dsn("nobody-such:wr0ng", s.socket()):           errs.Denied,
		s.dsn("bob:"+secret, s.socket()):                 errs.Denied, // no rights on the database
		s.dsn("bob:"+secret, s.socket()+"-not"):          errs.Unavailable,
		"mysql://bob:" + secret + "@127.0.0.1:1/" + s.db: errs.Unavailable,
	} {
		s.cfg.DSN = dsn
		s.reopen(t)
		refuses(t, s.capture("db-1"), kind)
	}
	s.sql(t, "", "GRANT SELECT, SHOW VIEW ON "+s.db+".* TO bob@localhost")
	s.cfg.DSN = s.dsn("bob:"+secret, s.socket())
	s.reopen(t)
	if err := s.capture("db-1"); errs.KindOf(err) != errs.Denied || !strings.Contains(err.Error(), "TRIGGER, EVENT") {
		t.Errorf("a user who does not see triggers: %v", err)
	}
	if s.dump(t, s.db) != before {
		t.Error("the data changed")
	}
}

func TestBadDSN(t *testing.T) {
	s := newSubject(t, sharedServer(t))
	for _, dsn := range []string{"redis://u:wr0ng@h/x", "mysql://u:wr0ng@h", "mysql://u:wr0ng@h:port/x", "mysql://h/x?socket=/s", "mysql:///x?socket=s",
		"mysql://u:wr0ng@h/a/b", "mysql://h/x?tls=maybe", "mysql://h/x__mulligan_y", ":wr0ng"} {
		s.cfg.DSN = dsn
		_, err := New(s.cfg)
		refuses(t, err, errs.Invalid)
	}
}

// The login comes from the dsn, from ~/.my.cnf or from the kernel.
func TestLogins(t *testing.T) {
	s := newSubject(t, sharedServer(t))
	right := "GRANT ALL ON `" + strings.ReplaceAll(s.db, "_", `\_`) + "%`.* TO "
	s.sql(t, "", "CREATE OR REPLACE USER carol@localhost IDENTIFIED BY '"+secret+"'; "+right+"carol@localhost; GRANT SUPER ON *.* TO carol@localhost; GRANT SELECT ON mysql.proc TO carol@localhost")
	try := func(what, login string) {
		t.Helper()
		s.cfg.DSN = s.dsn(login, s.socket())
		s.reopen(t)
		if err := s.capture("db-1"); err != nil {
			t.Errorf("%s: %v", what, err)
			return
		}
		want := s.dump(t, s.db)
		s.mutate(t, int64(len(what)))
		s.restore(t, "db-1")
		if s.dump(t, s.db) != want {
			t.Errorf("%s: not restored", what)
		}
	}
	try("dsn", "carol:"+secret)
	options := filepath.Join(s.cfg.Home, ".my.cnf")
	check(t, os.WriteFile(options, []byte("[mysqld]\nuser=x\n[client]\nuser = carol\npassword=\""+secret+"\"\n"), 0o600))
	try("file", "carol")
	check(t, os.Remove(options))

	testkit.Need(t, "root")
	s.sql(t, "", "CREATE OR REPLACE USER nobody@localhost IDENTIFIED VIA unix_socket; "+right+"nobody@localhost; GRANT SUPER ON *.* TO nobody@localhost; GRANT SELECT ON mysql.proc TO nobody@localhost")
	check(t, os.Chmod(s.dir, 0o755))
	s.cfg.Owner = privsep.User{UID: 65534, GID: 65534}
	try("kernel", "nobody")
	check(t, os.WriteFile(options, []byte("[client]\npassword="+secret+"\n"), 0o644)) // root's, not the owner's
	s.cfg.DSN = s.dsn("nobody", s.socket())
	s.reopen(t)
	refuses(t, s.capture("db-2"), errs.Denied)
}

func TestServerDown(t *testing.T) {
	s, _, base := crashSubject(t, "commit", ownServer(t))
	s.kill()
	refuses(t, s.capture("db-2"), errs.Unavailable)
	refuses(t, fate{Do: "commit"}.run(s.driver), errs.Unavailable)
	check(t, s.driver.Sweep(t.Context(), crashIDs))
	s.start(t)
	if s.dump(t, s.db) != base {
		t.Error("the data changed")
	}
	check(t, s.driver.Sweep(t.Context(), crashIDs))
	s.alone(t)
}

// tiny mounts a small file system.
func tiny(t *testing.T, size int) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "mulligan-tiny")
	check(t, err)
	t.Cleanup(func() { _ = os.Remove(dir) })
	if err := unix.Mount("tiny", dir, "tmpfs", 0, fmt.Sprintf("size=%d", size)); err != nil {
		testkit.Lack(t, "cannot mount a small file system: ", err)
	}
	t.Cleanup(func() { check(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	return dir
}

func TestStoreDiskFull(t *testing.T) {
	s := newSubject(t, sharedServer(t))
	store, err := cas.Open(filepath.Join(tiny(t, 1<<20), "store"), cas.Options{SegmentBytes: 64 << 10})
	check(t, err)
	old := s.cfg.Store
	s.cfg.Store = store
	s.reopen(t)
	s.sql(t, s.db, "CREATE TABLE big (b BLOB); INSERT INTO big SELECT RANDOM_BYTES(1000) FROM seq_1_to_3000")
	before := s.dump(t, s.db)
	if err := s.capture("db-1"); errs.KindOf(err) != errs.Failed || !errors.Is(err, unix.ENOSPC) {
		t.Errorf("a full disk is %s: %v", errs.KindOf(err), err)
	}
	if s.dump(t, s.db) != before {
		t.Error("the data changed")
	}
	check(t, store.Close())
	s.cfg.Store = old
}

// The server has no room for a second copy: the live one stays, and nothing is left.
func TestServerDiskFull(t *testing.T) {
	dir := tiny(t, 150<<20)
	srv := newServer(t, dir)
	t.Cleanup(srv.kill)
	s, _, base := crashSubject(t, "", srv)
	s.sql(t, s.db, "CREATE TABLE big (id INT PRIMARY KEY AUTO_INCREMENT, b LONGBLOB); INSERT INTO big (b) SELECT REPEAT(RANDOM_BYTES(1000), 1000) FROM seq_1_to_4")
	check(t, s.capture("db-target"))
	s.sql(t, s.db, "DROP TABLE big")
	f, err := os.Create(filepath.Join(dir, "filler"))
	check(t, err)
	for err == nil {
		_, err = f.Write(make([]byte, 64<<10))
	}
	check(t, f.Truncate(must2(t, f)-2<<20))
	check(t, f.Close())
	err = fate{Do: "prepare"}.run(s.driver)
	refuses(t, err, errs.Failed)
	if s.dump(t, s.db) != base {
		t.Error("the data changed")
	}
	check(t, os.Remove(f.Name()))
	check(t, s.driver.Sweep(t.Context(), crashIDs))
	s.alone(t)
}

func must2(t *testing.T, f *os.File) int64 {
	t.Helper()
	info, err := f.Stat()
	check(t, err)
	return info.Size()
}

// A write that waits for the exchange, and is served before it, is not lost:
// the exchange is taken back.
func TestWriteAtTheLastMoment(t *testing.T) {
	s, _, _ := crashSubject(t, "commit", sharedServer(t))
	done := make(chan error, 1)
	once := false
	s.driver.cfg.Failpoint = func(step string) error {
		if step != "exchange" || once {
			return nil
		}
		once = true
		db := open(s.socket(), s.db)
		go func() {
			_, err := db.Exec("INSERT INTO loose VALUES (77, 'late')")
			done <- errors.Join(err, db.Close())
		}()
		testkit.Eventually(t, "the writer waits", func() bool {
			return s.sql(t, "", "SELECT COUNT(*) FROM information_schema.processlist WHERE state LIKE 'Waiting%' AND info LIKE 'INSERT INTO loose%'") != "0"
		})
		return nil
	}
	err := fate{Do: "commit"}.run(s.driver)
	check(t, <-done)
	late := s.sql(t, s.db, "SELECT COUNT(*) FROM loose WHERE a = 77")
	if late != "1" || err != nil && !errors.Is(err, snap.ErrChanged) {
		t.Fatalf("the late row is there %s times after %v", late, err)
	}
	if err == nil {
		return // it was served after the exchange
	}
	refuses(t, err, errs.Conflict)
	check(t, fate{Do: "undo"}.run(s.driver))
	if n := s.sql(t, s.db, "SELECT COUNT(*) FROM loose WHERE a = 77"); n != "1" {
		t.Errorf("after Undo the late row is there %s times", n)
	}
}

func TestBusy(t *testing.T) {
	s, _, base := crashSubject(t, "commit", sharedServer(t))
	s.cfg.BusyTimeout = 1e9
	s.reopen(t)
	db := open(s.socket(), s.db)
	tx, err := db.Begin()
	check(t, err)
	_, err = tx.Exec("INSERT INTO loose VALUES (1, 'open')")
	check(t, err)
	refuses(t, fate{Do: "commit"}.run(s.driver), errs.Busy)
	check(t, tx.Rollback())
	check(t, db.Close())
	if s.dump(t, s.db) != base {
		t.Error("the data changed")
	}
	s.cfg.BusyTimeout = 0 // the default: the server may hold the lock for a moment after the session's end
	s.reopen(t)
	check(t, fate{Do: "commit"}.run(s.driver))
}

func TestRefused(t *testing.T) {
	srv := sharedServer(t)
	for create, kind := range map[string]errs.Kind{
		"CREATE TABLE x (a INT) WITH SYSTEM VERSIONING": errs.Unsupported,
		"CREATE TABLE x (a INT NOT NULL) ENGINE=CSV":    errs.Unsupported,
		"CREATE TABLE x (a INT) PARTITION BY HASH (a)":  errs.Unsupported,
	} {
		s := newSubject(t, srv)
		s.sql(t, s.db, create)
		refuses(t, s.capture("db-1"), kind)
	}
	s, _, base := crashSubject(t, "", srv)
	s.sql(t, "", "CREATE DATABASE other_"+s.db+"; CREATE TABLE other_"+s.db+".x (p INT, FOREIGN KEY (p) REFERENCES "+s.db+".parent (id))")
	refuses(t, fate{Do: "prepare"}.run(s.driver), errs.Unsupported)
	s.sql(t, "", "DROP DATABASE other_"+s.db)
	s.sql(t, s.db, "CREATE TABLE t (a INT); CREATE VIEW bad AS SELECT a FROM t; DROP TABLE t")
	check(t, s.capture("db-base"))
	refuses(t, fate{Do: "prepare"}.run(s.driver), errs.Conflict)
	s.sql(t, s.db, "DROP VIEW bad")
	if s.dump(t, s.db) != base {
		t.Error("the data changed")
	}
	warned, err := s.driver.Capture(t.Context(), snap.CaptureRequest{ID: "db-2"})
	check(t, err)
	if !strings.Contains(fmt.Sprint(warned.Warnings), "Table old has the engine MyISAM") {
		t.Errorf("warnings: %v", warned.Warnings)
	}
}

// Rights on routines and tables stay; the users are not the database's.
func TestUsersStay(t *testing.T) {
	s := newSubject(t, sharedServer(t))
	s.sql(t, "", "CREATE OR REPLACE USER dave@localhost; GRANT SELECT ON "+s.db+".kinds TO dave@localhost; GRANT EXECUTE ON PROCEDURE "+s.db+".p TO dave@localhost")
	grants := s.sql(t, "", "SHOW GRANTS FOR dave@localhost")
	check(t, s.capture("db-1"))
	s.sql(t, s.db, "CREATE OR REPLACE PROCEDURE p() SELECT 2; UPDATE kinds SET f = 1")
	s.restore(t, "db-1")
	if now := s.sql(t, "", "SHOW GRANTS FOR dave@localhost"); now != grants {
		t.Errorf("had %s\nhas %s", grants, now)
	}
}

func TestShared(t *testing.T) {
	s := newSubject(t, ownServer(t, "--log-bin=log"))
	failpoint := func(step string) error {
		if step == "capture: read" {
			return errors.New("it reads what did not change")
		}
		return nil
	}
	testkit.Eventually(t, "a capture is shared, once the server is done with its statistics", func() bool {
		s.driver.cfg.Failpoint = nil
		check(t, s.capture("db-1"))
		s.driver.cfg.Failpoint = failpoint
		return s.capture("db-2") == nil
	})
	s.sql(t, s.db, "SET sql_log_bin = 0; INSERT INTO loose VALUES (1, 'unlogged')")
	if s.capture("db-3") == nil {
		t.Error("a write that is not in the log was not noticed")
	}
}

func TestDiff(t *testing.T) {
	s := newSubject(t, sharedServer(t))
	check(t, s.capture("db-1"))
	s.sql(t, s.db, "INSERT INTO child VALUES (9, 1); ALTER TABLE parts ADD x INT; DROP TABLE old; CREATE TABLE fresh (a INT); DROP VIEW aa")
	list, err := s.driver.Diff(t.Context(), "db-1", "", nil)
	check(t, err)
	want := "[{old delete DROP TABLE `old`; it had 0 rows} {view aa delete DROP VIEW `aa`} {child modify 4 rows, were 3 (1 more)} {fresh create CREATE TABLE `fresh` ( `a` int(11) DEFAULT NULL ) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 " +
		"COLLATE=utf8mb4_general_ci; 0 rows} {parts modify ALTER TABLE `parts` ADD COLUMN `x` int(11) DEFAULT NULL}]"
	if fmt.Sprint(list) != want {
		t.Errorf("have %v\nwant %s", list, want)
	}
	s.sql(t, s.db, "CREATE TABLE turned (a INT, b INT, c INT)")
	check(t, s.capture("db-2"))
	s.sql(t, s.db, "ALTER TABLE turned MODIFY COLUMN a INT AFTER b; ALTER TABLE kinds AUTO_INCREMENT = 4711")
	list, err = s.driver.Diff(t.Context(), "db-2", "", nil)
	check(t, err)
	if said := fmt.Sprint(list); len(list) != 2 || !strings.Contains(said, "{turned modify the order of its columns is `b`, `a`, `c`, was `a`, `b`, `c`}") ||
		!strings.Contains(said, "{kinds modify next number 4711, was ") {
		t.Errorf("of what is in no column: %v", list)
	}
}

// MySQL with GTIDs: tables without transactions are refused beforehand, and without them all goes back and forth.
func TestGTID(t *testing.T) {
	if !oracle {
		return // MariaDB's server has no such rule; snap/versions.sh runs this against MySQL's
	}
	srv := ownServer(t, "--gtid-mode=ON", "--enforce-gtid-consistency=ON")
	s := newSubject(t, srv)
	refuses(t, s.capture("db-1"), errs.Unsupported)
	s.sql(t, s.db, "ALTER TABLE old ENGINE = InnoDB; ALTER TABLE parts ENGINE = InnoDB")
	s.there(t)
}
