package duckdb

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"mulligan/privsep"
	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/snaptest"
	"mulligan/testkit"
)

func TestConformance(t *testing.T) {
	c := newClient(t)
	snaptest.RunSlow(t, func(t *testing.T) snaptest.Subject { return newSubject(t, c) })
}

// client is a process in which DuckDB runs.
type client struct {
	program []string
	mu      sync.Mutex // held for one order
	cmd     *exec.Cmd
	in      io.WriteCloser
	out     *bufio.Scanner
}

// program is a command that answers one question of DuckDB, or takes orders.
func program(t *testing.T) []string {
	testkit.Need(t, "node")
	modules := testkit.NPM(t, "testdata/duckdb", 70)
	script, err := filepath.Abs("testdata/client.cjs")
	check(t, err)
	node, err := exec.LookPath("node")
	check(t, err)
	return []string{"/usr/bin/env", "NODE_PATH=" + modules, node, script}
}

func newClient(t *testing.T) *client {
	t.Helper()
	c := &client{program: program(t)}
	c.cmd = exec.Command(c.program[0], c.program[1:]...)
	c.cmd.Stderr = os.Stderr
	var err error
	c.in, err = c.cmd.StdinPipe()
	check(t, err)
	out, err := c.cmd.StdoutPipe()
	check(t, err)
	c.out = bufio.NewScanner(out)
	c.out.Buffer(nil, 64<<20)
	check(t, c.cmd.Start())
	t.Cleanup(func() {
		_ = c.in.Close()
		_ = c.cmd.Wait() // it may have died in between, as it was told
	})
	return c
}

// order is what a client does with a database.
type order struct {
	Path string   `json:"path"`
	SQL  []string `json:"sql"`
	Hold bool     `json:"hold"` // the database stays open
	Die  bool     `json:"die"`  // the process ends and closes nothing
}

var errDied = errors.New("the client died")

// ask gives the rows that each statement has for an answer.
func (c *client) ask(o order) (rows []json.RawMessage, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	data, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	if _, err := c.in.Write(append(data, '\n')); err != nil {
		return nil, err
	}
	if !c.out.Scan() {
		return nil, errDied
	}
	var reply struct {
		Rows  []json.RawMessage
		Error string
	}
	if err := json.Unmarshal(c.out.Bytes(), &reply); err != nil {
		return nil, err
	}
	if reply.Error != "" {
		return nil, errors.New(reply.Error)
	}
	return reply.Rows, nil
}

func (c *client) do(t *testing.T, o order) []json.RawMessage {
	t.Helper()
	rows, err := c.ask(o)
	check(t, err)
	return rows
}

// subject is a database of an app, with a driver over it.
type subject struct {
	client *client
	cfg    Config
	driver *Driver
	seen   map[string]string // the bytes of the files → what DuckDB sees in them
	kill   killer
}

// killer has the driver stop at a step.
type killer struct{ at, seen int }

func (s *subject) KillAt(n int) { s.kill = killer{at: n} }
func (s *subject) Killed() bool { return s.kill.at > 0 && s.kill.seen >= s.kill.at }

func (s *subject) failpoint(string) error {
	if s.kill.seen++; s.Killed() {
		return errors.New("killed")
	}
	return nil
}

// Stored collects the store's garbage, and returns what the store takes on disk.
func (s *subject) Stored(t *testing.T) int64 {
	t.Helper()
	_, err := s.cfg.Store.Collect(t.Context())
	check(t, err)
	return s.cfg.Store.DiskUsage()
}

// Slow has the suite take fewer of its steps.
func (s *subject) Slow() bool { return !snaptest.Long() }

func newSubject(t *testing.T, c *client) *subject {
	t.Helper()
	dir := testkit.TempDir(t)
	for _, name := range []string{"app", "app/data", "state"} {
		check(t, os.Mkdir(filepath.Join(dir, name), 0o755))
	}
	store, err := cas.Open(filepath.Join(dir, "store"), cas.Options{SegmentBytes: 64 << 10})
	check(t, err)
	t.Cleanup(func() { check(t, store.Close()) })
	s := &subject{client: c, seen: map[string]string{}, cfg: Config{
		App: "app-1", Name: "main", Dir: filepath.Join(dir, "app"), Path: "data/app.duckdb", StateDir: filepath.Join(dir, "state"), Store: store, Owner: privsep.Self,
	}}
	s.cfg.Failpoint = s.failpoint
	s.Reopen(t)
	s.Mutate(t, 1000)
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

// change are statements that lead to a state which was never there before.
func change(seed int64) []string {
	list := []string{
		"CREATE TABLE IF NOT EXISTS kv(seed BIGINT, k BIGINT, v BLOB)",
		// 64 hashes of 8 bytes make 512 bytes that cannot be compressed.
		fmt.Sprintf("INSERT INTO kv(seed, k, v) SELECT %d, r, unhex(string_agg(printf('%%016x', hash(%d * 1000000 + r * 1000 + s)), '')) FROM range(96) a(r), range(64) b(s) GROUP BY r", seed, seed),
	}
	switch seed % 5 {
	case 0:
		list = append(list, fmt.Sprintf("CREATE TABLE t%d(a INTEGER PRIMARY KEY, b VARCHAR)", seed), fmt.Sprintf("INSERT INTO t%d SELECT r, 'row ' || r FROM range(500) x(r)", seed))
	case 1:
		list = append(list, "DELETE FROM kv WHERE k % 3 = 0", fmt.Sprintf("ALTER TABLE kv ADD COLUMN c%d INTEGER DEFAULT %d", seed, seed))
	case 2:
		list = append(list, "UPDATE kv SET k = k + 1 WHERE k % 2 = 0", fmt.Sprintf("CREATE VIEW v%d AS SELECT count(*) AS n FROM kv", seed))
	case 3:
		list = append(list, fmt.Sprintf("CREATE SEQUENCE s%d START %d", seed, 1+max(seed, -seed)))
	}
	return list
}

// Mutate changes rows and the schema; now and then the client dies, and leaves its log.
func (s *subject) Mutate(t *testing.T, seed int64) {
	t.Helper()
	if seed%4 != 1 {
		s.client.do(t, order{Path: s.path(), SQL: change(seed)})
		return
	}
	_, err := newClient(t).ask(order{Path: s.path(), SQL: change(seed), Die: true})
	if !errors.Is(err, errDied) {
		t.Fatalf("a client that is to die says %v", err)
	}
	if _, err := os.Stat(s.path() + ".wal"); err != nil {
		t.Fatalf("a client that died leaves no log: %v", err)
	}
}

// Fingerprint reads a copy of the files with DuckDB, so that the files stay as they are.
func (s *subject) Fingerprint(t *testing.T) string {
	t.Helper()
	dir := testkit.TempDir(t)
	var both string
	for _, suffix := range suffixes {
		data, err := os.ReadFile(s.path() + suffix)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		check(t, err)
		check(t, os.WriteFile(filepath.Join(dir, "db"+suffix), data, 0o600))
		both += fmt.Sprintf("%s %d %s", suffix, len(data), data)
	}
	if both == "" {
		return "absent"
	}
	if s.seen[both] == "" {
		s.seen[both] = s.dump(t, filepath.Join(dir, "db"))
	}
	return s.seen[both]
}

// dump is all that DuckDB sees: definitions, and every row.
func (s *subject) dump(t *testing.T, path string) (text string) {
	t.Helper()
	defer func() { s.client.do(t, order{Path: path, SQL: nil}) }()
	for _, rows := range s.client.do(t, order{Path: path, Hold: true, SQL: []string{
		"SELECT sql FROM duckdb_tables() UNION ALL SELECT sql FROM duckdb_views() WHERE NOT internal UNION ALL SELECT sql FROM duckdb_sequences() ORDER BY 1",
		"SELECT table_name AS name FROM duckdb_tables() ORDER BY 1",
	}}) {
		text += string(rows) + "\n"
	}
	var tables []struct{ Name string }
	check(t, json.Unmarshal(s.client.do(t, order{Path: path, Hold: true, SQL: []string{"SELECT table_name AS name FROM duckdb_tables() ORDER BY 1"}})[0], &tables))
	for _, table := range tables {
		text += string(s.client.do(t, order{Path: path, Hold: true, SQL: []string{"SELECT md5(string_agg(t::VARCHAR, chr(10) ORDER BY t::VARCHAR)) AS m FROM " + table.Name + " t"}})[0])
	}
	return text
}

// Damage flips a byte of a content of the snapshot.
func (s *subject) Damage(t *testing.T, id snap.SnapshotID) {
	t.Helper()
	root, err := s.driver.records.Snapshot("", id)
	check(t, err)
	st, err := s.driver.load(root)
	check(t, err)
	r, err := s.cfg.Store.OpenStream(st.contents[0])
	check(t, err)
	hit := false
	check(t, filepath.Walk(filepath.Join(filepath.Dir(s.cfg.StateDir), "store"), func(path string, info os.FileInfo, err error) error {
		if err != nil || hit || !info.Mode().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		for _, hash := range r.Refs {
			at := bytes.Index(data, hash[:])
			if !hit && !hash.IsZero() && at >= 24 && at+100 < len(data) && bytes.HasPrefix(data, []byte("mullicas")) && data[at-16] == 1 {
				hit = true
				data[at+100] ^= 1
				err = os.WriteFile(path, data, 0o600)
			}
		}
		return err
	}))
	if !hit {
		t.Fatal("the content is in no file of the store")
	}
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
