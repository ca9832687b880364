package daemon_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"mulligan/daemon"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/snap/postgres/pgtest"
	"mulligan/testkit"
)

// awayServer is a server that holds an app's database, and can be stopped.
type awayServer struct {
	db          ipc.Database
	start, stop func(t *testing.T)
	set         func(t *testing.T, word string)
	get         func(t *testing.T) string
	ask         func(t *testing.T, sql string) string // of MariaDB
	folder      string                                // that its processes work in, where the test needs it
	pid         func(t *testing.T) int                // of the process that lets clients in
	rehearses   string                                // how a step begins that a rehearsal takes beside the live database
}

// awayServers start a server of each kind that is none of a folder's.
var awayServers = map[string]func(t *testing.T) *awayServer{"redis": awayRedis, "mysql": awayMariaDB, "postgres": awayPostgres}

// process starts a server's program, and returns what ends it, and its pid.
func process(t *testing.T, ready func() bool, program string, args ...string) (stop func(t *testing.T), pid func(*testing.T) int) {
	t.Helper()
	cmd := exec.Command(program, args...)
	if err := testkit.Start(cmd); err != nil {
		testkit.Lack(t, err)
	}
	stop = func(*testing.T) {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()         // it was killed
	}
	t.Cleanup(func() { stop(t) })
	waitFor(t, program+" is up", ready)
	return stop, func(*testing.T) int { return cmd.Process.Pid }
}

// says runs a client of a server, and returns its output without white space around it.
func says(t *testing.T, input, program string, args ...string) string {
	t.Helper()
	cmd := exec.Command(program, args...)
	cmd.Stdin = strings.NewReader(input)
	var complaints strings.Builder
	cmd.Stderr = &complaints
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s%s", program, err, out, complaints.String())
	}
	return strings.TrimSpace(string(out))
}

func awayRedis(t *testing.T) *awayServer {
	port := strconv.Itoa(testkit.Port(t))
	dir := t.TempDir()
	s := &awayServer{db: ipc.Database{Name: "main", Driver: "redis", DSN: "redis://127.0.0.1:" + port}}
	s.start = func(t *testing.T) {
		s.stop, s.pid = process(t, func() bool {
			out, err := exec.Command("redis-cli", "-p", port, "PING").Output()
			return err == nil && strings.TrimSpace(string(out)) == "PONG"
		}, "redis-server", "--bind", "127.0.0.1", "--port", port, "--dir", dir, "--appendonly", "yes", "--appendfsync", "always", "--logfile", filepath.Join(dir, "log"))
	}
	s.set = func(t *testing.T, word string) { says(t, "", "redis-cli", "-p", port, "SET", "word", word) }
	s.get = func(t *testing.T) string { return says(t, "", "redis-cli", "-p", port, "GET", "word") }
	return s
}

func awayMariaDB(t *testing.T) *awayServer {
	dir, err := os.MkdirTemp("", "mg-away") // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket, data := filepath.Join(dir, "s"), filepath.Join(dir, "data")
	s := &awayServer{db: ipc.Database{Name: "main", Driver: "mysql", DSN: "mysql://root@localhost/shop?socket=" + socket}, folder: data, rehearses: "prepare: load"}
	made := false
	sql := func(t *testing.T, text string) string {
		return says(t, text, "mariadb", "--no-defaults", "--socket="+socket, "--user=root", "--batch", "--skip-column-names")
	}
	s.start = func(t *testing.T) {
		if !made {
			testkit.MariaDB(t, data)
		}
		s.stop, s.pid = process(t, testkit.MariaDBAnswers(socket), "mariadbd", testkit.MariaDBServer(data, socket, "--skip-networking")...)
		if !made {
			sql(t, "CREATE DATABASE shop; CREATE TABLE shop.words (word varchar(9))")
			made = true
		}
	}
	s.ask = sql
	s.set = func(t *testing.T, word string) {
		sql(t, "DELETE FROM shop.words; INSERT INTO shop.words VALUES ('"+word+"')")
	}
	s.get = func(t *testing.T) string { return sql(t, "SELECT word FROM shop.words") }
	return s
}

func awayPostgres(t *testing.T) *awayServer {
	return awayPostgresOf(pgtest.New(t, pgtest.Options{Dir: quickDir(t)}))
}

func awayPostgresOf(c *pgtest.Cluster) *awayServer {
	s := &awayServer{db: ipc.Database{Name: "main", Driver: "postgres", DSN: c.DSN("postgres"), Mode: "logical"}, rehearses: "build: table"}
	made := false
	s.start = func(t *testing.T) {
		c.Start(t)
		if !made {
			c.Psql(t, "postgres", "CREATE DATABASE shop")
			c.Psql(t, "shop", "CREATE TABLE words (word text)")
			s.db.DSN, made = c.DSN("shop"), true
		}
	}
	s.stop = func(t *testing.T) { c.Kill(t) }
	s.pid = func(t *testing.T) int {
		line, _, _ := strings.Cut(read(t, c.DataDir, "postmaster.pid"), "\n")
		pid, err := strconv.Atoi(line)
		if err != nil {
			t.Fatal(err)
		}
		return pid
	}
	s.set = func(t *testing.T, word string) {
		c.Psql(t, "shop", "DELETE FROM words; INSERT INTO words VALUES ('"+word+"')")
	}
	s.get = func(t *testing.T) string { return strings.TrimSpace(c.Psql(t, "shop", "SELECT word FROM words")) }
	return s
}

// create makes a checkpoint.
func create(t *testing.T, d *daemon.Daemon) ipc.CheckpointID {
	t.Helper()
	cp, err := d.Create(t.Context(), root, "shop", ipc.CreateRequest{})
	if err != nil {
		t.Fatal(err)
	}
	return cp.ID
}

// problemsOf are the app's.
func problemsOf(t *testing.T, d *daemon.Daemon) string {
	t.Helper()
	a, err := d.App(t.Context(), root, "shop")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(a.Problems, "\n")
}

// testServerAway has a database's server go away: what is not of it can be compared and
// taken back, and what is says how.
func testServerAway(t *testing.T) {
	for name, start := range awayServers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t)
			s.start(t)
			tryServerAway(t, s)
		})
	}
}

func tryServerAway(t *testing.T, s *awayServer) {
	w := world{dir: worldDir(t)}
	write(t, w.ws(), "work", "before")
	d := w.open(t)
	defer func() { w.close(t, d) }()
	if _, err := d.AddApp(t.Context(), root, ipc.App{Slug: "shop", Workspace: w.ws()}); err != nil {
		t.Fatal(err)
	}
	never := create(t, d) // it never had the database
	if _, err := d.SetApp(t.Context(), root, "shop", ipc.AppChange{Databases: &[]ipc.Database{s.db}}); err != nil {
		t.Fatal(err)
	}
	set := func(word string) {
		t.Helper()
		write(t, w.ws(), "work", word)
		s.set(t, word)
	}
	says := func(word string) {
		t.Helper()
		if got := read(t, w.ws(), "work"); got != word {
			t.Fatalf("work says %q, want %q", got, word)
		}
	}
	set("zero")
	cp := create(t, d)
	set("one")
	s.stop(t)
	made := len(listed(t, d))

	if _, err := d.Create(t.Context(), root, "shop", ipc.CreateRequest{}); err == nil || !strings.Contains(err.Error(), "db:main") {
		t.Errorf("a checkpoint of a database that is away: %v", err)
	}
	diff, err := d.Diff(t.Context(), root, "shop", cp, ipc.DiffQuery{})
	if err != nil || len(diff.Changes) != 1 || diff.Changes[0].Path != "work" || len(diff.Unreadable) != 1 || !strings.HasPrefix(diff.Unreadable[0], "db:main ") {
		t.Errorf("diff: %+v, %v", diff, err)
	}
	dry := goBack(t, d, cp, ipc.RollbackRequest{DryRun: true})
	if words := strings.Join(dry.Warnings, "\n"); !strings.Contains(words, "--without db:main") {
		t.Errorf("a dry run says %q", words)
	}

	// Refused, with the word that it takes, and nothing was done.
	res, err := d.Rollback(t.Context(), root, "shop", cp, ipc.RollbackRequest{}, nil)
	want := fmt.Sprintf("mulligan rollback %s --without db:main", cp)
	if err == nil || !strings.Contains(errs.HintOf(err), want) || !strings.Contains(err.Error(), "db:main") {
		t.Fatalf("the error is %v, its hint %q, want %q in it", err, errs.HintOf(err), want)
	}
	says("one")
	if n := len(listed(t, d)); n != made || res.RolledBack || len(res.StayedBehind) > 0 && !res.Recovered {
		t.Errorf("there are %d checkpoints, were %d: %+v", n, made, res)
	}
	if _, err := d.Rollback(t.Context(), root, "shop", cp, ipc.RollbackRequest{Without: []string{"db:mian"}}, nil); errs.KindOf(err) != errs.Invalid || !strings.Contains(errs.HintOf(err), "--without db:main") {
		t.Errorf("a misspelt layer: %v (%s)", err, errs.HintOf(err))
	}
	if _, err := d.Rollback(t.Context(), root, "shop", cp, ipc.RollbackRequest{Without: []string{"db", "files"}}, nil); errs.KindOf(err) != errs.Conflict {
		t.Errorf("a rollback of nothing: %v", err)
	}

	// What is out of scope is not looked at.
	for _, scope := range []string{"layer:files", "work"} {
		res := goBack(t, d, cp, ipc.RollbackRequest{Scope: []string{scope}})
		says("zero")
		if n := len(res.SafetyCheckpoint.DBSnapshots); n != 0 || len(res.StayedBehind) > 0 {
			t.Errorf("%s: %d databases in the safety checkpoint, left behind %q", scope, n, res.StayedBehind)
		}
		goBack(t, d, ipc.Redo, ipc.RollbackRequest{})
		says("one")
	}
	// A checkpoint that never had the database needs no word.
	goBack(t, d, never, ipc.RollbackRequest{})
	says("before")
	goBack(t, d, ipc.Redo, ipc.RollbackRequest{})
	says("one")
	if p := problemsOf(t, d); p != "" {
		t.Errorf("after a redo: %s", p)
	}

	// The rest goes back, and who asks is told what did not.
	res = goBack(t, d, cp, ipc.RollbackRequest{Without: []string{"main"}})
	says("zero")
	if !slices.Equal(res.StayedBehind, []string{"db:main"}) || !strings.Contains(strings.Join(res.Warnings, "\n"), "db:main stays as it is") {
		t.Errorf("left behind %q, warnings %q", res.StayedBehind, res.Warnings)
	}
	safety, err := d.Checkpoint(t.Context(), root, "shop", res.SafetyCheckpoint.ID)
	if err != nil || !slices.Equal(safety.StayedBehind, []string{"db:main"}) || !strings.Contains(strings.Join(safety.Warnings, "\n"), "db:main is not in it") {
		t.Errorf("%+v, %v", safety, err)
	}
	behind := func(when string, want bool) {
		t.Helper()
		if p := problemsOf(t, d); strings.Contains(p, "left db:main as it was") != want {
			t.Errorf("%s the app's problems are %q", when, p)
		}
	}
	behind("after it", true)
	w.close(t, d)
	d = w.open(t)
	behind("after a restart", true)
	goBack(t, d, ipc.Redo, ipc.RollbackRequest{})
	says("one")
	behind("after the redo", false)
	goBack(t, d, cp, ipc.RollbackRequest{Without: []string{"db:main"}})
	says("zero")

	s.start(t)
	if got := s.get(t); got != "one" {
		t.Errorf("the database was left alone, and says %q", got)
	}
	behind("before the whole rollback", true)
	goBack(t, d, cp, ipc.RollbackRequest{})
	says("zero")
	if got := s.get(t); got != "zero" {
		t.Errorf("the database says %q, want zero", got)
	}
	behind("after the whole rollback", false)
	goBack(t, d, ipc.Redo, ipc.RollbackRequest{})
	if got := s.get(t); got != "one" {
		t.Errorf("after a redo, the database says %q, want one", got)
	}
}

// testTurnWithServerAway: a turn that begins while a server is away has its checkpoint all
// the same, which says what it lacks; undo goes there, and says what stayed.
func testTurnWithServerAway(t *testing.T) {
	t.Parallel()
	s := awayRedis(t)
	s.start(t)
	d, w := openAutoWith(t, time.Hour, s.db)
	s.set(t, "zero")
	write(t, w.ws(), "work", "zero")
	worked(t, d, w, "one")
	s.stop(t)
	turn := worked(t, d, w, "two")
	cp, err := d.Checkpoint(t.Context(), root, "shop", *turn.CheckpointID)
	if err != nil || len(cp.DBSnapshots) != 0 || !strings.Contains(strings.Join(cp.Warnings, "\n"), "db:main is not in it") {
		t.Errorf("the turn's checkpoint: %+v, %v", cp, err)
	}
	res := undoing(t, d, w, ipc.Undo, ipc.RollbackRequest{}, "one")
	if !slices.Equal(res.StayedBehind, []string{"db:main"}) {
		t.Errorf("left behind: %q", res.StayedBehind)
	}
	// The turn before has the database in its checkpoint.
	_, err = d.Rollback(t.Context(), root, "shop", ipc.Undo, ipc.RollbackRequest{Turns: 1}, nil)
	if want := "mulligan undo --without db:main"; err == nil || !strings.Contains(errs.HintOf(err), want) {
		t.Fatalf("%v, its hint is %q, want %q in it", err, errs.HintOf(err), want)
	}
	undoing(t, d, w, ipc.Undo, ipc.RollbackRequest{Without: []string{"db:main"}}, "zero")
	undoing(t, d, w, ipc.Redo, ipc.RollbackRequest{}, "one")
	undoing(t, d, w, ipc.Redo, ipc.RollbackRequest{}, "zero")
	s.start(t)
}
