package sqlite

import (
	"bytes"
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/snaptest"
	"mulligan/testkit"
)

func TestConformance(t *testing.T) {
	c := startClient(t)
	snaptest.RunVariants(t, []string{"DELETE", "WAL"}, func(t *testing.T, mode string) snaptest.Subject { return newSubject(t, c, mode) })
}

// Slow has the suite take fewer of its steps.
func (s *subject) Slow() bool { return !snaptest.Long() }

// subject is a database of an app, with a driver over it.
type subject struct {
	client *client
	cfg    Config
	driver *Driver
	seen   map[[32]byte]string // the bytes of files → what SQLite sees in them: it is slow under the race detector
}

// newSubject has a database in data/app.db with a little in it.
func newSubject(t *testing.T, c *client, mode string) *subject {
	t.Helper()
	s := emptySubject(t, c)
	check(t, os.Mkdir(filepath.Join(s.cfg.Dir, "data"), 0o755))
	c.do(t, order{Path: s.path(), SQL: append([]string{"PRAGMA journal_mode=" + mode}, change(t, 1000)...)})
	return s
}

func emptySubject(t *testing.T, c *client) *subject {
	t.Helper()
	dir := testkit.TempDir(t)
	for _, name := range []string{"app", "state"} {
		check(t, os.Mkdir(filepath.Join(dir, name), 0o755))
	}
	store, err := cas.Open(filepath.Join(dir, "store"), cas.Options{SegmentBytes: 64 << 10})
	check(t, err)
	t.Cleanup(func() { check(t, store.Close()) })
	s := &subject{client: c, seen: map[[32]byte]string{}, cfg: Config{
		App: "app-1", Name: "main", Dir: filepath.Join(dir, "app"), Path: "data/app.db",
		StateDir: filepath.Join(dir, "state"), Store: store, BusyTimeout: 2 * time.Second,
	}}
	s.Reopen(t)
	return s
}

func (s *subject) path() string { return filepath.Join(s.cfg.Dir, s.cfg.Path) }

func (s *subject) Driver() snap.Driver { return s.driver }

func (s *subject) Reopen(t *testing.T) {
	t.Helper()
	d, err := New(s.cfg)
	check(t, err)
	s.driver = d
}

// Mutate changes rows, the schema, the journal mode, the page size or what is
// around the file; now and then the client dies and leaves its log or a hot journal.
func (s *subject) Mutate(t *testing.T, seed int64) {
	t.Helper()
	s.client.do(t, order{Path: s.path(), SQL: change(t, seed)})
	check(t, os.Chmod(s.path(), os.FileMode(0o600|seed%8)))
	check(t, unix.Setxattr(s.path(), "user.seed", fmt.Append(nil, seed), 0))
	switch seed % 4 {
	case 1:
		startClient(t).do(t, order{Path: s.path(), SQL: halfway(seed), Die: true})
	case 3:
		last := fmt.Sprintf("INSERT INTO kv(seed) VALUES(%d)", seed)
		startClient(t).do(t, order{Path: s.path(), SQL: append(change(t, -seed), last), Die: true})
	}
}

// Fingerprint reads a copy of the files with SQLite, so that it leaves journal
// and log as they are.
func (s *subject) Fingerprint(t *testing.T) string {
	t.Helper()
	info, err := os.Stat(s.path())
	if os.IsNotExist(err) {
		return "absent"
	}
	check(t, err)
	var x [64]byte
	n, _ := unix.Getxattr(s.path(), "user.seed", x[:])
	return fmt.Sprintf("%v %q %s", info.Mode(), x[:max(n, 0)], s.logical(t, s.path()))
}

// logical is a digest of all that SQLite sees in the database at path.
func (s *subject) logical(t testing.TB, path string) string {
	t.Helper()
	dir, err := os.MkdirTemp(testkit.Quick(), "fingerprint")
	check(t, err)
	defer os.RemoveAll(dir)
	bytes := sha256.New()
	for _, suffix := range []string{"", "-wal", "-journal"} {
		copyHashed(t, path+suffix, filepath.Join(dir, "db"+suffix), bytes)
	}
	key := [32]byte(bytes.Sum(nil))
	if digest, ok := s.seen[key]; ok {
		return digest
	}
	db := open(filepath.Join(dir, "db"))
	defer db.Close()
	s.seen[key] = dump(t, db)
	return s.seen[key]
}

// copyHashed copies a file, if there is one, and adds its name, size and content to the digest. It holds no file whole in memory: under
// load a log may have a gigabyte.
func copyHashed(t testing.TB, from, to string, digest io.Writer) {
	t.Helper()
	in, err := os.Open(from)
	if os.IsNotExist(err) {
		return
	}
	check(t, err)
	defer in.Close()
	info, err := in.Stat()
	check(t, err)
	fmt.Fprintf(digest, "%s %d ", filepath.Base(to), info.Size())
	out, err := os.Create(to)
	check(t, err)
	_, err = io.Copy(out, io.TeeReader(in, digest))
	check(t, err)
	check(t, out.Close())
}

// dump hashes the schema and all rows.
func dump(t testing.TB, db *sql.DB) string {
	t.Helper()
	sum := sha256.New()
	tables := query(t, db, sum, "SELECT name, sql FROM sqlite_schema WHERE type = 'table' ORDER BY name", 0)
	query(t, db, sum, "SELECT name, sql FROM sqlite_schema ORDER BY name", 0)
	for _, name := range tables {
		query(t, db, sum, `SELECT rowid AS r, * FROM "`+name+`" ORDER BY r`, 0)
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// query writes all rows to w and returns one column of them.
func query(t testing.TB, db *sql.DB, w io.Writer, q string, column int) (list []string) {
	t.Helper()
	rows, err := db.Query(q)
	check(t, err)
	defer rows.Close()
	names, err := rows.Columns()
	check(t, err)
	values, into := make([]any, len(names)), make([]any, len(names))
	for i := range values {
		into[i] = &values[i]
	}
	for rows.Next() {
		check(t, rows.Scan(into...))
		for _, v := range values {
			fmt.Fprintf(w, "%T %s|", v, v)
		}
		list = append(list, fmt.Sprint(values[column]))
	}
	check(t, rows.Err())
	return list
}

// Damage flips a byte of the snapshot's last chunk, where a segment of the
// store has it: behind the header that holds its hash (cas/DESIGN.md).
func (s *subject) Damage(t *testing.T, id snap.SnapshotID) {
	t.Helper()
	root, err := s.cfg.Store.Root(s.driver.records.SnapshotRoot(id))
	check(t, err)
	stored, err := load(s.cfg.Store, root.Hash)
	check(t, err)
	chunks, err := stored.chunks()
	check(t, err)
	hash := chunks[len(chunks)-1]
	hit := false
	check(t, filepath.Walk(filepath.Join(filepath.Dir(s.cfg.StateDir), "store"), func(path string, info os.FileInfo, err error) error {
		if err != nil || !info.Mode().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		at := bytes.Index(data, hash[:])
		if at >= 24 && !hit && at+100 < len(data) && bytes.HasPrefix(data, []byte("mullicas")) && data[at-16] == 1 {
			hit = true
			data[at+100] ^= 1
			f, err := os.OpenFile(path, os.O_WRONLY, 0)
			check(t, err)
			_, err = f.WriteAt(data[at+100:at+101], int64(at+100))
			check(t, err)
			check(t, f.Close())
		}
		return err
	}))
	if !hit {
		t.Fatalf("chunk %v is in no file of the store", hash)
	}
}

func (s *subject) Stored(t *testing.T) int64 {
	t.Helper()
	_, err := s.cfg.Store.Collect(context.Background())
	check(t, err)
	return s.cfg.Store.DiskUsage()
}
