package main

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"mulligan/ipc"
	"mulligan/remote/identity"
	"mulligan/remote/s3test"
	"mulligan/snap/postgres/pgtest"
	"mulligan/testkit"
)

// machine is a host: a daemon, and servers of databases of its own.
type machine struct {
	t      *testing.T
	d      *daemonProcess
	pg     *pgtest.Cluster
	whole  bool   // the cluster goes as a whole, by its files and its log
	socket string // of MariaDB
	redis  string // port
	ends   []func()
	starts []func()
}

// newMachine starts a host's servers, which have nobody's data, and its daemon.
func newMachine(t *testing.T, env []string, whole bool) *machine {
	t.Helper()
	testkit.Need(t, "mariadb", "redis")
	m := &machine{t: t, whole: whole}
	if whole { // the daemon starts and stops the server
		m.pg = pgtest.New(t, pgtest.Options{Settings: map[string]string{"wal_level": "replica", "archive_mode": "on"}})
		pgCtl(t, m.pg, "start")
		t.Cleanup(func() { _ = m.pg.Command("pg_ctl", "stop", "-s", "-m", "immediate", "-D", m.pg.DataDir).Run() }) // it may be down
	} else {
		m.pg = pgtest.Start(t, pgtest.Options{})
	}
	m.pg.Psql(t, "postgres", `CREATE ROLE shopper LOGIN CREATEDB PASSWORD 'hunter2'`)
	dir := testkit.TempDir(t)
	m.socket = filepath.Join(dir, "s")
	testkit.MariaDB(t, filepath.Join(dir, "data"))
	m.serve(testkit.MariaDBAnswers(m.socket), "mariadbd", testkit.MariaDBServer(filepath.Join(dir, "data"), m.socket, "--skip-networking", "--innodb-flush-log-at-trx-commit=0")...)
	m.sql("mysql", `CREATE USER shopper@localhost IDENTIFIED BY 'hunter2'; GRANT ALL ON *.* TO shopper@localhost`)
	_, port, err := net.SplitHostPort(freeAddr(t))
	if err != nil {
		t.Fatal(err)
	}
	m.redis = port
	m.serve(func() bool { return strings.TrimSpace(m.cli("PING")) == "PONG" }, "redis-server", "--bind", "127.0.0.1", "--port", port, "--dir", dir, "--save", "", "--logfile", filepath.Join(dir, "log"))
	m.d = newDaemon(t)
	m.d.start()
	for _, e := range env {
		name, value, _ := strings.Cut(e, "=")
		t.Setenv(name, value) // of the client
	}
	return m
}

// serve runs a server until the machine ends, and again when it comes back.
func (m *machine) serve(ready func() bool, program string, args ...string) {
	m.t.Helper()
	var cmd *exec.Cmd
	start := func() {
		m.t.Helper()
		cmd = exec.Command(program, args...)
		if err := testkit.Start(cmd); err != nil {
			m.t.Fatal(err)
		}
		eventually(m.t, program+" is up", ready)
	}
	end := func() {
		if cmd != nil {
			_ = cmd.Process.Kill() // it may have ended
			_ = cmd.Wait()
		}
		cmd = nil
	}
	m.starts, m.ends = append(m.starts, start), append(m.ends, end)
	m.t.Cleanup(end)
	start()
}

func (m *machine) sql(db, text string) string {
	return output(m.t, text, "mariadb", "--no-defaults", "--socket="+m.socket, "--user=root", "--batch", "--skip-column-names", db)
}

func (m *machine) cli(input string) string {
	cmd := exec.Command("redis-cli", "-h", "127.0.0.1", "-p", m.redis)
	cmd.Stdin = strings.NewReader(input)
	out, _ := cmd.Output() // it may not listen yet
	return string(out)
}

// specs are the databases, as commands take them.
func (m *machine) specs() []string {
	main := fmt.Sprintf("main=postgres:host=127.0.0.1 port=%d user=shopper password=hunter2 dbname=shop sslmode=disable", m.pg.Port)
	if m.whole {
		main = "main=" + m.pg.DSN("shop") + "#mode=physical&data_dir=" + m.pg.DataDir
	}
	return []string{
		main,
		"maria=mysql://shopper:hunter2@localhost/shop?socket=" + m.socket,
		"cache=redis://127.0.0.1:" + m.redis,
	}
}

// set puts the databases into the state called word.
func (m *machine) set(word string) {
	m.pg.Psql(m.t, "shop", `SET ROLE shopper; BEGIN; TRUNCATE words; INSERT INTO words SELECT '`+word+`' || i FROM generate_series(1, 300) i; COMMIT`)
	m.sql("shop", `BEGIN; DELETE FROM words; INSERT INTO words SELECT concat('`+word+`', seq) FROM seq_1_to_300; COMMIT`)
	m.cli("MULTI\nFLUSHALL\nSET word '" + word + "'\nRPUSH list " + word + " " + word + "\nEXEC\n")
}

// look returns all that the databases say.
func (m *machine) look() string {
	return m.pg.Psql(m.t, "shop", `SELECT string_agg(w, ' ' ORDER BY w) FROM words`) + "\n" +
		m.sql("shop", `SELECT md5(group_concat(w ORDER BY w)) FROM words`) + m.cli("GET word\nLRANGE list 0 -1\nDBSIZE\n")
}

// lose ends everything of the host at once. What it had on its disks is where nobody finds it.
func (m *machine) lose(addr string) {
	m.t.Helper()
	if m.d.cmd != nil {
		m.d.kill()
	}
	for _, end := range m.ends {
		end()
	}
	if m.whole {
		_ = m.pg.Command("pg_ctl", "stop", "-s", "-m", "immediate", "-D", m.pg.DataDir).Run()
	} else {
		m.pg.Kill(m.t)
	}
	m.endApp(addr)
	if err := os.Rename(m.d.dir, m.d.dir+"-gone"); err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() { os.RemoveAll(m.d.dir + "-gone") })
}

// endApp ends the app, which only its own address tells from others.
func (m *machine) endApp(addr string) {
	m.t.Helper()
	endApp(m.t, addr)
}

func endApp(t testing.TB, addr string) {
	t.Helper()
	list, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range list {
		if line, err := os.ReadFile(path); err == nil && strings.Contains(string(line), "serve-app") && strings.Contains(string(line), addr) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
		}
	}
}

// comeBack starts again what lose ended.
func (m *machine) comeBack() {
	m.t.Helper()
	if err := os.Rename(m.d.dir+"-gone", m.d.dir); err != nil {
		m.t.Fatal(err)
	}
	if m.whole {
		pgCtl(m.t, m.pg, "start")
	} else {
		m.pg.Start(m.t)
	}
	for _, start := range m.starts {
		start()
	}
	m.d.start()
}

// moment is what an app was like when a turn began.
type moment struct {
	word, dbs string
	files     []string
	// Under load, the number of transactions was at least low and at most top.
	low, top int
}

// load has clients of a cluster make transactions, until the function that it returns is called.
func (m *machine) load() (end func()) {
	m.t.Helper()
	args := []string{"-h", m.pg.Socket, "-p", fmt.Sprint(m.pg.Port), "-U", "postgres"}
	if out, err := m.pg.Command("pgbench", append(args, "-q", "-i", "-s", "1", "shop")...).CombinedOutput(); err != nil {
		m.t.Fatalf("pgbench: %v\n%s", err, out)
	}
	bench := m.pg.Command("pgbench", append(args, "-n", "-c", "2", "-R", "50", "-T", "3600", "shop")...)
	if err := testkit.Start(bench); err != nil {
		m.t.Fatal(err)
	}
	end = sync.OnceFunc(func() {
		_ = bench.Process.Kill() // it may have ended with the server
		_ = bench.Wait()
	})
	m.t.Cleanup(end)
	return end
}

// transactions returns how many transactions of load are in the cluster, and fails the test if one of them is there in part.
func (m *machine) transactions() int {
	m.t.Helper()
	out := strings.TrimSpace(m.pg.Psql(m.t, "shop", `SELECT count(*), coalesce(sum(delta), 0) = (SELECT sum(abalance) FROM pgbench_accounts),
		coalesce(sum(delta), 0) = (SELECT sum(tbalance) FROM pgbench_tellers) FROM pgbench_history`))
	count, rest, _ := strings.Cut(out, "|")
	n, err := strconv.Atoi(count)
	if err != nil || rest != "t|t" {
		m.t.Fatalf("a transaction is there in part: %s", out)
	}
	return n
}

// lost are the measures of a lost host.
type lost struct {
	files int // of the app
	turns int
	older int  // how many older turns are cloned
	whole bool // Postgres goes as a whole cluster, under load, and not as a database
	ceph  bool // the bucket is of Ceph's gateway, and not of versitygw
}

// testHostLost kills a host at a random moment, with all of its servers, while an agent's hooks tell of turns in an app of files, SQLite, Postgres,
// MariaDB and Redis, and nothing is left of it. Another host, with servers of its own, makes the app from the bucket and the identity: at the
// newest turn that is there, and at older ones, all as they were, and none that the remote had promised is missing. When the first host comes
// back, it stops writing, and says so.
func testHostLost(t *testing.T) {
	part, parts := testkit.Part(t, 6) // a Ceph takes half a minute of a processor
	hostLost(t, lost{files: 200, turns: 4, ceph: part == parts-1})
}

// testHostLostCluster does so with a whole cluster of Postgres, in which clients make transactions all the time.
func testHostLostCluster(t *testing.T) { hostLost(t, lost{files: 200, turns: 3, whole: true}) }

// TestLongHostLost does both, with more files and turns, on both servers: once each, and five times if a long run takes every step.
func TestLongHostLost(t *testing.T) {
	testkit.NeedLong(t)
	losses := 4
	if testkit.Every() {
		losses = 20
	}
	for _, i := range testkit.Sample(t, "losses", losses, losses) {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			hostLost(t, lost{files: 20_000, turns: 12, older: 3, whole: i%2 == 1, ceph: i%4 >= 2})
		})
	}
}

func hostLost(t *testing.T, size lost) {
	start := s3test.Start
	if size.ceph {
		start = s3test.OnCeph
	}
	server := start(t)
	text, recipient, err := identity.New()
	if err != nil {
		t.Fatal(err)
	}
	key := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(key, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	env := []string{"AWS_ENDPOINT_URL_S3=" + server.Endpoint, "AWS_REGION=us-east-1", "AWS_ACCESS_KEY_ID=" + s3test.Key, "AWS_SECRET_ACCESS_KEY=" + s3test.Secret}
	url := "s3://" + s3test.Bucket + "/apps"
	first := newMachine(t, env, size.whole)
	first.pg.Psql(t, "postgres", `CREATE DATABASE shop OWNER shopper`)
	first.pg.Psql(t, "shop", `SET ROLE shopper; CREATE TABLE words (w text)`)
	first.sql("mysql", `CREATE DATABASE shop`)
	first.sql("shop", `CREATE TABLE words (w varchar(50))`)
	a := newApp(t, first.d, size.files)
	first.set("zero")
	settings := []string{"app", "set", "--app", "shop", "auto=true", "remote.auto=all", "retention.keep_turns=100"}
	for _, s := range first.specs() {
		settings = append(settings, "database="+s)
	}
	first.d.must(settings...)
	first.d.must("remote", "add", "backup", url, "--recipient", recipient, "--app", "shop")
	ctx := t.Context()
	eventually(t, "the files are followed", func() bool {
		app, err := first.d.client.App(ctx, "shop")
		return err == nil && app.Following == "watching"
	})

	records := map[string]*moment{} // by word
	note := func(word string) {
		records[word] = &moment{word: word, dbs: first.look(), files: a.files(t)}
		if size.whole {
			records[word].low = first.transactions()
		}
	}
	endLoad := func() {}
	if size.whole {
		endLoad = first.load()
	}
	note("zero")
	h := hooks{t, first.d, "claude-code", a.ws}
	rnd := testkit.Rand(t, "moment")
	var promised []ipc.CheckpointID
	last := "zero"
	for n := range size.turns {
		h.run(h.claude("UserPromptSubmit", `,"prompt":"go"`))
		think(t, first.d, n)
		if size.whole {
			records[last].top = first.transactions()
		}
		if n == size.turns-1 { // the last turn ends with the host, at whatever it is at
			time.AfterFunc(time.Duration(rnd.IntN(1000))*time.Millisecond, func() { _ = first.d.cmd.Process.Kill() })
		}
		h.run(h.edit("PreToolUse", n))
		word := fmt.Sprint("word-", n)
		last = word
		a.set(t, word)
		first.set(word)
		note(word)
		h.run(h.edit("PostToolUse", n))
		h.run(h.claude("Stop", ""))
		list, err := first.d.client.Remotes(ctx, "shop")
		if n == 1 { // so that there is something to be promised
			eventually(t, "a checkpoint is on the remote", func() bool {
				list, err = first.d.client.Remotes(ctx, "shop")
				return err == nil && list.Remotes[0].UpTo != ""
			})
		}
		if err != nil {
			break
		}
		if id := list.Remotes[0].UpTo; id != "" && len(list.Remotes[0].Left) == 0 && (len(promised) == 0 || promised[len(promised)-1] != id) {
			promised = append(promised, id)
		}
	}
	first.d.cmd.Wait()
	first.d.cmd = nil
	endLoad()
	first.lose(a.addr)

	second := newMachine(t, env, size.whole)
	there := &testApp{d: second.d, ws: filepath.Join(second.d.dir, "shop"), addr: a.addr}
	clone := func(more ...string) ipc.CloneResult {
		t.Helper()
		args := []string{"clone", url, there.ws, "--identity", key}
		for _, s := range second.specs() {
			args = append(args, "--db", s)
		}
		began := time.Now()
		res := ask[ipc.CloneResult](second.d, append(args, more...)...)
		there.up(t)
		t.Logf("clone of %s, made %s, to the app's answer: %v", res.Checkpoint, res.MadeAt.Format("15:04:05.000"), time.Since(began).Round(time.Millisecond))
		want, ok := records[there.word(t)]
		switch {
		case !ok:
			t.Fatalf("the app is in state %q, which it never was in", there.word(t))
		case len(res.Lacks) > 0: // it says that a database is not in it, which then is as the clone before left it
			if slices.Contains(promised, res.Checkpoint) {
				t.Fatalf("%s was promised as a whole: %q, %+v", res.Checkpoint, res.Lacks, res.Rollback)
			}
			t.Logf("%s lacks %q", res.Checkpoint, res.Lacks)
			sameListing(t, "the files of "+want.word, there.files(t), want.files)
			return res
		case second.look() != want.dbs:
			t.Errorf("the receipt says %+v, warnings %q", res.Rollback.Verification, res.Rollback.Warnings)
			t.Fatalf("%s, of %s, %q: the databases say\n%s\nand said\n%s", res.Checkpoint, want.word, res.Warnings, second.look(), want.dbs)
		case !res.Rollback.Verification.Match || len(res.Rollback.Verification.Layers) != 5:
			t.Fatalf("%+v", res)
		}
		if n := 0; size.whole {
			if n = second.transactions(); n < want.low || n > want.top {
				t.Errorf("%s: %d transactions, and there were from %d to %d", want.word, n, want.low, want.top)
			}
		}
		sameListing(t, "the files of "+want.word, there.files(t), want.files)
		return res
	}
	remove := func() {
		second.d.must("app", "remove", "shop", "--purge")
		second.endApp(a.addr)
		if err := os.RemoveAll(there.ws); err != nil {
			t.Fatal(err)
		}
	}
	olds := slices.Clone(promised)
	rnd.Shuffle(len(olds), func(i, j int) { olds[i], olds[j] = olds[j], olds[i] })
	until := time.Time{}
	for _, id := range append(olds[:min(size.older, len(olds))], promised[len(promised)-1]) {
		res := clone("--at", string(id))
		if res.Checkpoint != id {
			t.Errorf("asked for %s, and was given %s", id, res.Checkpoint)
		}
		until = res.MadeAt
		remove()
	}

	// The newest, and work goes on there.
	if res := clone("--take-over"); res.MadeAt.Before(until) {
		t.Errorf("the remote promised a checkpoint of %s, and the newest that came back is of %s", until, res.MadeAt)
	}
	there.set(t, "later")
	second.set("later")
	there.create()
	second.d.must("push", "--wait", "--app", "shop")
	if list, err := second.d.client.Remotes(ctx, "shop"); err != nil || list.Remotes[0].Problem != "" || list.Remotes[0].Behind > 0 && list.Remotes[0].State == ipc.RemoteFailing {
		t.Errorf("%+v %v", list, err)
	}

	// The first host comes back, makes a checkpoint, and sees that it is not to write any more.
	second.d.stop()
	second.endApp(a.addr)
	first.comeBack()
	first.d.must("create", "--app", "shop")
	eventually(t, "the first host stops writing", func() bool {
		list, err := first.d.client.Remotes(ctx, "shop")
		return err == nil && list.Remotes[0].State == ipc.RemoteLost
	})
	if _, words, code := first.d.mulligan("push", "--wait", "--app", "shop"); code != 4 || !strings.Contains(words, "another host writes to this remote") {
		t.Errorf("push: %d %s", code, words)
	}
	if words := first.d.must("status"); !strings.Contains(words, "gets no checkpoints any more") {
		t.Errorf("status does not say that the remote is lost: %s", words)
	}
}

// think waits as an agent does while its model thinks: until the databases of its turn are captured.
func think(t *testing.T, d *daemonProcess, n int) {
	t.Helper()
	turns, err := d.client.Turns(t.Context(), "shop", 1)
	if err != nil || len(turns) == 0 {
		t.Fatalf("turn %d: %+v %v", n, turns, err)
	}
	for end := time.Now().Add(testkit.Patience); ; {
		c, err := d.client.BeginCall(t.Context(), "shop", turns[0].ID, ipc.BeginCall{CallID: ipc.CallID(fmt.Sprint("thinking-", n)), Tool: "Think", Before: true, DeadlineMS: 10_000})
		if err == nil && c.Exact {
			return
		}
		if err != nil || time.Now().After(end) {
			t.Fatalf("turn %d: %+v %v", n, c, err)
		}
	}
}
