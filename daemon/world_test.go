package daemon_test

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sys/unix"
	_ "modernc.org/sqlite" // the database/sql driver

	"mulligan/daemon"
	"mulligan/daemon/isolate"
	"mulligan/ipc"
	"mulligan/privsep"
	"mulligan/snap/postgres/pgtest"
	"mulligan/systemd/systemdtest"
	"mulligan/testkit"
)

func TestMain(m *testing.M) {
	privsep.Main()
	isolate.Main()
	if plan := os.Getenv("MULLIGAN_TEST_VICTIM"); plan != "" {
		victim(plan)
		return
	}
	if dir := os.Getenv("MULLIGAN_TEST_HOSTAGE"); dir != "" {
		serveHostage(dir)
		return
	}
	if len(os.Args) > 1 && os.Args[1] == "serve-app" {
		serveApp(os.Args[2])
		return
	}
	if os.Getenv("GORACE") == "" {
		os.Setenv("GORACE", "atexit_sleep_ms=0") // victims are many, and shall not dawdle
	}
	must(errors.Join(os.Setenv("GIT_CONFIG_GLOBAL", os.DevNull), os.Setenv("GIT_CONFIG_NOSYSTEM", "1"))) // no hooks and no signatures of the user's
	code := m.Run()
	if programDir != "" {
		must(os.RemoveAll(programDir))
	}
	os.Exit(code)
}

// appProgram is the path of the program that apps run.
var appProgram = sync.OnceValues(func() (string, error) {
	var err error
	if programDir, err = os.MkdirTemp("", "mt"); err != nil {
		return "", err
	}
	return testkit.Unwatched(programDir)
})

// programDir is the folder of appProgram, "" until that is asked for.
var programDir string

// appCommand is the command of an app that serves with a configuration.
func appCommand(t testing.TB, config string) []string {
	t.Helper()
	program, err := appProgram()
	if err != nil {
		t.Fatal(err)
	}
	return []string{program, "serve-app", config}
}

// tester is what helpers need of a test, rapid's among them.
type tester interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
	Failed() bool
	Logf(format string, args ...any)
}

// world is an app and its daemon's state: files and a SQLite database in a
// workspace, a Postgres database where there is a server, and a program that
// serves what all of them say.
type world struct {
	dir string // holds ws, state and app.sock
	pg  string // the Postgres database, "" for none
	bus string // of the host's systemd, "" for none
	at  string // the workspace; "": ws in dir
	// busRoot is where the root folder of the host's systemd is, if the daemon is root's; "": it is a user's own.
	busRoot string
}

func (w world) ws() string    { return cmp.Or(w.at, filepath.Join(w.dir, "ws")) }
func (w world) state() string { return filepath.Join(w.dir, "state") }

// newWorld makes an app of all kinds of layers in the state "zero", and a daemon
// that knows it. cluster may be nil.
func newWorld(t *testing.T, cluster *pgtest.Cluster) world {
	t.Helper()
	w := world{dir: worldDir(t)}
	dbs := []ipc.Database{{Name: "shop", Driver: "sqlite", DSN: "shop.db"}}
	if cluster != nil {
		dbs = append(dbs, w.database(t, cluster))
	}
	return w.register(t, dbs)
}

// newWorldOfCluster is newWorld with a Postgres whose files the daemon manages,
// and a unit of a host's systemd serves.
func newWorldOfCluster(t *testing.T) world {
	t.Helper()
	w := world{dir: worldDir(t)}
	_, main := w.cluster(t, nil)
	return w.register(t, []ipc.Database{{Name: "shop", Driver: "sqlite", DSN: "shop.db"}, main})
}

func worldDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp(quickDir(t), "mt") // short: it holds a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Mkdir(filepath.Join(dir, "ws"), 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// forkWorld returns a world with an empty workspace, on a disk whose folders forks see: not in memory, where worldDir may be.
func forkWorld(t testing.TB) world {
	t.Helper()
	dir, err := os.MkdirTemp("/var/tmp", "mt")
	check(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	w := world{dir: dir}
	check(t, os.Mkdir(w.ws(), 0o755))
	return w
}

// database makes the world's Postgres database, which is dumped.
func (w *world) database(t testing.TB, c *pgtest.Cluster) ipc.Database {
	t.Helper()
	name := filepath.Base(w.dir)
	c.Psql(t, "postgres", `CREATE DATABASE "`+name+`"`)
	w.pg = c.DSN(name)
	return ipc.Database{Name: "main", Driver: "postgres", DSN: w.pg, Mode: "logical"}
}

// cluster makes the world's Postgres database in a cluster of its own, that a
// host's systemd serves.
func (w *world) cluster(t testing.TB, settings map[string]string) (*pgtest.Cluster, ipc.Database) {
	t.Helper()
	const unit = "pg.service"
	all := map[string]string{"wal_level": "replica", "archive_mode": "on"} // so that it needs no restart
	maps.Copy(all, settings)
	c := pgtest.New(t, pgtest.Options{Settings: all}) // the unit does not see the memory of quickDir
	h := systemdtest.Boot(t)
	h.WriteUnit(t, unit, fmt.Sprintf("[Service]\nType=notify\nUser=postgres\nExecStart=%s/postgres -D %s\nKillSignal=SIGINT\nTimeoutSec=120\n"+
		"StandardOutput=append:%s\nStandardError=inherit\n", c.Bin, c.DataDir, c.Log))
	if out, err := h.Exec("systemctl", "start", unit); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	db := w.database(t, c)
	w.bus = h.Address
	db.Mode, db.DataDir, db.Unit = "physical", c.DataDir, unit
	return c, db
}

// ownCluster makes the world's Postgres database in a cluster of its own, in dir, that no unit serves.
func (w *world) ownCluster(t testing.TB, dir string) ipc.Database {
	t.Helper()
	c := pgtest.New(t, pgtest.Options{Dir: dir, Settings: map[string]string{"wal_level": "replica", "archive_mode": "on"}})
	if err := c.Command("pg_ctl", "start", "-w", "-s", "-D", c.DataDir, "-l", c.Log).Run(); err != nil { // without pipes, which the server would keep open
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Command("pg_ctl", "stop", "-s", "-m", "immediate", "-D", c.DataDir).Run() // it may be down
	})
	db := w.database(t, c)
	db.Mode, db.DataDir = "physical", c.DataDir
	return db
}

// register puts the app into its first state, and has a daemon know it.
func (w world) register(t *testing.T, dbs []ipc.Database) world {
	t.Helper()
	w.set(t, "zero")
	config, err := json.Marshal(map[string]string{"dir": w.dir, "pg": w.pg})
	if err != nil {
		t.Fatal(err)
	}
	d := w.open(t)
	keep := ipc.DefaultRetention()
	keep.KeepLast, keep.DailyDays = 2, 0
	if _, err := d.AddApp(t.Context(), root, ipc.App{
		Slug: "shop", Workspace: w.ws(), Retention: keep, Databases: dbs, Run: appCommand(t, string(config)),
	}); err != nil {
		t.Fatal(err)
	}
	w.close(t, d)
	return w
}

// quickDir is where a folder for tests goes that sync a lot: into memory where
// there is enough of it. Only power cuts would tell the difference.
func quickDir(t tester) string {
	t.Helper()
	var fs unix.Statfs_t
	if err := unix.Statfs("/dev/shm", &fs); err == nil && fs.Type == unix.TMPFS_MAGIC && fs.Bavail*uint64(fs.Bsize) > 1<<30 {
		return "/dev/shm"
	}
	return os.TempDir()
}

// steady is how long daemons of tests watch an app without a health check after a rollback: less than the usual second, because
// only TestDiesSoonAfterItsStart has an app that starts and then ends by itself.
const steady = 20 * time.Millisecond

// options has no app followed that asks for no automatic checkpoints: that would begin at some time or other, and the steps of an operation
// differ with it.
func (w world) options() daemon.Options {
	return daemon.Options{Watches: -1, StateDir: w.state(), User: w.busRoot == "", StopTimeout: time.Minute, Steady: steady, StartWait: testkit.Patience, ExpireEvery: time.Hour, BusAddress: w.bus, BusRoot: w.busRoot}
}

func (w world) open(t tester) *daemon.Daemon {
	t.Helper()
	return w.openAs(t, w.options())
}

func (w world) openAs(t tester, opt daemon.Options) *daemon.Daemon {
	t.Helper()
	d, err := daemon.Open(context.Background(), opt)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func (w world) close(t tester, d *daemon.Daemon) {
	t.Helper()
	if err := d.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
}

// set puts files and rows into the state called word.
func (w world) set(t tester, word string) {
	t.Helper()
	w.setFiles(t, word)
	w.setSQLite(t, word)
	w.setPostgres(t, word)
}

func (w world) setFiles(t tester, word string) {
	t.Helper()
	for i := range 12 {
		if err := os.WriteFile(filepath.Join(w.ws(), fmt.Sprintf("file%d", i)), []byte(word), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	sh(t, `cd "$1" && rm -rf made-* && mkdir -p "made-$2/sub" && echo x >"made-$2/sub/f"`, w.ws(), word)
}

func (w world) setSQLite(t tester, word string) {
	t.Helper()
	db, err := sql.Open("sqlite", w.sqlite())
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for _, q := range []string{`CREATE TABLE IF NOT EXISTS words (word TEXT)`, `DELETE FROM words`, `INSERT INTO words VALUES ('` + word + `')`} {
		if _, err := db.Exec(q); err != nil {
			t.Fatal(err)
		}
	}
}

func (w world) sqlite() string {
	return "file:" + filepath.Join(w.ws(), "shop.db") + "?_pragma=busy_timeout(10000)"
}

func (w world) setPostgres(t tester, word string) {
	t.Helper()
	if w.pg == "" {
		return
	}
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, w.pg)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, `CREATE TABLE IF NOT EXISTS words (i int PRIMARY KEY, word text); DELETE FROM words;
		INSERT INTO words SELECT i, '`+word+`' FROM generate_series(1, 50) i`); err != nil {
		t.Fatal(err)
	}
}

// words is the state of each layer; a layer that is in two at once is an error.
func (w world) words() (files, sqlite, pg string, err error) {
	b, err := os.ReadFile(filepath.Join(w.ws(), "file0"))
	if err != nil {
		return "", "", "", err
	}
	files = string(b)
	for i := 1; i < 12; i++ {
		if b, err := os.ReadFile(filepath.Join(w.ws(), fmt.Sprintf("file%d", i))); err != nil || string(b) != files {
			return "", "", "", fmt.Errorf("file0 says %q, file%d says %q, %v", files, i, b, err)
		}
	}
	made, err := filepath.Glob(filepath.Join(w.ws(), "made-*", "sub", "f"))
	if err != nil || len(made) != 1 || made[0] != filepath.Join(w.ws(), "made-"+files, "sub", "f") {
		return "", "", "", fmt.Errorf("the files say %q, the folders are %q, %v", files, made, err)
	}
	if left, err := filepath.Glob(filepath.Join(w.ws(), ".mulligan-*")); err != nil || len(left) > 0 {
		return "", "", "", fmt.Errorf("left over: %q, %v", left, err)
	}
	if sqlite, err = w.sqliteSays(); err == nil && w.pg != "" {
		pg, err = w.postgresSays()
	}
	return files, sqlite, pg, err
}

// whole asks a database for its state: all rows say the same.
const whole = `SELECT count(*), min(word), max(word) FROM words`

func (w world) sqliteSays() (string, error) {
	db, err := sql.Open("sqlite", w.sqlite())
	if err != nil {
		return "", err
	}
	defer db.Close()
	return rowsSay(db.QueryRow(whole), 1)
}

func (w world) postgresSays() (string, error) {
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, w.pg)
	if err != nil {
		return "", err
	}
	defer conn.Close(ctx)
	return rowsSay(conn.QueryRow(ctx, whole), 50)
}

func rowsSay(row interface{ Scan(...any) error }, want int) (string, error) {
	var n int
	var least, most string
	if err := row.Scan(&n, &least, &most); err != nil {
		return "", err
	}
	if n != want || least != most {
		return "", fmt.Errorf("%d rows from %q to %q", n, least, most)
	}
	return least, nil
}

// oneWord is the state that all layers agree on.
func (w world) oneWord() (string, error) {
	files, sqlite, pg, err := w.words()
	if err == nil && (sqlite != files || w.pg != "" && pg != files) {
		err = fmt.Errorf("the files say %q, SQLite says %q, Postgres says %q", files, sqlite, pg)
	}
	return files, err
}

func (w world) word(t tester) string {
	t.Helper()
	word, err := w.oneWord()
	if err != nil {
		t.Fatal(err)
	}
	return word
}

// serveApp is the app: it says on a socket what state it sees.
func serveApp(config string) {
	var c map[string]string
	must(json.Unmarshal([]byte(config), &c))
	w := world{dir: c["dir"], pg: c["pg"]}
	os.Remove(w.socket()) // of the one before
	l, err := net.Listen("unix", w.socket())
	must(err)
	must(http.Serve(l, http.HandlerFunc(func(out http.ResponseWriter, _ *http.Request) {
		word, err := w.oneWord()
		fmt.Fprint(out, word, err)
	})))
}

func (w world) socket() string { return filepath.Join(w.dir, "app.sock") }

// visit asks the app; "" where nobody answers. One that was accepted by an app that is being stopped is given up, so that the next can
// be asked.
func (w world) visit() string {
	client := http.Client{Timeout: testkit.Patience / 9, Transport: &http.Transport{DisableKeepAlives: true, DialContext: dial(w.socket())}}
	resp, err := client.Get("http://app/")
	if err != nil {
		return ""
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return ""
	}
	return string(b)
}

// runs checks that the app's program is up and sees word.
func (w world) runs(t tester, d *daemon.Daemon, word string) {
	t.Helper()
	a, err := d.App(context.Background(), root, "shop")
	if err != nil || a.State != "running" {
		t.Fatalf("the app is %q, %v", a.State, err)
	}
	deadline := time.Now().Add(testkit.Patience)
	for {
		got := w.visit()
		if got == word+"<nil>" {
			return
		}
		if got != "" || time.Now().After(deadline) {
			t.Fatalf("a visitor of the app sees %q, want %q", got, word)
		}
		time.Sleep(5 * time.Millisecond) // it is started and does not listen yet
	}
}

func dial(socket string) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}
}

func waitForEnd() {
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGTERM)
	<-end
}

func sh(t tester, script string, args ...string) {
	t.Helper()
	if out, err := exec.Command("bash", append([]string{"-euc", script, "bash"}, args...)...).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// listed is an app's checkpoints, newest first.
func listed(t tester, d *daemon.Daemon) []ipc.Checkpoint {
	t.Helper()
	list, err := d.Checkpoints(context.Background(), root, "shop", ipc.CheckpointQuery{})
	if err != nil {
		t.Fatal(err)
	}
	return list.Checkpoints
}

// progress is said in tests that do all that they can.
func progress(t testing.TB, format string, args ...any) {
	t.Helper()
	if long() {
		t.Logf(format, args...)
	}
}

// long reports whether tests are to do all that they can.
func long() bool { return testkit.Long() }
