package physical

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"mulligan/privsep"
	"mulligan/snap"
	"mulligan/snap/postgres/pgtest"
	"mulligan/snap/postgres/physical/asowner"
	"mulligan/snap/postgres/physical/pgserver"
	"mulligan/snap/snaptest"
	"mulligan/testkit"
)

func TestConformance(t *testing.T) {
	for _, mode := range modes(t) {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			snaptest.RunReusing(t, func(t *testing.T) snaptest.Reusable {
				s := newSubject(t, options{slot: mode == "slot"})
				s.mutate(t, 1000)
				return s
			})
		})
	}
}

// modes are those of the ways to keep the log that this run takes.
func modes(t *testing.T) []string {
	t.Helper()
	return snaptest.Variants(t, "ways to keep the log", "archive", "slot")
}

// Slow tells the suite that a step takes seconds.
func (s *subject) Slow() bool { return !snaptest.Long() }

// subject is a cluster of an app, with a driver over it.
type subject struct {
	*pgtest.Cluster
	cfg    Config
	driver *Driver
	kill   killer
	summed map[string]summed // by path
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

type options struct {
	dir      string // to make the cluster in
	slot     bool   // the server does not archive for us
	settings map[string]string
	init     []string
	bare     bool // Enable is the test's business
}

// newSubject has a running cluster with a database "app", in care, with a base.
func newSubject(t testing.TB, o options) *subject {
	t.Helper()
	settings := map[string]string{
		"max_prepared_transactions": "5", "wal_level": "replica", "max_wal_size": "256MB", "log_line_prefix": "%m [%p] ", "wal_log_hints": "on",
	}
	if o.slot {
		settings["archive_mode"], settings["archive_command"] = "on", "test -f %p" // somebody else's
	}
	for k, v := range o.settings {
		settings[k] = v
	}
	if !o.bare {
		if settings["archive_mode"] == "" { // so that Enable needs no restart
			settings["archive_mode"] = "on"
		}
	}
	_, isTest := t.(*testing.T)
	if isTest && !o.bare {
		o.init = append(o.init, "--wal-segsize=1") // less to be copied
	}
	if isTest && o.dir == "" {
		o.dir = pgtest.Memory()
	}
	c := pgtest.New(t, pgtest.Options{Dir: o.dir, Settings: settings, Init: o.init, Databases: []string{"app"}, Slim: isTest})
	uid, gid := c.Owner()
	owner := privsep.User{UID: uid, GID: gid}
	s := &subject{Cluster: c, cfg: Config{
		App: "app-1", Name: "main", DSN: c.DSN("app"), DataDir: c.DataDir, StateDir: stateDir(t, o), Bin: c.Bin, Owner: owner, Objects: bucket{},
		Server: pgserver.PgCtl{Bin: c.Bin, DataDir: c.DataDir, Log: c.Log, Owner: owner},
	}}
	s.cfg.Failpoint = s.failpoint
	t.Cleanup(func() { s.halt(t) })
	s.reopen(t)
	check(t, s.driver.server.Start(t.Context()))
	if !o.bare {
		s.enable(t)
		check(t, s.driver.Maintain(t.Context()))
	}
	return s
}

// stateDir is where the driver of a cluster keeps its records: on a disk if the cluster is on one.
func stateDir(t testing.TB, o options) string {
	if o.dir == "" || o.dir != pgtest.Memory() {
		return t.TempDir()
	}
	return testkit.TempDir(t)
}

// enable takes the cluster into care, with the restart that this may need.
func (s *subject) enable(t testing.TB) {
	t.Helper()
	_, restart, err := s.driver.Enable(t.Context())
	check(t, err)
	if restart {
		check(t, s.driver.server.Stop(t.Context()))
		check(t, s.driver.server.Start(t.Context()))
	}
}

// halt ends all servers of the subject.
func (s *subject) halt(t testing.TB) {
	forks, _ := filepath.Glob(s.cfg.DataDir + ".mulligan/forks/*") // the pattern is good
	for _, dir := range append(forks, s.cfg.DataDir) {
		if running, err := pgserver.InUse(dir); err == nil && running {
			_ = s.Command("pg_ctl", "stop", "-W", "-m", "immediate", "-D", dir).Run() // it may have ended by itself
			check(t, pgserver.AwaitEnd(context.Background(), dir))
		}
	}
	if t.Failed() {
		data, _ := os.ReadFile(s.Log)
		t.Logf("the server's log ends:\n%s", data[max(0, len(data)-1500):])
	}
}

func (s *subject) Driver() snap.Driver { return s.driver }

func (s *subject) Reopen(t *testing.T) { s.reopen(t) }

func (s *subject) reopen(t testing.TB) {
	t.Helper()
	if s.driver != nil {
		s.driver.Close() // the operating system would
	}
	d, err := New(s.cfg)
	check(t, err)
	s.driver = d
}

// Again drops the databases and tables that earlier changes made: each would be copied with the cluster.
func (s *subject) Again(t *testing.T) {
	t.Helper()
	check(t, s.driver.server.Start(t.Context()))
	s.Psql(t, "postgres", `SELECT format('DROP DATABASE %I', datname) FROM pg_database WHERE datname LIKE 'other%' \gexec`)
	s.Psql(t, "app", `SELECT format('DROP TABLE %I', relname) FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace AND relname <> 'kv' \gexec
		TRUNCATE kv; SELECT lo_unlink(oid) FROM pg_largeobject_metadata; VACUUM pg_largeobject`)
}

func (s *subject) Mutate(t *testing.T, seed int64) { s.mutate(t, seed) }

// mutate changes rows, the schema, what is in the cluster besides the database,
// and the configuration.
func (s *subject) mutate(t testing.TB, seed int64) {
	t.Helper()
	c := s.dial(t, "app")
	defer c.Close(t.Context())
	noise := testkit.Bytes(t, 48<<10)
	run := func(sql string, args ...any) {
		t.Helper()
		_, err := c.Exec(t.Context(), sql, args...)
		check(t, err)
	}
	run("CREATE TABLE IF NOT EXISTS kv (id serial PRIMARY KEY, seed bigint, v bytea)")
	run("ALTER TABLE kv ALTER v SET STORAGE EXTERNAL")
	run("INSERT INTO kv(seed, v) VALUES ($1, $2)", seed, noise)
	switch seed % 6 {
	case 0:
		run(fmt.Sprintf("ALTER SYSTEM SET work_mem = '%dkB'", 1000+seed))
	case 1:
		run(fmt.Sprintf("CREATE TABLE t%d (a int PRIMARY KEY, b text)", seed))
		run(fmt.Sprintf("INSERT INTO t%d SELECT g, md5(g::text) FROM generate_series(1, 500) g", seed))
	case 2:
		run("DELETE FROM kv WHERE id % 3 = 0")
		run(fmt.Sprintf("ALTER TABLE kv ADD COLUMN c%d int DEFAULT %d", seed, seed))
	case 3:
		run(fmt.Sprintf("CREATE DATABASE other%d", seed))
		run(fmt.Sprintf("CREATE ROLE role%d", seed))
	case 4:
		run("UPDATE kv SET seed = seed + 1 WHERE id % 2 = 0")
		run("VACUUM FULL kv")
		run("SELECT lo_from_bytea(0, $1)", noise[:9000])
	case 5:
		run("TRUNCATE kv")
		run("INSERT INTO kv(seed, v) VALUES ($1, $2)", -seed, noise)
		run("VACUUM ANALYZE")
	}
}

// fingerprintSQL reads one database: definitions, and every row of every table.
const fingerprintSQL = `SELECT 'column', table_name || '.' || column_name || ' ' || data_type || ' ' || coalesce(column_default, '') FROM information_schema.columns WHERE table_schema = 'public'
	UNION ALL SELECT 'index', indexdef FROM pg_indexes WHERE schemaname = 'public'
	UNION ALL SELECT 'rows ' || relname, md5(query_to_xml(format('SELECT md5(t::text) FROM public.%I t ORDER BY 1', relname), false, true, '')::text) FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind = 'r' AND relpersistence = 'p'
	UNION ALL SELECT 'large', md5(string_agg(encode(lo_get(oid), 'hex'), ' ' ORDER BY oid)) FROM pg_largeobject_metadata
	UNION ALL SELECT 'role', rolname FROM pg_roles WHERE rolname LIKE 'role%'
	UNION ALL SELECT 'prepared', gid FROM pg_prepared_xacts
	ORDER BY 1, 2`

func (s *subject) Fingerprint(t *testing.T) string { return s.fingerprint(t) }

func (s *subject) fingerprint(t testing.TB) string {
	t.Helper()
	check(t, s.driver.server.Start(t.Context()))
	c := s.dial(t, "postgres")
	names, err := collect(t, c, "SELECT datname::text, '' FROM pg_database WHERE NOT datistemplate ORDER BY 1")
	check(t, err)
	settings, err := collect(t, c, "SELECT name, setting FROM pg_file_settings WHERE name = 'work_mem' ORDER BY 2")
	check(t, err)
	check(t, c.Close(t.Context()))
	var all []string
	for _, line := range names {
		name, _, _ := strings.Cut(line, " ")
		c := s.dial(t, name)
		lines, err := collect(t, c, fingerprintSQL)
		check(t, err)
		check(t, c.Close(t.Context()))
		all = append(append(all, "database "+name), lines...)
	}
	return strings.Join(append(append(all, settingsPart), settings...), "\n")
}

// settingsPart is the line of a fingerprint after which the settings are.
const settingsPart = "settings"

// Imported returns the fingerprint of a snapshot that is imported: it gets the settings of the cluster that is there.
func (s *subject) Imported(sent, there string) string {
	rows, _, _ := strings.Cut(sent, "\n"+settingsPart)
	_, settings, _ := strings.Cut(there, "\n"+settingsPart)
	return rows + "\n" + settingsPart + settings
}

func collect(t testing.TB, c *pgx.Conn, sql string) ([]string, error) {
	rows, err := c.Query(t.Context(), sql)
	check(t, err)
	return pgx.CollectRows(rows, func(r pgx.CollectableRow) (string, error) {
		var a, b *string
		err := r.Scan(&a, &b)
		if b == nil {
			b = new(string)
		}
		return *a + " " + *b, err
	})
}

// dial connects as a client of the app would.
func (s *subject) dial(t testing.TB, db string) *pgx.Conn {
	t.Helper()
	cfg, err := pgx.ParseConfig(s.DSN(db))
	check(t, err)
	cfg.DefaultQueryExecMode = pgx.QueryExecModeExec
	c, err := pgx.ConnectConfig(t.Context(), cfg)
	check(t, err)
	return c
}

// Damage flips a byte in the largest file of the snapshot's base.
func (s *subject) Damage(t *testing.T, id snap.SnapshotID) {
	t.Helper()
	if r := (raw{}); s.driver.records.get("raws", string(id), &r) == nil {
		s.damageRaw(t, r)
		return
	}
	m, err := s.driver.records.marker(id)
	check(t, err)
	b, err := s.driver.bases.nearest(t.Context(), m, 1<<20) // as newSubject makes its clusters
	check(t, err)
	flip(t, largest(t, s.driver.store.path("bases", b.ID)), 4000)
}

func flip(t testing.TB, path string, at int64) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	check(t, err)
	b := make([]byte, 1)
	_, err = f.ReadAt(b, at)
	check(t, err)
	b[0] ^= 1
	_, err = f.WriteAt(b, at)
	check(t, err)
	check(t, f.Close())
}

func largest(t testing.TB, dir string) (path string) {
	t.Helper()
	var size int64
	check(t, asowner.EachFile(dir, func(p string) error {
		if n, _, err := asowner.SumFile(p); err == nil && n > size {
			path, size = p, n
		}
		return nil
	}))
	return path
}

// Stored is what bases, kept folders and log take, all of which Delete drops at once. What the server has still to archive is waited for.
func (s *subject) Stored(t *testing.T) int64 {
	t.Helper()
	testkit.Eventually(t, "the server archives its log", func() bool {
		ready, err := filepath.Glob(filepath.Join(s.cfg.DataDir, "pg_wal/archive_status/*.ready"))
		return err == nil && len(ready) == 0
	})
	var all []string
	for _, dir := range []string{"bases", "forks", "archive"} {
		entries, err := os.ReadDir(s.driver.store.path(dir))
		check(t, err)
		for _, e := range entries {
			all = append(all, s.driver.store.path(dir, e.Name()))
		}
	}
	n, err := s.driver.store.measure(t.Context(), slices.Clip(all))
	check(t, err)
	return n
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
