package logical

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"mulligan/errs"
	"mulligan/snap"
	"mulligan/snap/postgres/pgtest"
	"mulligan/snap/snaptest"
	"mulligan/testkit"
)

var ids atomic.Int64

// capture captures the live state under a fresh id.
func (s *subject) capture(t *testing.T) snap.SnapshotID {
	t.Helper()
	id := snap.SnapshotID(fmt.Sprintf("db-%06d", ids.Add(1)))
	_, err := s.driver.Capture(t.Context(), snap.CaptureRequest{ID: id})
	check(t, err)
	return id
}

// prepare captures a base and prepares a restore of target.
func (s *subject) prepare(t *testing.T, target snap.SnapshotID) snap.Switch {
	t.Helper()
	id := snap.RestoreID(fmt.Sprintf("op-%012d", ids.Add(1)))
	sw, err := s.driver.Prepare(t.Context(), snap.RestoreRequest{ID: id, Target: target, Base: s.capture(t)})
	check(t, err)
	s.prepared = id
	return sw
}

// restore takes the live state to target, proof included.
func (s *subject) restore(t *testing.T, target snap.SnapshotID) {
	t.Helper()
	sw := s.prepare(t, target)
	check(t, sw.Commit(t.Context()))
	proof, err := sw.Check(t.Context())
	check(t, err)
	if !proof.Match {
		t.Errorf("the restore of %s is not proved: %+v", target, proof)
	}
	check(t, sw.Finish(t.Context()))
}

// lives fails unless the live state is want, and shows where they part.
func (s *subject) lives(t *testing.T, what, want string) {
	t.Helper()
	sameLines(t, what, s.dump(t, ""), want)
}

// sameLines fails unless got is want, and shows where they part.
func sameLines(t *testing.T, what, got, want string) {
	t.Helper()
	if got == want {
		return
	}
	a, b := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			t.Fatalf("%s: the live state has %.200q and should have %.200q", what, a[i], b[i])
		}
	}
	t.Fatalf("%s: the live state has %d lines and should have %d", what, len(a), len(b))
}

// ours are the databases on the server that restores left.
func (s *subject) leftovers(t *testing.T) {
	t.Helper()
	if left := s.c.Psql(t, "postgres", `SELECT datname FROM pg_database WHERE datname LIKE '%\_\_mulligan\_%'`); left != "" {
		t.Errorf("left on the server: %s", left)
	}
}

// While pgbench writes, each capture is one instant: what an independent dump
// of the same server snapshot holds, with what was committed before it and
// without what came after. Every one of them can be gone back to.
func testUnderLoad(t *testing.T) {
	t.Parallel()
	c := startCluster(t, pgtest.Options{})
	s := newSubject(t, c)
	s.as(t, "CREATE TABLE public.marks (n int, side text)")
	connect := []string{"-h", c.Socket, "-p", strconv.Itoa(c.Port), "-U", s.owner()}
	if out, err := c.Command("pgbench", append(connect, "-i", "-q", s.db)...).CombinedOutput(); err != nil {
		t.Fatalf("pgbench -i: %v: %s", err, out)
	}
	bench := c.Command("pgbench", append(connect, "-c", "4", "-R", "150", "-T", "600", s.db)...)
	check(t, bench.Start())

	captures := 12
	if !snaptest.Long() {
		captures = 4
	}
	var list []snap.SnapshotID
	dumps := map[snap.SnapshotID]string{}
	for i := range captures {
		var dump string
		s.driver.exported = func(snapshot string) { dump = s.dump(t, snapshot) }
		s.as(t, fmt.Sprintf("INSERT INTO public.marks VALUES (%d, 'before')", i))
		id := s.capture(t)
		s.as(t, fmt.Sprintf("INSERT INTO public.marks VALUES (%d, 'after')", i))
		list, dumps[id] = append(list, id), dump
	}
	s.driver.exported = nil
	check(t, bench.Process.Signal(syscall.SIGINT))
	var exit *exec.ExitError
	if err := bench.Wait(); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	random := testkit.Rand(t)
	order := random.Perm(captures)
	if !snaptest.Long() {
		order = order[:2]
	}
	order = append(order, order[0])
	for _, i := range order {
		s.restore(t, list[i])
		s.lives(t, string(list[i]), dumps[list[i]])
		if got, want := c.Psql(t, s.db, "SELECT count(*) FILTER (WHERE side = 'before'), count(*) FILTER (WHERE side = 'after') FROM public.marks"), fmt.Sprintf("%d|%d", i+1, i); got != want {
			t.Errorf("capture %d has marks %s, want %s", i, got, want)
		}
		if got := c.Psql(t, s.db, "SELECT (SELECT sum(abalance) FROM pgbench_accounts) = (SELECT sum(bbalance) FROM pgbench_branches)"); got != "t" {
			t.Errorf("capture %d: the balances do not agree", i)
		}
	}
	s.leftovers(t)
}

// Each of these is undone, and done again, exactly.
func testDisasters(t *testing.T) {
	t.Parallel()
	c := startCluster(t, pgtest.Options{})
	disasters := map[string]string{
		"drop column":          "ALTER TABLE api.docs DROP COLUMN body CASCADE",
		"update without where": "UPDATE api.docs SET body = 'oops', n = NULL",
		"drop table":           `DROP TABLE api.docs CASCADE; DROP TABLE "Odd ""Näme"`,
		"truncate":             "TRUNCATE api.docs, public.refs, public.parts RESTART IDENTITY",
		"drop schemas":         "DROP SCHEMA api CASCADE; DROP SCHEMA public CASCADE",
		"half a migration": `ALTER TABLE api.docs RENAME TO documents; ALTER TABLE api.documents ADD COLUMN v2 text NOT NULL DEFAULT 'x', ALTER COLUMN n TYPE text;
			CREATE TABLE public.migrations (v int); INSERT INTO public.migrations VALUES (41); CREATE INDEX ON api.documents (v2); ALTER TYPE api.mood RENAME TO moods;
			DROP VIEW api.v; ALTER SEQUENCE api.docs_id_seq INCREMENT 7`,
		"blobs":         "SELECT lo_unlink(4242); SELECT lo_from_bytea(5, 'new')",
		"drop database": "",
	}
	names := slices.Sorted(maps.Keys(disasters))
	for _, i := range testkit.Sample(t, "disasters", len(names), 2) {
		sql := disasters[names[i]]
		t.Run(names[i], func(t *testing.T) {
			s := newSubject(t, c)
			s.Mutate(t, 1)
			s.Mutate(t, 3)
			good, before := s.capture(t), s.dump(t, "")
			if sql == "" {
				c.Psql(t, "postgres", "DROP DATABASE "+s.db+" WITH (FORCE)")
			} else {
				s.as(t, sql)
			}
			bad, after := s.capture(t), s.dump(t, "")
			s.restore(t, good)
			s.lives(t, "back", before)
			s.restore(t, bad)
			s.lives(t, "forward", after)
			s.restore(t, good)
			s.lives(t, "back again", before)
			s.leftovers(t)
		})
	}
}

// Clients that only read, and come back whenever they are thrown out, are no
// obstacle; those that write are told of.
func testFiftyClients(t *testing.T) {
	t.Parallel()
	c := startCluster(t, pgtest.Options{})
	s := newSubject(t, c)
	s.Mutate(t, 1)
	good, before := s.capture(t), s.dump(t, "")
	s.Mutate(t, 2)
	after := s.dump(t, "")

	sw := s.prepare(t, good)
	stop := s.clients(t, 50, "SELECT count(*) FROM api.docs")
	check(t, sw.Commit(t.Context()))
	s.lives(t, "under readers", before)
	check(t, sw.Undo(t.Context()))
	s.lives(t, "undone under readers", after)
	check(t, sw.Finish(t.Context()))
	if n := stop(); n == 0 {
		t.Error("the clients did nothing")
	}

	sw = s.prepare(t, good)
	stop = s.clients(t, 50, "INSERT INTO public.fast VALUES (1)")
	err := sw.Commit(t.Context())
	if errs.KindOf(err) != errs.Conflict || !errors.Is(err, snap.ErrChanged) {
		t.Errorf("Commit under writers: %v", err)
	}
	stop()
	if c.Psql(t, s.db, "SELECT count(*) > 1 FROM public.fast") != "t" {
		t.Error("what the clients wrote is gone")
	}
	check(t, sw.Undo(t.Context()))
	check(t, sw.Finish(t.Context()))
	s.leftovers(t)
}

// clients has n clients run sql, each on a connection that it makes again
// whenever it is cut, and comes back when all have connected once. Together they do a thousand things a second at most: more
// would take the processors from what is tested. What is
// returned stops them, and gives how often sql ran.
func (s *subject) clients(t *testing.T, n int, sql string) (stop func() int64) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var done atomic.Int64
	var up, all sync.WaitGroup
	up.Add(n)
	for range n {
		all.Add(1)
		go func() {
			defer all.Done()
			pace := time.NewTicker(time.Duration(n) * time.Millisecond)
			defer pace.Stop()
			var once sync.Once
			for ctx.Err() == nil {
				conn, err := pgx.Connect(ctx, s.cfg.DSN)
				if err != nil {
					<-pace.C
					continue
				}
				for ; err == nil && ctx.Err() == nil; <-pace.C {
					if _, err = conn.Exec(ctx, sql); err == nil {
						done.Add(1)
						once.Do(up.Done)
					}
				}
				_ = conn.Close(context.Background())
			}
		}()
	}
	up.Wait()
	return func() int64 {
		cancel()
		all.Wait()
		return done.Load()
	}
}

// countReads reopens the driver with a count of how often it reads the rows.
func (s *subject) countReads(t *testing.T) *int {
	t.Helper()
	reads := new(int)
	s.cfg.Failpoint = func(step string) error {
		if step == "read: rows" {
			*reads++
		}
		return nil
	}
	s.Reopen(t)
	return reads
}

// A capture shares the last one's content when nothing was written, and never
// when something was.
func TestUnchanged(t *testing.T) {
	t.Parallel()
	// A worker of autovacuum may write, and so have it read again, at any moment.
	c := startCluster(t, pgtest.Options{Settings: map[string]string{"autovacuum": "off"}})
	s := newSubject(t, c)
	s.Mutate(t, 1)
	reads := s.countReads(t)
	read := func(want bool, what string) {
		t.Helper()
		before := *reads
		id := s.capture(t)
		if got := *reads > before; got != want {
			t.Errorf("%s: the database was read: %t", what, got)
		}
		check(t, s.driver.Verify(t.Context(), id, snap.Full))
	}
	s.capture(t)
	c.Psql(t, s.db, "SELECT pg_stat_force_next_flush()")
	s.capture(t) // the server has settled by now
	read(false, "nothing written")
	c.Psql(t, s.db, "SELECT count(*) FROM api.docs; CHECKPOINT")
	read(false, "a query and a checkpoint")
	s.Reopen(t)
	read(false, "in a new process")
	for _, sql := range []string{
		"SELECT nextval('api.docs_id_seq')", "SELECT nextval('api.docs_id_seq')", "INSERT INTO public.fast VALUES (2)",
		"SET synchronous_commit = off; INSERT INTO public.fast VALUES (3)", "SELECT lo_put(4242, 0, 'x')",
		"GRANT SELECT ON public.fast TO ROLE_ro", "TRUNCATE public.fast",
	} {
		s.as(t, sql)
		read(true, sql)
	}
	c.Psql(t, "postgres", "ALTER DATABASE "+s.db+" SET work_mem = '5MB'")
	read(true, "a setting")
	c.Kill(t)
	c.Start(t)
	read(true, "the server was killed")
}

// What Prepare proved is not read again where nothing can have changed it, and
// a write of any kind after the exchange is seen.
func testCheckOfTheUntouched(t *testing.T) {
	t.Parallel()
	c := startCluster(t, pgtest.Options{Settings: map[string]string{"autovacuum": "off"}}) // as above
	s := newSubject(t, c)
	reads := s.countReads(t)
	for i, sql := range []string{
		"", "INSERT INTO public.fast VALUES (2)", "SELECT nextval('api.docs_id_seq')", "SELECT lo_put(4242, 0, 'x')",
		"GRANT SELECT ON public.fast TO ROLE_ro", "CREATE TABLE public.more ()",
	} {
		target := s.capture(t)
		s.Mutate(t, int64(i))
		sw := s.prepare(t, target)
		check(t, sw.Commit(t.Context()))
		if sql != "" {
			s.as(t, sql)
		}
		before := *reads
		proof, err := sw.Check(t.Context())
		check(t, err)
		if untouched := sql == ""; proof.Match != untouched || (*reads == before) != untouched {
			t.Errorf("%q after the exchange: match %t, read %t", sql, proof.Match, *reads > before)
		}
		check(t, sw.Undo(t.Context()))
		check(t, sw.Finish(t.Context()))
	}
}

// Changes are named in SQL.
func TestDiff(t *testing.T) {
	t.Parallel()
	c := startCluster(t, pgtest.Options{})
	s := newSubject(t, c)
	s.as(t, `CREATE TABLE public.users (id int NOT NULL, mail text, age int); INSERT INTO public.users VALUES (1), (2), (3); CREATE TABLE public.gone (i int)`)
	first := s.capture(t)
	s.as(t, `ALTER TABLE public.users DROP COLUMN age, ADD COLUMN "Born" date NOT NULL DEFAULT '2000-01-01', ALTER COLUMN mail TYPE varchar(20);
		DELETE FROM public.users WHERE id = 2; DROP TABLE public.gone; CREATE TABLE public.fresh AS SELECT 1 AS one;
		CREATE INDEX users_mail ON public.users (mail); DROP VIEW api.v; UPDATE public.parts SET id = id + 1;
		ALTER TABLE public.refs ADD CHECK (doc > 0); COMMENT ON TABLE api.docs IS 'other'; SELECT lo_unlink(77)`)
	c.Psql(t, "postgres", "COMMENT ON DATABASE "+s.db+" IS 'other'")
	want := []string{
		`delete public.gone: DROP TABLE public.gone; it had 0 rows`,
		`create public.fresh: CREATE TABLE public.fresh (one integer); 1 row`,
		`modify public.parts1: 2 rows, as many as before, with other content`,
		`modify public.users: ALTER TABLE public.users ALTER COLUMN mail character varying(20) (was mail text); ALTER TABLE public.users DROP COLUMN age; ` +
			`ALTER TABLE public.users ADD COLUMN "Born" date NOT NULL DEFAULT '2000-01-01'::date; 2 rows, were 3 (1 fewer)`,
		`modify large objects: 1, were 2`,
		`modify database: ALTER DATABASE: comment`,
		`delete api.v: DROP VIEW v`,
		`modify api.docs: COMMENT ON TABLE docs`,
		`create public.users_mail: CREATE INDEX users_mail ON public.users USING btree (mail)`,
		`modify public.refs: ALTER TABLE refs`,
	}
	for _, to := range []snap.SnapshotID{"", s.capture(t)} {
		list, err := s.driver.Diff(t.Context(), first, to, nil)
		check(t, err)
		var got []string
		for _, c := range list {
			got = append(got, fmt.Sprintf("%s %s: %s", c.Operation, c.Path, c.Summary))
		}
		if strings.Join(got, "\n") != strings.Join(want, "\n") {
			t.Errorf("to %q: got\n%s\nwant\n%s", to, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		list, err = s.driver.Diff(t.Context(), first, to, []string{"public.users"})
		check(t, err)
		if len(list) != 1 {
			t.Errorf("of public.users alone: %v", list)
		}
	}
	if same, err := s.driver.Diff(t.Context(), first, first, nil); err != nil || len(same) > 0 {
		t.Errorf("of the same: %v, %v", same, err)
	}
}

// On a server whose other databases are never quiet, the live database is moved
// aside and looked at there.
func testBusyServer(t *testing.T) {
	t.Parallel()
	c := startCluster(t, pgtest.Options{})
	s := newSubject(t, c)
	s.Mutate(t, 1)
	good, before := s.capture(t), s.dump(t, "")
	s.Mutate(t, 2)
	after := s.dump(t, "")
	s.prepare(t, good)

	c.Psql(t, "postgres", "CREATE DATABASE other")
	c.Psql(t, "other", "CREATE TABLE t (i int)")
	other := &subject{c: c, cfg: Config{DSN: c.DSN("other")}}
	stop := other.clients(t, 3, "INSERT INTO t VALUES (1)")
	defer stop()
	asides := 0
	s.cfg.Failpoint = func(step string) error {
		if step == "aside: read" {
			asides++
		}
		return nil
	}
	s.Reopen(t)
	sw, err := s.driver.Resume(t.Context(), s.prepared)
	check(t, err)
	check(t, sw.Commit(t.Context()))
	s.lives(t, "committed", before)
	if asides == 0 {
		t.Error("the live database was not looked at aside")
	}
	check(t, sw.Undo(t.Context()))
	s.lives(t, "undone", after)
	check(t, sw.Finish(t.Context()))

	// A crash while it is aside, and a write that came too late to be seen before.
	for _, crash := range []bool{true, false} {
		sw = s.prepare(t, good)
		id := s.prepared
		broken := errors.New("broken")
		s.cfg.Failpoint = func(step string) error {
			switch {
			case step != "aside: read":
			case crash:
				panic(broken)
			default:
				p, err := s.driver.Resumable("", id)
				check(t, err)
				c.Psql(t, p.Old, "INSERT INTO public.fast VALUES (77)")
			}
			return nil
		}
		s.Reopen(t)
		sw, err = s.driver.Resume(t.Context(), id)
		check(t, err)
		func() {
			defer func() {
				if r := recover(); r != nil && r != broken {
					panic(r)
				}
			}()
			err = sw.Commit(t.Context())
		}()
		s.cfg.Failpoint = nil
		s.Reopen(t)
		sw, resumeErr := s.driver.Resume(t.Context(), id)
		check(t, resumeErr)
		if crash {
			s.lives(t, "a crash while it is aside", "absent")
			check(t, sw.Commit(t.Context()))
			s.lives(t, "gone on with", before)
		} else if !errors.Is(err, snap.ErrChanged) {
			t.Errorf("a write at the last moment: %v", err)
		}
		check(t, sw.Undo(t.Context()))
		if crash {
			s.lives(t, "undone", after)
		} else if c.Psql(t, s.db, "SELECT count(*) FROM public.fast WHERE i = 77") != "1" {
			t.Error("the write at the last moment is gone")
		}
		check(t, sw.Finish(t.Context()))
	}
	s.leftovers(t)
}
