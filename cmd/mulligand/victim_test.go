package main

import (
	"bufio"
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql" // the database/sql driver
	"github.com/jackc/pgx/v5"

	"mulligan/ipc"
	"mulligan/snap/postgres/pgtest"
	"mulligan/systemd/systemdtest"
	"mulligan/testkit"
)

// serveShop is the app of a victim: it answers with a page of its workspace and a word
// of its database. It does not start where it cannot reach the database, unless it is
// told to do without.
func serveShop(addr, dsn, without string) {
	ask, err := openShop(dsn)
	if err == nil {
		_, err = ask()
	}
	if err != nil && without == "" {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	http.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		page, err := os.ReadFile("page.html")
		word := without
		if err == nil && ask != nil {
			var found string
			if found, err = ask(); err == nil {
				word = found
			} else if without != "" {
				err = nil
			}
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		fmt.Fprintf(w, "page %s, database %s\n", strings.TrimSpace(string(page)), word)
	})
	fmt.Fprintln(os.Stderr, http.ListenAndServe(addr, nil))
	os.Exit(1)
}

// openShop gives what asks the database for its word.
func openShop(dsn string) (ask func() (string, error), err error) {
	kind, source, _ := strings.Cut(dsn, ":")
	switch kind {
	case "sqlite":
		source = "file:" + source + "?mode=rw&_pragma=busy_timeout(5000)"
	case "redis":
		return func() (string, error) { return askRedis(source) }, nil
	case "postgres":
		return func() (string, error) { return askPostgres(dsn) }, nil
	}
	db, err := sql.Open(kind, source)
	if err != nil {
		return nil, err
	}
	return func() (word string, err error) {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		err = db.QueryRowContext(ctx, "SELECT word FROM words").Scan(&word)
		return word, err
	}, nil
}

func askPostgres(dsn string) (word string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	c, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return "", err
	}
	defer c.Close(ctx)
	err = c.QueryRow(ctx, "SELECT word FROM words").Scan(&word)
	return word, err
}

func askRedis(addr string) (string, error) {
	c, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return "", err
	}
	defer c.Close()
	fmt.Fprint(c, "GET word\r\n")
	lines := bufio.NewScanner(c)
	if !lines.Scan() || !strings.HasPrefix(lines.Text(), "$") || lines.Text() == "$-1" || !lines.Scan() {
		return "", fmt.Errorf("redis says %q: %w", lines.Text(), lines.Err())
	}
	return lines.Text(), nil
}

// victim is an app that agents work on, one of them badly.
type victim struct {
	t    *testing.T
	d    *daemonProcess
	ws   string
	addr string
	h    *systemdtest.Host // nil where the daemon runs the app itself
	c    *pgtest.Cluster   // nil without Postgres
	// sql changes the database; dump reads all of it by the server's own means.
	sql  func(statement string)
	dump func() string
	// quit ends a server that nobody starts again but begin.
	quit, begin func()
}

// plantShop writes the code of the app, in a git repository.
func (v *victim) plantShop(dsn, without string) {
	v.t.Helper()
	script := fmt.Sprintf("#!/bin/sh\nexec %s serve-shop %s '%s' '%s'\n", filepath.Join(bin, "self"), v.addr, dsn, without)
	v.write("serve.sh", script)
	v.write("page.html", "zero\n")
	for i := range 30 {
		v.write(fmt.Sprintf("src/d%d/f%d", i%3, i), fmt.Sprintf("file %d\n", i))
	}
	shell(v.t, v.ws, `chmod 755 serve.sh; ln -s src/d0/f0 link; printf 'shop.db*\n' >.gitignore; git init -q; git add -A; git commit -qm one; echo more >>src/d1/f1; git stash -q; git checkout -qb work`)
}

func (v *victim) write(rel, text string) {
	v.t.Helper()
	(&testApp{ws: v.ws}).write(v.t, rel, text)
}

// add registers the app, with databases, and waits until it answers and is followed.
func (v *victim) add(args ...string) {
	v.t.Helper()
	v.d.must(append([]string{"app", "add", "--slug", "shop", "--dir", v.ws, "--health", "http://" + v.addr + "/"}, args...)...)
	v.d.must("app", "set", "--app", "shop", "auto=true")
	eventually(v.t, "the files are followed", func() bool {
		app, err := v.d.client.App(v.t.Context(), "shop")
		return err == nil && app.Following == "watching"
	})
	v.answers()
}

// newVictim is an app without a database yet, in a daemon of the test's own.
func newVictim(t *testing.T, d *daemonProcess) *victim {
	t.Helper()
	v := &victim{t: t, d: d, ws: filepath.Join(d.dir, "ws"), addr: freeAddr(t), quit: func() {}, begin: func() {}}
	if err := os.Mkdir(v.ws, 0o755); err != nil {
		t.Fatal(err)
	}
	return v
}

// useSQLite gives the app a file with its words.
func (v *victim) useSQLite() {
	testkit.Need(v.t, "sqlite3")
	file := filepath.Join(v.ws, "shop.db")
	v.sql = func(statement string) { output(v.t, ".timeout 5000\n"+statement, "sqlite3", "-bail", file) }
	v.dump = func() string { return output(v.t, ".timeout 5000\n.dump", "sqlite3", "-bail", "-readonly", file) }
	v.sql("PRAGMA journal_mode=WAL; CREATE TABLE words (word text); INSERT INTO words VALUES ('zero'); CREATE TABLE pad (i int, x text);" +
		"INSERT INTO pad WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i < 300) SELECT i, hex(randomblob(100)) FROM n")
}

// commandVictim is an app with a SQLite file whose command the daemon runs.
func commandVictim(t *testing.T) *victim {
	t.Helper()
	return commandVictimOf(t, startDaemon(t))
}

// commandVictimOf is commandVictim with the test's daemon d, which is started.
func commandVictimOf(t *testing.T, d *daemonProcess) *victim {
	t.Helper()
	v := newVictim(t, d)
	v.plantShop("sqlite:shop.db", "")
	v.useSQLite()
	v.add("--db", "sqlite:shop.db", "--run", "./serve.sh")
	return v
}

// unitVictim gives an app with a SQLite file that is a unit, with settings of its own.
func unitVictim(settings string) func(*testing.T) *victim {
	return func(t *testing.T) *victim {
		h := systemdtest.Boot(t)
		d := newHostDaemon(t, h)
		d.start()
		v := newVictim(t, d)
		v.h = h
		v.plantShop("sqlite:shop.db", "")
		v.useSQLite()
		v.unit(settings)
		v.add("--db", "sqlite:shop.db", "--unit", "shop.service")
		return v
	}
}

// unit has systemd run the app.
func (v *victim) unit(settings string) {
	v.t.Helper()
	v.h.WriteUnit(v.t, "shop.service", "[Unit]\n"+settings+"WorkingDirectory="+v.ws+"\nExecStart="+v.ws+"/serve.sh\n")
	v.systemctl("start", "shop.service")
}

func (v *victim) systemctl(args ...string) {
	v.t.Helper()
	if out, err := v.h.Exec(append([]string{"systemctl"}, args...)...); err != nil {
		v.t.Fatalf("systemctl %v: %v\n%s", args, err, out)
	}
}

const (
	givenUp = "StartLimitBurst=4\nStartLimitIntervalSec=600\n[Service]\nRestart=on-failure\nRestartSec=1ms\n"
	looping = "StartLimitIntervalSec=0\n[Service]\nRestart=always\nRestartSec=100ms\n"
	once    = "[Service]\nRestart=no\n"
)

// usePostgres fills a cluster's database shop.
func (v *victim) usePostgres(c *pgtest.Cluster) {
	v.c = c
	v.sql = func(statement string) { c.Psql(v.t, "shop", statement) }
	v.dump = func() string {
		cmd := c.Command("pg_dump", "-h", c.Socket, "-p", fmt.Sprint(c.Port), "-U", pgtest.Superuser, "shop")
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			v.t.Fatalf("pg_dump: %v\n%s", err, &stderr)
		}
		return unrestrict.ReplaceAllString(string(out), "")
	}
	c.Psql(v.t, "postgres", "CREATE DATABASE shop")
	v.sql("CREATE TABLE words (word text); INSERT INTO words VALUES ('zero'); CREATE TABLE pad AS SELECT i, md5(i::text) FROM generate_series(1, 300) i")
}

// unrestrict is what is another in each dump.
var unrestrict = regexp.MustCompile(`(?m)^\\(un)?restrict .*$`)

// physicalVictim is an app with a Postgres cluster in the daemon's care, both units.
func physicalVictim(t *testing.T) *victim { return unitsVictim(t, "") }

func unitsVictim(t *testing.T, without string) *victim {
	t.Helper()
	c := pgtest.New(t, pgtest.Options{Slim: true, Settings: map[string]string{"wal_level": "replica"}})
	h := systemdtest.Boot(t)
	clusterUnit(t, h, c, "pg.service")
	d := newHostDaemon(t, h)
	d.start()
	v := newVictim(t, d)
	v.h = h
	v.usePostgres(c)
	v.plantShop(c.DSN("shop"), without)
	v.unit(givenUp)
	v.quit, v.begin = func() { v.systemctl("stop", "pg.service") }, func() { v.systemctl("start", "pg.service") }
	v.add("--unit", "shop.service", "--db", "main="+c.DSN("shop")+"#mode=physical&data_dir="+c.DataDir+"&unit=pg.service")
	v.systemctl("restart", "pg.service") // the log is kept from now on
	v.systemctl("restart", "shop.service")
	v.answers()
	return v
}

// ownedVictim is an app that the daemon runs, with a Postgres cluster in its care that no unit serves.
func ownedVictim(t *testing.T) *victim { return commandsVictim(t, "") }

func commandsVictim(t *testing.T, without string) *victim {
	t.Helper()
	c := pgtest.New(t, pgtest.Options{Slim: true, Settings: map[string]string{"wal_level": "replica", "archive_mode": "on"}})
	ownServer(t, c)
	v := newVictim(t, hostDaemon(t))
	v.usePostgres(c)
	v.plantShop(c.DSN("shop"), without)
	v.quit, v.begin = func() { pgCtl(t, c, "stop") }, func() { pgCtl(t, c, "start") }
	v.add("--run", "./serve.sh", "--db", "main="+c.DSN("shop")+"#mode=physical&data_dir="+c.DataDir)
	return v
}

// serverUp reports whether the cluster's server takes connections.
func (v *victim) serverUp() bool {
	_, err := v.c.TryPsql("postgres", "SELECT 1")
	return err == nil
}

// clusterFiles describes what lies where the cluster's data folder should be, but for times,
// and for links from elsewhere: the store keeps files of the log as links to them.
func (v *victim) clusterFiles() []string {
	v.t.Helper()
	if _, err := os.Lstat(v.c.DataDir); errors.Is(err, os.ErrNotExist) {
		return []string{"nothing"}
	}
	lines := listing(v.t, v.c.DataDir)
	for i, l := range lines {
		lines[i], _, _ = strings.Cut(times.ReplaceAllString(l, ""), ` ="`)
	}
	return lines
}

// logicalVictim is an app with a database on a Postgres server that mulligan only connects to.
func logicalVictim(t *testing.T) *victim {
	c := pgtest.Start(t, pgtest.Options{})
	v := newVictim(t, startDaemon(t))
	v.usePostgres(c)
	v.quit, v.begin = func() { c.Stop(t) }, func() { c.Start(t) }
	v.plantShop(c.DSN("shop"), "away")
	v.add("--db", "main="+c.DSN("shop"), "--run", "./serve.sh")
	return v
}

// server is one that a test can end and start again.
type server struct {
	t       *testing.T
	ready   func() bool
	command []string
	cmd     *exec.Cmd
}

func (s *server) start() {
	s.t.Helper()
	s.cmd = exec.Command(s.command[0], s.command[1:]...)
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	eventually(s.t, s.command[0]+" is up", s.ready)
}

func (s *server) stop() {
	if s.cmd != nil {
		_ = s.cmd.Process.Kill()
		_ = s.cmd.Wait() // it was killed
		s.cmd = nil
	}
}

// redisVictim is an app whose words are in a Redis server.
func redisVictim(t *testing.T) *victim {
	testkit.Need(t, "redis")
	addr := freeAddr(t)
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	cli, dir := []string{"-h", host, "-p", port}, t.TempDir()
	s := &server{t: t, command: []string{"redis-server", "--bind", host, "--port", port, "--dir", dir, "--appendonly", "no", "--save", ""},
		ready: func() bool { return exec.Command("redis-cli", append(cli, "PING")...).Run() == nil }}
	t.Cleanup(s.stop)
	s.start()
	v := newVictim(t, startDaemon(t))
	v.quit, v.begin = func() {
		s.stop()
		output(t, "", "rm", "-f", filepath.Join(dir, "dump.rdb"))
	}, s.start
	v.sql = func(statement string) { output(t, statement, "redis-cli", cli...) }
	v.dump = func() string {
		return output(t, "EVAL \"local out = {} local keys = redis.call('KEYS', '*') table.sort(keys) for _, k in ipairs(keys) do out[#out+1] = k .. redis.sha1hex(redis.call('DUMP', k)) end return table.concat(out, ' ')\" 0", "redis-cli", cli...)
	}
	v.sql("SET word zero")
	v.plantShop("redis:"+addr, "away")
	v.add("--db", "main=redis://"+addr, "--run", "./serve.sh")
	return v
}

// mariaVictim is an app with a database on a MariaDB server.
func mariaVictim(t *testing.T) *victim {
	testkit.Need(t, "mariadb")
	dir, err := os.MkdirTemp("", "mg-maria") // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket, data := filepath.Join(dir, "s"), filepath.Join(dir, "data")
	testkit.MariaDB(t, data)
	s := &server{t: t, command: append([]string{"mariadbd"}, testkit.MariaDBServer(data, socket, "--skip-networking")...),
		ready: testkit.MariaDBAnswers(socket)}
	t.Cleanup(s.stop)
	s.start()
	v := newVictim(t, startDaemon(t))
	v.quit, v.begin = s.stop, s.start
	v.sql = func(statement string) {
		output(t, statement, "mariadb", "--no-defaults", "--socket="+socket, "--user=root", "shop")
	}
	v.dump = func() string {
		return output(t, "", "mariadb-dump", "--no-defaults", "--socket="+socket, "--user=root", "--skip-dump-date", "shop")
	}
	output(t, "CREATE DATABASE shop", "mariadb", "--no-defaults", "--socket="+socket, "--user=root")
	v.sql("CREATE TABLE words (word text); INSERT INTO words VALUES ('zero')")
	v.plantShop("mysql:root@unix("+socket+")/shop", "away")
	v.add("--db", "main=mysql://root@localhost/shop?socket="+socket, "--run", "./serve.sh")
	return v
}

// put is the work of an agent that knows what it does.
func (v *victim) put(word string) {
	v.write("page.html", word+"\n")
	v.write("src/d0/f0", word)
	if strings.HasPrefix(v.dump(), "word") { // of Redis
		v.sql("SET word " + word)
	} else {
		v.sql("UPDATE words SET word = '" + word + "'")
	}
}

// turn has an agent work for a turn, of which its hooks tell.
func (v *victim) turn(id string, work func()) {
	v.t.Helper()
	h := hooks{v.t, v.d, "claude-code", v.d.dir}
	tell := func(event, more string) {
		h.run(fmt.Sprintf(`{"session_id":"s1","transcript_path":"/nowhere","cwd":%q,"hook_event_name":%q%s}`, v.ws, event, more))
	}
	tell("UserPromptSubmit", `,"prompt":"go"`)
	call := 0
	eventually(v.t, "the turn's start is captured", func() bool { // on a slow host, that takes longer than an agent waits
		call++
		tell("PreToolUse", fmt.Sprintf(`,"tool_name":"Bash","tool_use_id":"%s-%d","tool_input":{"command":"make"}`, id, call))
		turns := ask[ipc.TurnList](v.d, "turns", "--app", "shop").Turns
		begun := func(c ipc.Call) bool { return string(c.ID) == fmt.Sprintf("%s-%d", id, call) && c.Exact }
		return len(turns) > 0 && slices.ContainsFunc(turns[0].Calls, begun)
	})
	work()
	for n := range call {
		tell("PostToolUse", fmt.Sprintf(`,"tool_name":"Bash","tool_use_id":"%s-%d","tool_input":{},"tool_response":{}`, id, n+1))
	}
	tell("Stop", "")
}

// record is what is known of an app beside mulligan.
type record struct {
	answer, data string
	files        []string
}

// answer is what the app says, "" where it does not answer or says that it cannot.
func (v *victim) answer() string {
	if s := visit(v.t.Context(), v.addr); strings.HasPrefix(s, "page ") {
		return s
	}
	return ""
}

// answers waits for an answer.
func (v *victim) answers() (answer string) {
	v.t.Helper()
	eventually(v.t, "the app answers", func() bool { answer = v.answer(); return answer != "" })
	return answer
}

// note takes the record of an app that is well.
func (v *victim) note() record {
	v.t.Helper()
	r := record{answer: v.answers(), data: v.dump()}
	for _, l := range listing(v.t, v.ws) {
		switch {
		case strings.HasPrefix(l, `"/shop.db`): // opening it changes its bytes
			continue
		case strings.HasPrefix(l, `"" `): // and the time of its folder
			l = times.ReplaceAllString(l, "")
		}
		r.files = append(r.files, l)
	}
	return r
}

// is checks that the app is what it was, in all that can be seen of it.
func (v *victim) is(what string, want record) {
	v.t.Helper()
	var got string
	eventually(v.t, what+", the app answers", func() bool { got = v.answer(); return got != "" })
	if got != want.answer {
		v.t.Fatalf("%s, the app says %q, and said %q", what, got, want.answer)
	}
	now := v.note()
	sameListing(v.t, what, now.files, want.files)
	if now.data != want.data {
		v.t.Fatalf("%s, the database has\n%s\nand had\n%s", what, now.data, want.data)
	}
}

// ruins describes what is left of an app that is broken: all of the workspace, with the
// bytes of what was a database, and what can be read of one that still is.
func (v *victim) ruins() (lines []string) {
	v.t.Helper()
	if _, err := os.Lstat(v.ws); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	readable, err := exec.Command("sqlite3", "-bail", "-readonly", filepath.Join(v.ws, "shop.db"), ".timeout 5000", ".dump").Output()
	if err == nil {
		lines = append(lines, string(readable))
	}
	for _, l := range listing(v.t, v.ws) {
		isDB := strings.HasPrefix(l, `"/shop.db`)
		switch {
		case isDB && err == nil, strings.HasPrefix(l, `"/shop.db-shm"`), strings.HasPrefix(l, `"" `):
			continue
		case isDB:
			l = times.ReplaceAllString(l, "")
		}
		lines = append(lines, l)
	}
	return lines
}

// times are those of a line of a listing.
var times = regexp.MustCompile(`\d+\.\d{9}`)

// named finds the one command that an error tells to run.
var named = regexp.MustCompile("`mulligan ([^`]+)`")

// try runs the client where its user is, in the workspace if there is one.
func (v *victim) try(args ...string) (said string, code int) {
	v.t.Helper()
	cmd := exec.Command(filepath.Join(bin, "mulligan"), args...)
	cmd.Dir = v.ws
	if _, err := os.Stat(v.ws); err != nil {
		cmd.Dir, cmd.Args = "/", append(cmd.Args, "--app", "shop")
	}
	cmd.Env = append(os.Environ(), "MULLIGAN_SOCKET="+v.d.socket)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		v.t.Fatal(err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

// rescue is what a person does: one command, or the one that its error names.
func (v *victim) rescue(command string) (said string) {
	v.t.Helper()
	said, code := v.try(command)
	if code == 0 {
		return said
	}
	m := named.FindAllStringSubmatch(said, -1)
	if len(m) != 1 {
		v.t.Fatalf("mulligan %s ends with %d and names %d commands: %s", command, code, len(m), said)
	}
	v.t.Logf("mulligan %s says: %s", command, lastLine(said))
	if said, code = v.try(strings.Fields(m[0][1])...); code != 0 {
		v.t.Fatalf("mulligan %s ends with %d too: %s", m[0][1], code, said)
	}
	return said
}

func lastLine(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return lines[len(lines)-1]
}

// sound checks that the daemon has nothing to complain of.
func (v *victim) sound() {
	v.t.Helper()
	var problems []string
	defer func() {
		if len(problems) > 0 {
			v.t.Errorf("the daemon has problems: %q", problems)
		}
	}()
	eventually(v.t, "nothing is unfinished", func() bool {
		problems = ask[ipc.Status](v.d, "status").Problems
		return len(problems) == 0
	})
}
