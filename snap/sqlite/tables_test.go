package sqlite

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mulligan/errs"
	"mulligan/testkit"
)

// What is read from the b-trees is what SQLite itself says.
func TestObjects(t *testing.T) {
	c := startClient(t)
	for _, pragma := range []string{"PRAGMA page_size=512", "PRAGMA page_size=65536", "PRAGMA encoding='UTF-16le'"} {
		t.Run(pragma, func(t *testing.T) {
			s := emptySubject(t, c)
			check(t, os.Mkdir(filepath.Dir(s.path()), 0o755))
			c.do(t, order{Path: s.path(), SQL: []string{pragma, "PRAGMA journal_mode=WAL",
				"CREATE TABLE plain (a INTEGER PRIMARY KEY, b TEXT, c BLOB)",
				"CREATE TABLE \"Odd, näme\" (\"the (col)\" TEXT PRIMARY KEY, x) WITHOUT ROWID",
				"CREATE TABLE none (x)", "CREATE INDEX i ON plain (b)", "CREATE VIEW v AS SELECT b FROM plain",
				"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i < 3000) INSERT INTO plain SELECT i, 'text ' || i, zeroblob(i % 900) FROM n",
				"INSERT INTO plain VALUES (100000, 'long', zeroblob(300000))",
				"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i < 2000) INSERT INTO \"Odd, näme\" SELECT 'key ' || i, zeroblob(i % 400) FROM n"}})
			_, err := s.capture(t, "db-a")
			check(t, err)
			root, err := s.driver.records.Snapshot("", "db-a")
			check(t, err)
			side, err := s.driver.storedSide(root)
			check(t, err)
			check(t, side.readObjects(t.Context(), side.stored(s.cfg.Store)))
			var got []string
			for _, o := range side.objects {
				got = append(got, fmt.Sprintf("%s %s %d", o.kind, o.name, o.rows))
			}
			want := "table plain 3001, table Odd, näme 2000, table none 0, index i -1, view v -1"
			if text := strings.Join(got, ", "); text != want || !side.known {
				t.Errorf("%s, want %s", text, want)
			}
		})
	}
}

func TestDiffInSQL(t *testing.T) {
	c := startClient(t)
	s := emptySubject(t, c)
	check(t, os.Mkdir(filepath.Dir(s.path()), 0o755))
	c.do(t, order{Path: s.path(), SQL: []string{
		"CREATE TABLE items (id INTEGER PRIMARY KEY, name TEXT NOT NULL, price INT DEFAULT (1 + 2), CHECK (id > 0))",
		"CREATE TABLE gone (x)", "INSERT INTO gone VALUES (1), (2)", "CREATE TABLE same (x)", "INSERT INTO same VALUES (1)",
		"CREATE INDEX by_name ON items (name)",
		"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i < 300) INSERT INTO items SELECT i, 'item ' || i, i FROM n"}})
	_, err := s.capture(t, "db-a")
	check(t, err)
	c.do(t, order{Path: s.path(), SQL: []string{
		"DROP TABLE gone", "ALTER TABLE items DROP COLUMN price", "ALTER TABLE items ADD COLUMN note TEXT", "DELETE FROM items WHERE id > 100",
		"CREATE TABLE fresh (y TEXT)", "INSERT INTO fresh VALUES ('a')", "DROP INDEX by_name", "UPDATE same SET x = 7"}})
	list, err := s.driver.Diff(t.Context(), "db-a", "", nil)
	check(t, err)
	var got []string
	for _, ch := range list {
		got = append(got, fmt.Sprintf("%s %s: %s", ch.Operation, ch.Path, ch.Summary))
	}
	want := []string{
		"delete gone: DROP TABLE gone; it had 2 rows",
		"delete by_name: DROP INDEX by_name",
		"modify items: ALTER TABLE items DROP COLUMN price; ALTER TABLE items ADD COLUMN note TEXT; 100 rows, were 300 (200 fewer)",
		"modify same: 1 row, as many as before, with other content",
		"create fresh: CREATE TABLE fresh (y TEXT); 1 row",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if list, err := s.driver.Diff(t.Context(), "db-a", "db-a", nil); err != nil || len(list) != 0 {
		t.Errorf("with itself: %v, %v", list, err)
	}
}

// Any bytes at all end in an answer.
func TestObjectsOfAnything(t *testing.T) {
	c := startClient(t)
	s := newSubject(t, c, "DELETE")
	seed, err := os.ReadFile(s.path())
	check(t, err)
	random := testkit.Rand(t)
	for range 2000 {
		data := append([]byte(nil), seed...)
		for range 1 + random.IntN(20) {
			at := random.IntN(len(data))
			if random.IntN(2) == 0 {
				at %= 4096
			}
			data[at] = byte(random.Uint32())
		}
		read := func(buf []byte, off int64) (int, error) { return copy(buf, data[min(off, int64(len(data))):]), nil }
		_, _ = readObjects(t.Context(), int64(len(data)), read) // that it ends, and does not panic, is all
	}
}

// A log that claims a database of terabytes is refused at once.
func TestForgedLog(t *testing.T) {
	c := startClient(t)
	s := newSubject(t, c, "WAL")
	startClient(t).do(t, order{Path: s.path(), SQL: []string{"PRAGMA journal_mode=WAL", "INSERT INTO kv(seed) VALUES (1)"}, Die: true})
	path := s.path() + "-wal"
	data, err := os.ReadFile(path)
	check(t, err)
	sum := checksum{order: binary.LittleEndian}
	if data[3]&1 != 0 {
		sum.order = binary.BigEndian
	}
	sum.add(data[:24])
	page := int(binary.BigEndian.Uint32(data[8:]))
	for at := walHeaderSize; at+frameHeader+page <= len(data); at += frameHeader + page {
		if binary.BigEndian.Uint32(data[at+4:]) != 0 { // ends a transaction
			binary.BigEndian.PutUint32(data[at+4:], 0xfffffff0)
		}
		sum.add(data[at : at+8])
		sum.add(data[at+frameHeader : at+frameHeader+page])
		binary.BigEndian.PutUint32(data[at+16:], sum.s0)
		binary.BigEndian.PutUint32(data[at+20:], sum.s1)
	}
	check(t, os.WriteFile(path, data, 0o600))
	_, err = s.capture(t, "db-a")
	wants(t, err, errs.Invalid)
	if err == nil || !strings.Contains(err.Error(), "claims to be") {
		t.Errorf("%v", err)
	}
	check(t, os.Remove(path))
	check(t, os.Truncate(s.path(), 1<<43))
	_, err = s.capture(t, "db-a")
	wants(t, err, errs.Invalid)
}
