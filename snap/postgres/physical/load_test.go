package physical

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"mulligan/snap"
	"mulligan/snap/postgres/physical/pgserver"
	"mulligan/snap/snaptest"
	"mulligan/testkit"
)

// counter is a client that commits the numbers 1, 2, 3, … one by one.
type counter struct {
	begun, done atomic.Int64 // the last number sent, and the last acknowledged
	enough      atomic.Bool
	ended       chan struct{}
}

func (s *subject) count(t *testing.T) *counter {
	t.Helper()
	ctx := t.Context()
	n := &counter{ended: make(chan struct{})}
	c := s.dial(t, "app")
	var last int64
	check(t, c.QueryRow(ctx, "SELECT coalesce(max(id), 0) FROM counted").Scan(&last))
	n.begun.Store(last)
	n.done.Store(last)
	go func() {
		defer close(n.ended)
		defer c.Close(context.Background())
		for !n.enough.Load() {
			id := n.begun.Add(1)
			if _, err := c.Exec(ctx, "INSERT INTO counted VALUES ($1)", id); err != nil {
				return // the server was stopped
			}
			n.done.Store(id)
		}
	}()
	return n
}

func (n *counter) end() {
	n.enough.Store(true)
	<-n.ended
}

// mark is a marker and what is known of the state there.
type mark struct {
	id       snap.SnapshotID
	low, top int64  // the count was at least low and at most top
	dump     string // the digest of pg_dump's output; "" until it was taken
}

// dump is what an independent program says of the database.
func (s *subject) dump(t *testing.T) string {
	t.Helper()
	cmd := s.Command("pg_dump", "-h", s.Socket, "-p", fmt.Sprint(s.Port), "-U", "postgres", "--no-sync", "app")
	out, err := cmd.Output()
	check(t, err)
	out = append(out, run(t, s, "pg_dumpall", "--roles-only")...)
	var lines []string
	for line := range strings.Lines(string(out)) {
		if !strings.HasPrefix(line, `\restrict`) && !strings.HasPrefix(line, `\unrestrict`) && !strings.HasPrefix(line, "SELECT pg_catalog.setval") {
			lines = append(lines, line)
		}
	}
	sum := sha256.Sum256([]byte(strings.Join(lines, "")))
	return hex.EncodeToString(sum[:])
}

// holds checks that the live state is that of the marker.
func (s *subject) holds(t *testing.T, m *mark) {
	t.Helper()
	c := s.dial(t, "app")
	defer c.Close(t.Context())
	var last, rows int64
	check(t, c.QueryRow(t.Context(), "SELECT coalesce(max(id), 0), count(*) FROM counted").Scan(&last, &rows))
	if last < m.low || last > m.top || rows != last {
		t.Fatalf("at %s the count is %d in %d rows, and was from %d to %d", m.id, last, rows, m.low, m.top)
	}
	var accounts, tellers, history int64
	check(t, c.QueryRow(t.Context(), `SELECT (SELECT sum(abalance) FROM pgbench_accounts), (SELECT sum(tbalance) FROM pgbench_tellers),
		coalesce((SELECT sum(delta) FROM pgbench_history), 0)`).Scan(&accounts, &tellers, &history))
	if accounts != tellers || tellers != history {
		t.Fatalf("at %s the balances are %d, %d and %d", m.id, accounts, tellers, history)
	}
	dump := s.dump(t)
	if m.dump != "" && m.dump != dump {
		t.Fatalf("at %s pg_dump prints something else than before", m.id)
	}
	m.dump = dump
}

// Markers made under load stand for a moment of it: what was committed before is
// there, and what came after is not. They are visited in random order, across
// timelines, with more load in between.
func testMarkersUnderLoad(t *testing.T) {
	for _, mode := range modes(t) {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			s := newSubject(t, options{slot: mode == "slot"})
			s.Psql(t, "app", "CREATE TABLE counted (id bigint PRIMARY KEY)")
			run(t, s, "pgbench", "-q", "-i", "-s", "1", "app")
			random := testkit.Rand(t)
			var marks []*mark
			most, visits := 4, 1
			if snaptest.Long() {
				most, visits = 12, 12
			}
			for len(marks) < most {
				marks = append(marks, s.markUnderLoad(t, len(marks)))
				if len(marks)%3 == 0 {
					check(t, s.driver.Maintain(t.Context()))
				}
				if len(marks) > 3 && len(marks)%2 == 0 {
					s.visit(t, marks[random.IntN(len(marks))])
				}
			}
			for _, i := range random.Perm(len(marks))[:visits] {
				s.visit(t, marks[i])
			}
		})
	}
}

// markUnderLoad makes a marker while clients write; every other one in a pause,
// so that a dump can be taken at the very same state.
func (s *subject) markUnderLoad(t *testing.T, n int) *mark {
	t.Helper()
	m := &mark{id: snap.SnapshotID(fmt.Sprintf("db-%d", n))}
	counter := s.count(t)
	bench := s.Command("pgbench", "-n", "-h", s.Socket, "-p", fmt.Sprint(s.Port), "-U", "postgres", "-c", "2", "-t", "150", "app")
	check(t, bench.Start())
	enough := counter.done.Load() + 20
	check(t, pgserver.Await(t.Context(), func() (bool, error) {
		select {
		case <-counter.ended:
			return false, errors.New("the counting client ended early")
		default:
			return counter.done.Load() >= enough, nil
		}
	}))
	paused := n%2 == 0
	if paused {
		check(t, bench.Wait())
		counter.end()
	}
	m.low = counter.done.Load()
	_, err := s.driver.Capture(t.Context(), snap.CaptureRequest{ID: m.id, Quiesced: paused})
	check(t, err)
	m.top = counter.begun.Load()
	if paused {
		m.dump = s.dump(t)
		return m
	}
	check(t, bench.Wait())
	counter.end()
	return m
}

// visit restores m, with a snapshot of the present first, and goes forward to
// that and back again now and then.
func (s *subject) visit(t *testing.T, m *mark) {
	t.Helper()
	base := snap.SnapshotID("db-before-" + randomHex(4))
	_, err := s.driver.Capture(t.Context(), snap.CaptureRequest{ID: base, Quiesced: true})
	check(t, err)
	before := s.dump(t)
	s.restore(t, m.id, base)
	s.holds(t, m)
	if m.id[len(m.id)-1]%3 == 0 {
		again := base + "-again"
		_, err := s.driver.Capture(t.Context(), snap.CaptureRequest{ID: again, Quiesced: true})
		check(t, err)
		s.restore(t, base, again)
		if s.dump(t) != before {
			t.Fatalf("forward again, the state is another one than before the restore of %s", m.id)
		}
		s.restore(t, m.id, base)
		s.holds(t, m)
		check(t, s.driver.Delete(t.Context(), again))
	}
	check(t, s.driver.Delete(t.Context(), base))
}

// restore goes through a whole switch.
func (s *subject) restore(t testing.TB, target, base snap.SnapshotID) {
	t.Helper()
	sw, err := s.driver.Prepare(t.Context(), snap.RestoreRequest{ID: "op-restore", Target: target, Base: base})
	check(t, err)
	for err = sw.Commit(t.Context()); errors.Is(err, snap.ErrChanged); err = sw.Commit(t.Context()) { // the server vacuumed; the daemon does the same
		base += "-later"
		_, err := s.driver.Capture(t.Context(), snap.CaptureRequest{ID: base, Quiesced: true})
		check(t, err)
		sw, err = s.driver.Prepare(t.Context(), snap.RestoreRequest{ID: "op-restore", Target: target, Base: base})
		check(t, err)
	}
	check(t, err)
	proof, err := sw.Check(t.Context())
	check(t, err)
	if !proof.Match {
		t.Fatalf("the restore of %s is not proved: %+v", target, proof)
	}
	check(t, sw.Finish(t.Context()))
}

// run runs one of the server's programs against the subject.
func run(t testing.TB, s *subject, program string, args ...string) string {
	t.Helper()
	out, err := s.Command(program, append([]string{"-h", s.Socket, "-p", fmt.Sprint(s.Port), "-U", "postgres"}, args...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", program, err, out)
	}
	return string(out)
}

// Clients that were connected reconnect, and read the restored state.
func testClientsReconnect(t *testing.T) {
	t.Parallel()
	s := newSubject(t, options{})
	s.Psql(t, "app", "CREATE TABLE t (v text); INSERT INTO t VALUES ('old')")
	capture(t, s, "db-old")
	s.Psql(t, "app", "UPDATE t SET v = 'new'")
	client := s.dial(t, "app")
	defer client.Close(t.Context())
	read := func(c *pgx.Conn) (v string, err error) {
		err = c.QueryRow(t.Context(), "SELECT v FROM t").Scan(&v)
		return v, err
	}
	if v, err := read(client); err != nil || v != "new" {
		t.Fatalf("the client reads %q, %v", v, err)
	}
	capture(t, s, "db-new")
	s.restore(t, "db-old", "db-new")
	if v, err := read(client); err == nil {
		t.Fatalf("the old connection lives on, and reads %q", v)
	}
	again := s.dial(t, "app")
	defer again.Close(t.Context())
	if v, err := read(again); err != nil || v != "old" {
		t.Fatalf("connected again, the client reads %q, %v", v, err)
	}
}

// Fifty clients that are connected and come back as soon as they are thrown out
// hold up no restore: each reads the old state or, later, the restored one.
func testFiftyClients(t *testing.T) {
	t.Parallel()
	s := newSubject(t, options{})
	s.Psql(t, "app", "CREATE TABLE t (v text); INSERT INTO t VALUES ('old')")
	capture(t, s, "db-old")
	s.Psql(t, "app", "UPDATE t SET v = 'new'")
	capture(t, s, "db-new")
	cfg, err := pgx.ParseConfig(s.DSN("app"))
	check(t, err)
	var enough atomic.Bool
	var connected atomic.Int64
	done := make(chan string, 50)
	for range 50 {
		go func() {
			last := ""
			pace := time.NewTicker(20 * time.Millisecond)
			defer pace.Stop()
			for !enough.Load() || last != "old" {
				c, err := pgx.ConnectConfig(context.Background(), cfg)
				if err != nil {
					<-pace.C
					continue // it is down, or just starting
				}
				connected.Add(1)
				for err == nil && (!enough.Load() || last != "old") {
					err = c.QueryRow(context.Background(), "SELECT v, pg_sleep(0.05)::text FROM t").Scan(&last, new(string))
				}
				_ = c.Close(context.Background()) // it may be closed
			}
			done <- last
		}()
	}
	check(t, pgserver.Await(t.Context(), func() (bool, error) { return connected.Load() >= 50, nil }))
	s.restore(t, "db-old", "db-new")
	enough.Store(true)
	for range 50 {
		if last := <-done; last != "old" {
			t.Errorf("a client read %q last", last)
		}
	}
}

func capture(t testing.TB, s *subject, id snap.SnapshotID) snap.Snapshot {
	t.Helper()
	got, err := s.driver.Capture(t.Context(), snap.CaptureRequest{ID: id})
	check(t, err)
	return got
}
