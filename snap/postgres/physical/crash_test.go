package physical

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sys/unix"

	"mulligan/durable"
	"mulligan/errs"
	"mulligan/privsep"
	"mulligan/snap"
	"mulligan/snap/database"
	"mulligan/snap/postgres/physical/asowner"
	"mulligan/snap/postgres/physical/pgserver"
	"mulligan/snap/snaptest"
	"mulligan/testkit"
)

// fate is what a victim works on, and when it is killed.
type fate struct {
	Data, State, DSN, Bin, Log string
	Owner                      privsep.User
	Round                      int
	Step                       string // it is killed at this step, the Nth time; "" is the parent's business
	Nth                        int
	Target                     snap.SnapshotID
}

func (f fate) config() Config {
	return Config{
		App: "app-1", Name: "main", DSN: f.DSN, DataDir: f.Data, StateDir: f.State, Bin: f.Bin, Owner: f.Owner,
		Server: pgserver.PgCtl{Bin: f.Bin, DataDir: f.Data, Log: f.Log, Owner: f.Owner}, MaxReplay: 1, // a base each time
	}
}

// told is what a victim reports of what it has done.
type told struct {
	Captured snap.SnapshotID // this id is in the daemon's list now
	Count    int64           // rows that its state has
	Phase    string          // of the restore
}

const crashRestore = snap.RestoreID("op-crash")

// victim writes, captures, takes a base, and restores, as a daemon would, until it is killed.
func victim(arg string) {
	var f fate
	must(json.Unmarshal([]byte(arg), &f))
	cfg := f.config()
	seen := 0
	cfg.Failpoint = func(step string) error {
		if step == f.Step {
			if seen++; seen == f.Nth {
				must(unix.Kill(os.Getpid(), unix.SIGKILL))
				select {}
			}
		}
		return nil
	}
	d, err := New(cfg)
	must(err)
	ctx := context.Background()
	tell := func(v told) { must(json.NewEncoder(os.Stdout).Encode(v)) }
	id := func(n int) snap.SnapshotID { return snap.SnapshotID(fmt.Sprintf("db-%d-%d", f.Round, n)) }
	for n := range 2 {
		count := write(ctx, f.DSN)
		_, err := d.Capture(ctx, snap.CaptureRequest{ID: id(n), Quiesced: true})
		must(err)
		tell(told{Captured: id(n), Count: count})
		if n == 0 {
			must(d.Maintain(ctx))
		}
	}
	sw, err := d.Prepare(ctx, snap.RestoreRequest{ID: crashRestore, Target: f.Target, Base: id(1)})
	must(err)
	tell(told{Phase: "prepared"})
	must(sw.Commit(ctx))
	tell(told{Phase: "committed"})
	proof, err := sw.Check(ctx)
	must(err)
	if !proof.Match {
		panic("not proved")
	}
	must(sw.Finish(ctx))
	tell(told{Phase: "finished"})
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// write commits 20 rows more, and gives how many there are.
func write(ctx context.Context, dsn string) (count int64) {
	c, err := pgx.Connect(ctx, dsn)
	must(err)
	defer c.Close(ctx)
	_, err = c.Exec(ctx, "INSERT INTO counted SELECT coalesce(max(id), 0) + g FROM counted, generate_series(1, 20) g GROUP BY g")
	must(err)
	must(c.QueryRow(ctx, "SELECT count(*) FROM counted").Scan(&count))
	return count
}

var crashSteps = []string{
	"capture: mark", "capture: record", "base: begin", "base: copy", "base: sync", "base: record", "fork: clone", "fork: replay", "fork: look", "fork: make durable",
	"phase: preparing", "phase: prepared", "phase: committing", "commit: stop", "commit: save log", "commit: exchange", "commit: start", "phase: committed", "phase: dropped", "finish",
}

// Whatever moment the daemon, or the server, is killed at: the database is the
// old or the restored one, whole, and no listed marker is lost.
func testKilledAtRandom(t *testing.T) {
	t.Parallel()
	kills, most := 1, 30 // of most rounds the victim comes to its end
	if snaptest.Long() {
		kills, most = 30, 300
	}
	s := newSubject(t, options{})
	s.Psql(t, "app", "CREATE TABLE counted (id bigint PRIMARY KEY)")
	s.Psql(t, "app", "INSERT INTO counted VALUES (1)")
	list := map[snap.SnapshotID]int64{"db-first": 1}
	capture(t, s, "db-first")
	random := testkit.Rand(t)
	killed := 0
	for round := 0; killed < kills; round++ {
		if round == most {
			t.Fatalf("%d of %d victims were killed, want %d", killed, most, kills)
		}
		f := fate{
			Data: s.DataDir, State: s.cfg.StateDir, DSN: s.cfg.DSN, Bin: s.Bin, Log: s.Log, Owner: s.cfg.Owner,
			Round: round, Nth: 1, Target: pick(random, list),
		}
		how, hit := s.dies(t, random, f, list)
		if hit {
			killed++
		}
		t.Logf("round %d: %s", round, how)
		s.recovers(t, random, f, list)
		for len(list) > 6 { // retention
			id := pick(random, list)
			check(t, s.driver.Delete(t.Context(), id))
			delete(list, id)
		}
	}
	testkit.Tally(t, "kills", killed)
	for id := range list {
		check(t, s.driver.Verify(t.Context(), id, snap.Full))
	}
	s.Psql(t, "app", "CREATE EXTENSION amcheck; SELECT bt_index_check('counted_pkey', true)")
}

func pick(r *rand.Rand, list map[snap.SnapshotID]int64) snap.SnapshotID {
	var ids []string
	for id := range list {
		ids = append(ids, string(id))
	}
	// Maps have no order of their own.
	min := ids[0]
	for _, id := range ids {
		if id < min {
			min = id
		}
	}
	if n := r.IntN(len(ids) + 1); n < len(ids) {
		return snap.SnapshotID(ids[n])
	}
	return snap.SnapshotID(min)
}

// dies runs a victim until it, or the server, or both are killed: at a step or at
// any moment. What it told before is in the list.
func (s *subject) dies(t *testing.T, random *rand.Rand, f fate, list map[snap.SnapshotID]int64) (how string, hit bool) {
	t.Helper()
	var after time.Duration
	if random.IntN(2) == 0 {
		f.Step = crashSteps[random.IntN(len(crashSteps))]
		f.Nth = 1 + random.IntN(2)
		how = fmt.Sprintf("daemon at %q the %d. time", f.Step, f.Nth)
	} else {
		after = time.Duration(random.IntN(6000)) * time.Millisecond
		how = fmt.Sprintf("daemon after %v", after)
	}
	server := random.IntN(3) // 0: it dies at that moment, and the daemon with it; 1: the server alone
	if server == 1 && f.Step == "" {
		how = "server" + strings.TrimPrefix(how, "daemon")
	}
	arg, err := json.Marshal(f)
	check(t, err)
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), "MULLIGAN_TEST_VICTIM="+string(arg))
	out, err := cmd.StdoutPipe()
	check(t, err)
	var problem strings.Builder
	cmd.Stderr = &problem
	check(t, cmd.Start())
	if f.Step == "" {
		fired := make(chan struct{})
		timer := time.AfterFunc(after, func() {
			defer close(fired)
			if server != 2 {
				s.killServer()
			}
			if server != 1 {
				_ = cmd.Process.Kill() // it may have ended
			}
		})
		defer func() {
			if !timer.Stop() {
				<-fired // The victim ended while the timer's kill was under way: what follows comes after that kill.
			}
		}()
	}
	for lines := bufio.NewScanner(out); lines.Scan(); {
		var v told
		if err := json.Unmarshal(lines.Bytes(), &v); err != nil {
			t.Fatalf("the victim says %q: %v", lines.Text(), err)
		}
		if v.Captured != "" {
			list[v.Captured] = v.Count
		}
		if v.Phase != "" {
			how += ", " + v.Phase
		}
	}
	err = cmd.Wait()
	if f.Step != "" && server == 0 {
		s.killServer()
		how += ", and then the server"
	}
	return how + fmt.Sprintf(" (%v %s)", err, strings.TrimSpace(problem.String())), err != nil
}

// killServer kills all processes of the live server at once, as losing power would.
func (s *subject) killServer() {
	links, _ := filepath.Glob("/proc/[0-9]*/cwd") // the pattern is good
	var killed []int
	for _, link := range links {
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(link)))
		if pid != os.Getpid() && pgserver.WorksIn(pid, s.DataDir) && unix.Kill(pid, unix.SIGKILL) == nil {
			killed = append(killed, pid)
		}
	}
	for _, pid := range killed {
		bury(pid)
	}
}

// bury waits until a process that was killed is gone.
func bury(pid int) {
	must(pgserver.Await(context.Background(), func() (bool, error) {
		_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil) // it may be, or soon become, our child
		return unix.Kill(pid, 0) == unix.ESRCH, nil
	}))
}

// recovers does what the daemon does after a start, and checks the outcome.
func (s *subject) recovers(t *testing.T, random *rand.Rand, f fate, list map[snap.SnapshotID]int64) {
	t.Helper()
	ctx := t.Context()
	s.reopen(t)
	var base snap.SnapshotID
	sw, err := s.driver.Resume(ctx, crashRestore)
	if err == nil {
		p, err := s.driver.Resumable("", crashRestore)
		check(t, err)
		base = p.Base
		want := list[base]
		began := p.Phase != database.Prepared
		if began && random.IntN(2) == 0 {
			check(t, sw.Commit(ctx))
			want = list[p.Target]
		} else {
			check(t, sw.Undo(ctx))
		}
		check(t, s.driver.server.Start(ctx))
		if began {
			proof, err := sw.Check(ctx)
			check(t, err)
			if !proof.Match {
				t.Errorf("the proof does not match: %+v", proof)
			}
		}
		s.counts(t, want, want)
		check(t, sw.Finish(ctx))
	} else if errs.KindOf(err) != errs.NotFound {
		t.Fatal(err)
	}
	check(t, s.driver.server.Start(ctx))
	gone := snap.Gone{Restores: []snap.RestoreID{crashRestore}}
	markers, err := s.driver.records.markers()
	check(t, err)
	for _, m := range markers {
		if _, ok := list[m.ID]; !ok {
			gone.Snapshots = append(gone.Snapshots, m.ID)
		}
	}
	check(t, s.driver.Sweep(ctx, gone))
	for id := range list {
		if err := s.driver.Verify(ctx, id, snap.Quick); err != nil {
			t.Fatalf("%s is lost: %v\n%s", id, err, s.inventory(t))
		}
	}
	s.counts(t, 1, 1<<40)
	if forks, err := os.ReadDir(s.driver.store.path("forks")); err != nil {
		t.Error(err)
	} else if keeps, err := s.driver.records.keptOnes(); err != nil || len(keeps) != len(forks) {
		t.Errorf("there are forks %v, and kept are %v, %v", forks, keeps, err)
	}
	// Each state in the list can be had.
	id := pick(random, list)
	capture(t, s, "db-now")
	s.restore(t, id, "db-now")
	s.counts(t, list[id], list[id])
	check(t, s.driver.Delete(ctx, "db-now"))
}

// inventory says what is stored.
func (s *subject) inventory(t *testing.T) string {
	t.Helper()
	markers, err := s.driver.records.markers()
	check(t, err)
	bases, err := s.driver.records.bases()
	check(t, err)
	text := &strings.Builder{}
	for _, m := range markers {
		fmt.Fprintf(text, "marker %s: timeline %d at %s\n", m.ID, m.TLI, m.LSN)
	}
	for _, b := range bases {
		fmt.Fprintf(text, "base %s: timeline %d from %s to %s\n", b.ID, b.TLI, b.Start, b.Stop)
	}
	for _, dir := range []string{s.driver.store.Archive(), filepath.Join(s.DataDir, "pg_wal"), s.driver.store.path("forks")} {
		entries, err := os.ReadDir(dir)
		check(t, err)
		fmt.Fprintln(text, dir, entries)
	}
	histories, err := filepath.Glob(s.driver.store.path("archive", "*.history"))
	check(t, err)
	for _, h := range histories {
		data, err := os.ReadFile(h)
		check(t, err)
		fmt.Fprintf(text, "%s: %s\n", filepath.Base(h), strings.Join(strings.Fields(string(data)), " "))
	}
	return text.String()
}

// counts checks that the table is whole, and has a number of rows that can be.
func (s *subject) counts(t *testing.T, low, top int64) {
	t.Helper()
	c := s.dial(t, "app")
	defer c.Close(t.Context())
	var rows, last int64
	check(t, c.QueryRow(t.Context(), "SELECT count(*), max(id) FROM counted").Scan(&rows, &last))
	if rows != last || rows < low || rows > top || rows%20 != 1 {
		t.Fatalf("there are %d rows up to %d, want from %d to %d", rows, last, low, top)
	}
}

// failingServer does not start the first time after a Stop.
type failingServer struct {
	pgserver.Server
	stopped bool
}

func (f *failingServer) Stop(ctx context.Context) error {
	f.stopped = true
	return f.Server.Stop(ctx)
}

func (f *failingServer) Start(ctx context.Context) error {
	if f.stopped {
		f.stopped = false
		return errors.New("it does not start")
	}
	return f.Server.Start(ctx)
}

// A server that could not be started after a write of the last moment is started by Undo.
func testFailedStartAfterLateWrite(t *testing.T) {
	t.Parallel()
	s := newSubject(t, options{})
	s.cfg.Server = &failingServer{Server: s.cfg.Server}
	s.reopen(t)
	ctx := t.Context()
	s.Psql(t, "app", "CREATE TABLE counted (id bigint PRIMARY KEY)")
	capture(t, s, "db-a")
	sw, err := s.driver.Prepare(ctx, snap.RestoreRequest{ID: "op-1", Target: "db-a", Base: "db-a"})
	check(t, err)
	s.Psql(t, "app", "INSERT INTO counted SELECT generate_series(1, 21)")
	fails(t, "Commit", sw.Commit(ctx), errs.Conflict, "it does not start")
	if running, err := pgserver.InUse(s.DataDir); err != nil || running {
		t.Fatalf("the server runs: %t, %v", running, err)
	}
	s.reopen(t)
	sw, err = s.driver.Resume(ctx, "op-1")
	check(t, err)
	check(t, sw.Undo(ctx))
	s.counts(t, 21, 21)
	check(t, sw.Finish(ctx))
}

// A marker whose record is damaged keeps none of the others from being restored and deleted. While it is recorded, nothing that it
// may need is removed.
func testDamagedMarker(t *testing.T) {
	t.Parallel()
	s := newSubject(t, options{})
	ctx := t.Context()
	stored := func() (all []string) {
		for _, dir := range []string{"bases", "archive", "raws"} {
			entries, err := os.ReadDir(s.driver.store.path(dir))
			if !errors.Is(err, fs.ErrNotExist) {
				check(t, err)
			}
			for _, e := range entries {
				if !strings.Contains(e.Name(), asowner.Linked) {
					all = append(all, dir+"/"+e.Name())
				}
			}
		}
		return all
	}
	s.Psql(t, "app", "CREATE TABLE counted (id bigint PRIMARY KEY)")
	capture(t, s, "db-bad")
	check(t, s.driver.bases.take(ctx))
	s.Psql(t, "app", "INSERT INTO counted SELECT generate_series(1, 21); SELECT pg_switch_wal()")
	capture(t, s, "db-good")
	_, err := s.driver.Salvage(ctx, snap.CaptureRequest{ID: "db-raw"})
	check(t, err)
	check(t, s.driver.server.Start(ctx))
	s.Stored(t) // waits for the archive
	for _, record := range []string{"markers/db-bad.json", "raws/db-raw.json"} {
		flip(t, filepath.Join(s.cfg.StateDir, record), 10)
	}
	before := stored()
	keeps := func(after string) {
		t.Helper()
		now := stored()
		for _, path := range before {
			if !slices.Contains(now, path) {
				t.Errorf("after %s there is no %s", after, path)
			}
		}
	}
	s.reopen(t)
	check(t, s.driver.Sweep(ctx, snap.Gone{}))
	keeps("Sweep")
	bases, err := s.driver.records.bases()
	check(t, err)
	s.driver.cfg.MaxReplay = 1
	fails(t, "Maintain", s.driver.Maintain(ctx), errs.Corrupt, "db-bad")
	if now, err := s.driver.records.bases(); err != nil || len(now) != len(bases)+1 {
		t.Errorf("Maintain takes no base: there are %d, and were %d, %v", len(now), len(bases), err)
	}
	keeps("Maintain")
	s.Psql(t, "app", "INSERT INTO counted SELECT generate_series(22, 41)")
	capture(t, s, "db-now")
	s.restore(t, "db-good", "db-now")
	s.counts(t, 21, 21)
	for _, id := range []snap.SnapshotID{"db-good", "db-now"} {
		check(t, s.driver.Delete(ctx, id))
	}
	keeps("the deletion of all others")
	fails(t, "Verify", s.driver.Verify(ctx, "db-bad", snap.Quick), errs.Corrupt, "db-bad")

	check(t, s.driver.Delete(ctx, "db-bad"))
	check(t, s.driver.Sweep(ctx, snap.Gone{Snapshots: []snap.SnapshotID{"db-raw"}}))
	check(t, s.driver.Maintain(ctx)) // takes a base
	check(t, s.driver.Maintain(ctx)) // drops the others
	for _, path := range stored() {
		if slices.Contains(before, path) && !strings.HasPrefix(path, "archive/") {
			t.Errorf("without the damaged records there is still %s", path)
		}
	}
}

// A plan that cannot be written leaves everything as it was.
func TestRecordsAreAtomic(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.json")
	check(t, durable.WriteFile(path, []byte("old"), 0o600))
	check(t, os.Mkdir(path+".tmp", 0o700))
	if err := durable.WriteFile(path, []byte("new"), 0o600); err == nil || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the error is %v", err)
	}
	if data, err := os.ReadFile(path); err != nil || string(data) != "old" {
		t.Errorf("the record is %q, %v", data, err)
	}
}
