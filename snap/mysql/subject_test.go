package mysql

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"mulligan/privsep"
	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/snaptest"
	"mulligan/testkit"
)

func TestConformance(t *testing.T) {
	snaptest.RunSlow(t, func(t *testing.T) snaptest.Subject { return newSubject(t, sharedServer(t)) })
}

// Slow has the suite take fewer of its steps.
func (s *subject) Slow() bool { return !snaptest.Long() }

// subject is a database of a server, with a driver over it.
type subject struct {
	*server
	db     string
	cfg    Config
	driver *Driver
}

var databases atomic.Int64

func newSubject(t testing.TB, srv *server) *subject {
	t.Helper()
	dir := testkit.TempDir(t)
	store, err := cas.Open(filepath.Join(dir, "store"), cas.Options{SegmentBytes: 64 << 10})
	check(t, err)
	s := &subject{server: srv, db: fmt.Sprint("app_", databases.Add(1))}
	s.cfg = config(dir, srv.socket(), s.db)
	s.cfg.Store = store
	t.Cleanup(func() { check(t, s.cfg.Store.Close()) })
	s.reopen(t)
	s.sql(t, "", "CREATE DATABASE "+s.db+" CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci")
	s.sql(t, s.db, spoken(`
		CREATE TABLE kinds (id INT AUTO_INCREMENT PRIMARY KEY, f FLOAT, d DOUBLE, n DECIMAL(20,5), t TEXT CHARACTER SET latin1, u VARCHAR(200) DEFAULT 'ü' COMMENT 'größe',
			b BLOB, j JSON, e ENUM('x','y','ü'), s SET('a','b'), bits BIT(13), g GEOMETRY, ts TIMESTAMP NULL, dt DATETIME(6), y YEAR, ip INET6, w CHAR(9) CHARACTER SET utf16,
			twice DOUBLE AS (d * 2) STORED, lazy INT AS (y + 1) VIRTUAL, hidden INT DEFAULT 3 INVISIBLE, KEY (u), CHECK (y > 0));
		CREATE TABLE parent (id INT PRIMARY KEY, name VARCHAR(40));
		CREATE TABLE child (id INT PRIMARY KEY, parent INT, CONSTRAINT belongs FOREIGN KEY (parent) REFERENCES parent (id) ON DELETE CASCADE);
		CREATE TABLE loose (a INT, b VARCHAR(100));
		CREATE TABLE old (a INT PRIMARY KEY, b TEXT) ENGINE=MyISAM;
		CREATE TABLE `+"`odd``name?`"+` (`+"`a``?b`"+` INT PRIMARY KEY) COMMENT 'ä';
		CREATE TABLE parts (id INT PRIMARY KEY) ENGINE=Aria TRANSACTIONAL=1;
		CREATE SEQUENCE numbers START WITH 5 CACHE 10;
		CREATE TABLE empty (a INT, only INT AS (1) VIRTUAL);
		CREATE VIEW zz AS SELECT id, u FROM kinds WHERE u <> 'ß';
		CREATE VIEW aa AS SELECT id FROM zz;
		CREATE FUNCTION twice(x INT) RETURNS INT DETERMINISTIC RETURN x * 2;
		CREATE VIEW calls AS SELECT twice(id) AS x FROM parent;
		CREATE PROCEDURE p(IN x VARCHAR(20)) COMMENT 'ü' SELECT x, 'ö';
		CREATE TRIGGER first BEFORE INSERT ON loose FOR EACH ROW SET NEW.b = CONCAT(IFNULL(NEW.b, ''), '!');
		CREATE TRIGGER second BEFORE INSERT ON loose FOR EACH ROW SET NEW.b = CONCAT(NEW.b, '?');
		CREATE EVENT later ON SCHEDULE EVERY 1 DAY STARTS '2036-01-01 00:00:00' DO DELETE FROM loose;
		INSERT INTO parent VALUES (1, 'one'), (2, 'two');
		INSERT INTO child VALUES (1, 1), (2, 1), (3, 2);`))
	s.mutate(t, 1000)
	return s
}

// spoken is MariaDB's SQL in the server's words: what MySQL lacks is left out, or another thing in its place.
func spoken(sql string) string {
	if !oracle {
		return sql
	}
	return strings.NewReplacer("ip INET6", "ip VARCHAR(40)", "ENGINE=Aria TRANSACTIONAL=1", "ENGINE=MyISAM", "CREATE SEQUENCE numbers START WITH 5 CACHE 10;", "",
		"DO NEXTVAL(numbers)", "DO 0", " empty (", " `empty` (").Replace(sql)
}

func config(dir, socket, db string) Config {
	return Config{App: "app-1", Name: "main", StateDir: filepath.Join(dir, "state"), Owner: privsep.Self, Home: dir, BusyTimeout: 10 * time.Second,
		DSN: "mysql://root@localhost/" + db + "?socket=" + url.QueryEscape(socket)}
}

func (s *subject) reopen(t testing.TB) {
	t.Helper()
	d, err := New(s.cfg)
	check(t, err)
	s.driver = d
}

func (s *subject) Driver() snap.Driver             { return s.driver }
func (s *subject) Reopen(t *testing.T)             { s.reopen(t) }
func (s *subject) Mutate(t *testing.T, seed int64) { s.mutate(t, seed) }
func (s *subject) Fingerprint(t *testing.T) string { return s.dump(t, s.db) }

func noise(r *rand.Rand, n int) string {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return hex.EncodeToString(b)
}

// mutate writes values of many types, and changes the schema.
func (s *subject) mutate(t testing.TB, seed int64) {
	t.Helper()
	r := testkit.Rand(t)
	var b strings.Builder
	say := func(format string, args ...any) { fmt.Fprintf(&b, format+";\n", args...) }
	say("CREATE TABLE IF NOT EXISTS kinds (id INT AUTO_INCREMENT PRIMARY KEY, f FLOAT, b BLOB)")
	say("CREATE TABLE IF NOT EXISTS loose (a INT, b VARCHAR(100))")
	say("START TRANSACTION")
	for range 3 {
		say("INSERT INTO kinds (f, b) VALUES (%v, X'%s')", r.Float32()*1e7, noise(r, 12<<10))
	}
	if s.sql(t, s.db, "SHOW COLUMNS FROM kinds LIKE 'ip'") != "" {
		say(`INSERT INTO kinds (f, d, n, t, u, j, e, s, bits, g, ts, dt, y, ip, w) VALUES (%v, %v, %d.12345, 'caf\'é%d', '日本 ''\\ü', '{"a": %d}', 'ü', 'a,b', b'101%b', POINT(%d, 2), '2001-02-03 04:05:06',
			'2020-01-02 03:04:05.%06d', 1999, '::%x', 'wörd')`, -r.Float32(), r.NormFloat64()*1e200, r.IntN(1e9), seed, seed, r.IntN(1000), seed, r.IntN(1e6), r.IntN(1<<16))
		say("INSERT INTO kinds () VALUES ()")
		say("DELETE FROM kinds WHERE id %% 7 = %d", r.IntN(7))
	}
	for range r.IntN(20) {
		say("INSERT INTO loose VALUES (%d, 'same')", r.IntN(4))
	}
	say("INSERT INTO loose VALUES (%d, 'seed')", seed)
	say("COMMIT")
	switch seed % 9 {
	case 1:
		if s.sql(t, s.db, fmt.Sprintf("SHOW COLUMNS FROM kinds LIKE 'extra%d'", seed)) == "" {
			say("ALTER TABLE kinds ADD COLUMN extra%d FLOAT DEFAULT 0.1", seed)
		}
		say("CREATE OR REPLACE VIEW zz AS SELECT id, %d AS n FROM kinds", seed)
	case 2:
		say("DROP TABLE IF EXISTS `odd``name?`")
		say("CREATE TABLE made%d (id INT PRIMARY KEY AUTO_INCREMENT, parent INT, FOREIGN KEY (parent) REFERENCES parent (id) ON DELETE SET NULL)", seed)
		say("INSERT INTO made%d (parent) VALUES (1), (NULL)", seed)
	case 3:
		say("DROP TRIGGER IF EXISTS first")
		say("CREATE TRIGGER third%d AFTER INSERT ON loose FOR EACH ROW SET @x = %d", seed, seed)
		say("ALTER DATABASE %s COLLATE utf8mb4_bin", s.db)
	case 4:
		say("DROP PROCEDURE IF EXISTS p")
		say("DROP FUNCTION IF EXISTS twice")
		say("CREATE FUNCTION twice(x INT) RETURNS INT DETERMINISTIC RETURN x * 2 + %d - %d", seed, seed)
		say("DO NEXTVAL(numbers)")
	case 5:
		say("DROP EVENT IF EXISTS e%d", seed)
		say("CREATE EVENT e%d ON SCHEDULE EVERY 1 WEEK STARTS '2037-01-01' DISABLE DO SELECT %d", seed, seed)
		say("DROP EVENT IF EXISTS later")
		say("REPLACE INTO old VALUES (1, 'seed %d')", seed)
	case 6:
		say("SET NAMES latin1")
		say("CREATE PROCEDURE q%d() SELECT '\xe9'", seed)
		say("SET NAMES utf8mb4, sql_mode = 'ANSI_QUOTES'")
		say("CREATE OR REPLACE VIEW \"quoted\" AS SELECT \"id\" FROM \"parent\"")
	case 7:
		say("DELETE FROM parent WHERE id = 2")
		say("INSERT IGNORE INTO parts VALUES (%d), (%d)", seed, seed+1)
		say("TRUNCATE loose")
		say("INSERT INTO loose VALUES (%d, 'again')", seed)
	case 8:
		say("ALTER TABLE kinds AUTO_INCREMENT = %d", 5000+seed*10)
		say("INSERT INTO empty (a) VALUES (%d)", seed)
	}
	s.sql(t, s.db, spoken(b.String()))
}

// Damage flips a byte of a chunk of the snapshot, where a segment of the
// store has it: behind the header that holds its hash (cas/DESIGN.md).
func (s *subject) Damage(t *testing.T, id snap.SnapshotID) {
	t.Helper()
	root, err := s.cfg.Store.Root(s.driver.records.SnapshotRoot(id))
	check(t, err)
	st, err := s.driver.load(root)
	check(t, err)
	var hash cas.Hash
	for i := range st.Tables {
		if st.Tables[i].Name == "kinds" {
			_, lists, err := s.cfg.Store.Node(st.rows[i])
			check(t, err)
			_, chunks, err := s.cfg.Store.Node(lists[0])
			check(t, err)
			hash = chunks[len(chunks)-1]
		}
	}
	files, err := filepath.Glob(filepath.Join(filepath.Dir(s.cfg.StateDir), "store", "*.seg"))
	check(t, err)
	for _, path := range files {
		data, err := os.ReadFile(path)
		check(t, err)
		at := bytes.Index(data, hash[:])
		if at < 24 || data[at-16] != 1 || at+100 >= len(data) {
			continue
		}
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		check(t, err)
		_, err = f.WriteAt([]byte{data[at+100] ^ 1}, int64(at+100))
		check(t, err)
		check(t, f.Close())
		return
	}
	t.Fatalf("chunk %v is in no segment", hash)
}

func (s *subject) Stored(t *testing.T) int64 {
	t.Helper()
	_, err := s.cfg.Store.Collect(context.Background())
	check(t, err)
	return s.cfg.Store.DiskUsage()
}
