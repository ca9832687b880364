package logical

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"mulligan/snap"
	"mulligan/snap/cas"
	"mulligan/snap/postgres/pgtest"
	"mulligan/snap/snaptest"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	c := startCluster(t, pgtest.Options{})
	snaptest.RunSlow(t, func(t *testing.T) snaptest.Subject {
		s := newSubject(t, c)
		s.Mutate(t, 1000)
		return s
	})
}

// startCluster starts a cluster on a file system in memory where there is room, unless the test
// names a folder: no test here is about power cuts, and making files on a disk takes long.
func startCluster(t *testing.T, o pgtest.Options) *pgtest.Cluster {
	t.Helper()
	if o.Dir == "" {
		o.Dir = pgtest.Memory()
	}
	return pgtest.Start(t, o)
}

// Slow has the suite take fewer of its steps.
func (s *subject) Slow() bool { return !snaptest.Long() }

// subject is a database of an app, whose owner is no superuser, with a driver over it.
type subject struct {
	prepared snap.RestoreID // by prepare, the last time
	c        *pgtest.Cluster
	db       string
	cfg      Config
	driver   *Driver
	dumped   struct{ written, text string } // the last dump, and what written said then
}

var subjects atomic.Int64

// newSubject has a database with the things that are easily lost.
func newSubject(t *testing.T, c *pgtest.Cluster) *subject {
	t.Helper()
	s := &subject{c: c, db: fmt.Sprintf("shop%d", subjects.Add(1))}
	owner := s.owner()
	c.Psql(t, "postgres", strings.NewReplacer("MYDB", s.db, "MYOWNER", owner).Replace(`
		CREATE ROLE MYOWNER LOGIN CREATEDB PASSWORD 'it''s:secret\';
		GRANT pg_signal_backend TO MYOWNER;
		CREATE ROLE MYOWNER_ro;
		CREATE DATABASE MYDB OWNER MYOWNER;
		COMMENT ON DATABASE MYDB IS 'the shop''s';
		ALTER DATABASE MYDB CONNECTION LIMIT 90;
		ALTER DATABASE MYDB SET search_path = api, public, "Odd Name";
		ALTER DATABASE MYDB SET default_transaction_read_only = off;
		ALTER ROLE MYOWNER IN DATABASE MYDB SET work_mem = '8MB';
		REVOKE TEMPORARY ON DATABASE MYDB FROM PUBLIC;
		GRANT CREATE ON DATABASE MYDB TO MYOWNER_ro`))
	s.as(t, schemaSQL)
	s.open(t, c.DSNAs(owner, s.db))
	return s
}

func (s *subject) owner() string { return s.db + "_owner" }

// schemaSQL is run by the owner.
const schemaSQL = `
	CREATE SCHEMA api;
	CREATE EXTENSION hstore SCHEMA public; CREATE EXTENSION citext SCHEMA public;
	CREATE TYPE api.mood AS ENUM ('glad', 'sad');
	CREATE TABLE api.docs (id bigserial PRIMARY KEY, seed bigint, body text, attrs public.hstore, mail public.citext, at timestamptz DEFAULT now(),
		short text GENERATED ALWAYS AS (left(body, 3)) STORED, m api.mood DEFAULT 'glad', f float8, n numeric, b bytea, j jsonb, arr int[], CHECK (seed > -1000000));
	CREATE INDEX ON api.docs USING gin (attrs);
	CREATE TABLE "Odd ""Näme" ("Col 1" int GENERATED ALWAYS AS IDENTITY, "ü" text);
	CREATE TABLE public.empty (); INSERT INTO public.empty DEFAULT VALUES; INSERT INTO public.empty DEFAULT VALUES;
	CREATE TABLE public.parts (id int, k int) PARTITION BY RANGE (k);
	CREATE TABLE public.parts1 PARTITION OF public.parts FOR VALUES FROM (0) TO (100);
	CREATE TABLE public.child (extra text) INHERITS (public.empty);
	CREATE TABLE public.refs (doc bigint REFERENCES api.docs ON DELETE CASCADE, self int UNIQUE REFERENCES public.refs (self) DEFERRABLE);
	CREATE UNLOGGED TABLE public.fast (i int);
	CREATE VIEW api.v AS SELECT count(*) FROM api.docs;
	CREATE FUNCTION api.f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
-- Dumped like this
RETURN new; END $$;
	CREATE TRIGGER tr BEFORE INSERT ON api.docs FOR EACH ROW EXECUTE FUNCTION api.f();
	ALTER TABLE public.refs ENABLE ROW LEVEL SECURITY; CREATE POLICY p ON public.refs USING (true);
	GRANT SELECT ON api.docs TO "` + "ROLE" + `_ro"; ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO "ROLE_ro";
	COMMENT ON TABLE api.docs IS 'all; the -- documents';
	INSERT INTO "Odd ""Näme" ("ü") VALUES ('ä\\n\t'), (NULL), (E'\\\\.\n\r'), ('');
	INSERT INTO public.parts VALUES (1, 1), (2, 50);
	INSERT INTO public.fast VALUES (1);
	SELECT lo_from_bytea(4242, decode(repeat('00ff10', 50000), 'hex')); SELECT lo_create(77);
	COMMENT ON LARGE OBJECT 4242 IS 'a blob'; GRANT SELECT ON LARGE OBJECT 77 TO "ROLE_ro";
`

// as runs SQL as the owner; ROLE in it is the owner's name.
func (s *subject) as(t testing.TB, sql string) {
	t.Helper()
	sql = strings.ReplaceAll(sql, "ROLE", s.owner())
	s.c.Psql(t, s.db, "SET SESSION AUTHORIZATION "+s.owner()+"; "+sql)
}

// open gives the subject a store and a driver.
func (s *subject) open(t *testing.T, dsn string) {
	t.Helper()
	dir := t.TempDir()
	store, err := cas.Open(filepath.Join(dir, "store"), cas.Options{SegmentBytes: 64 << 10})
	check(t, err)
	t.Cleanup(func() { check(t, store.Close()) })
	s.cfg = Config{App: "app-1", Name: "main", DSN: dsn, StateDir: filepath.Join(dir, "state"), Store: store}
	s.Reopen(t)
}

func (s *subject) dir() string { return filepath.Dir(s.cfg.StateDir) }

func (s *subject) Driver() snap.Driver { return s.driver }

func (s *subject) Reopen(t *testing.T) {
	t.Helper()
	d, err := New(s.cfg)
	check(t, err)
	s.driver = d
}

// Mutate adds rows that cannot be compressed, and changes something else.
func (s *subject) Mutate(t *testing.T, seed int64) {
	t.Helper()
	s.as(t, fmt.Sprintf(`BEGIN;
		INSERT INTO api.docs (seed, body, attrs, mail, f, n, b, j, arr)
			SELECT %[1]d, string_agg(md5(random()::text), ''), public.hstore('k', %[1]d::text), 'A@b', random(), random()::numeric, '\x00ff', '{"a": [1]}', '{1,2}'
			FROM generate_series(1, 2200) g GROUP BY g %% 40;
		DELETE FROM api.docs WHERE seed < %[1]d - 3;
		%[2]s; COMMIT`, seed, changes(seed)))
}

// changes are further changes, by the seed.
func changes(seed int64) string {
	list := []string{
		`UPDATE api.docs SET body = body || 'x' WHERE id %% 7 = 0`,
		`ALTER TABLE api.docs ADD COLUMN IF NOT EXISTS c%[1]d int DEFAULT %[1]d; CREATE INDEX i%[1]d ON api.docs (seed)`,
		`CREATE TABLE public.t%[1]d (i int PRIMARY KEY, t text); INSERT INTO public.t%[1]d SELECT g, md5(g::text) FROM generate_series(1, 500) g`,
		`SELECT lo_put(4242, %[1]d %% 100000, '\xabcdef'); SELECT lo_from_bytea(0, 'blob %[1]d'); SELECT setval('api.docs_id_seq', nextval('api.docs_id_seq') + 100)`,
		`TRUNCATE public.parts; INSERT INTO public.parts1 VALUES (%[1]d, 3); COMMENT ON TABLE api.docs IS 'seed %[1]d'`,
		`DROP TABLE IF EXISTS public.child CASCADE; CREATE OR REPLACE FUNCTION api.g() RETURNS bigint LANGUAGE sql AS 'SELECT %[1]d::bigint'`,
	}
	return fmt.Sprintf(list[seed%int64(len(list))]+"; SELECT %[1]d", seed)
}

// Fingerprint is a full dump by pg_dump, its rows in order.
func (s *subject) Fingerprint(t *testing.T) string { return s.fingerprint(t, "") }

func (s *subject) fingerprint(t testing.TB, snapshot string) string {
	t.Helper()
	sum := sha256.Sum256([]byte(s.dump(t, snapshot)))
	return hex.EncodeToString(sum[:])
}

// dump is everything that pg_dump says of the database, or "absent".
func (s *subject) dump(t testing.TB, snapshot string) string {
	t.Helper()
	written := s.written(t)
	if strings.HasPrefix(written, "absent") {
		return "absent"
	}
	if snapshot == "" && written == s.dumped.written {
		return s.dumped.text
	}
	args := []string{"--create", "-h", s.c.Socket, "-p", strconv.Itoa(s.c.Port), "-U", pgtest.Superuser, s.db}
	if snapshot != "" {
		args = append([]string{"--snapshot=" + snapshot}, args...)
	}
	cmd := s.c.Command("pg_dump", args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("pg_dump: %v: %s", err, stderr.String())
	}
	text := normalize(string(out))
	if snapshot == "" && s.written(t) == written { // nobody wrote beside it
		s.dumped.written, s.dumped.text = written, text
	}
	return text
}

// written tells which database has the name, and up to where the server's log is written. Whoever commits something
// writes there, and so what is dumped once needs no second dump as long as that stays. A clean start of the server writes there too.
// A sequence writes there only once for each 32 values: the sequences' values are told as well.
func (s *subject) written(t testing.TB) string {
	t.Helper()
	at := s.c.Psql(t, "postgres", "SELECT coalesce((SELECT oid::text FROM pg_database WHERE datname = '"+s.db+"'), 'absent'), pg_current_wal_insert_lsn()")
	if strings.HasPrefix(at, "absent") {
		return at
	}
	return at + s.c.Psql(t, s.db, "SELECT schemaname, sequencename, last_value FROM pg_sequences ORDER BY 1, 2")
}

// normalize sorts the rows of each table, and takes out what no two dumps share.
func normalize(dump string) string {
	var out, rows []string
	copying := false
	for _, line := range strings.Split(dump, "\n") {
		switch {
		case strings.HasPrefix(line, `\restrict `), strings.HasPrefix(line, `\unrestrict `):
		case copying && line == `\.`:
			slices.Sort(rows)
			out, rows, copying = append(append(out, rows...), line), nil, false
		case copying:
			rows = append(rows, line)
		default:
			out, copying = append(out, line), strings.HasPrefix(line, "COPY ") && strings.HasSuffix(line, "FROM stdin;")
		}
	}
	return strings.Join(out, "\n")
}

// Damage flips a byte of the last piece of the snapshot's largest table, where
// a segment of the store has it: behind the header that holds its hash (cas/DESIGN.md).
func (s *subject) Damage(t *testing.T, id snap.SnapshotID) {
	t.Helper()
	root, err := s.cfg.Store.Root(s.driver.records.SnapshotRoot(id))
	check(t, err)
	m, err := load(s.cfg.Store, root.Hash)
	check(t, err)
	var pieces []cas.Hash
	for i := range m.rows {
		_, refs, err := s.cfg.Store.Node(m.rows[i])
		check(t, err)
		if len(refs) > len(pieces) {
			pieces = refs
		}
	}
	damage(t, filepath.Join(s.dir(), "store"), pieces[len(pieces)-1])
}

// damage flips a byte of the object.
func damage(t *testing.T, dir string, hash cas.Hash) {
	t.Helper()
	hit := false
	check(t, filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
		if err != nil || !info.Mode().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		at := bytes.Index(data, hash[:])
		if at >= 24 && !hit && at+100 < len(data) && bytes.HasPrefix(data, []byte("mullicas")) && data[at-16] == 1 {
			hit = true
			f, err := os.OpenFile(path, os.O_WRONLY, 0)
			check(t, err)
			_, err = f.WriteAt([]byte{data[at+100] ^ 1}, int64(at+100))
			check(t, err)
			check(t, f.Close())
		}
		return err
	}))
	if !hit {
		t.Fatalf("object %v is in no file of the store", hash)
	}
}

func (s *subject) Stored(t *testing.T) int64 {
	t.Helper()
	_, err := s.cfg.Store.Collect(context.Background())
	check(t, err)
	return s.cfg.Store.DiskUsage()
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
