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
	socket string // of MariaDB
	redis  string // port
	ends   []func()
}

// newMachine starts a host's servers, which have nobody's data, and its daemon.
func newMachine(t *testing.T, env []string) *machine {
	t.Helper()
	testkit.Need(t, "mariadb", "redis")
	m := &machine{t: t, pg: pgtest.Start(t, pgtest.Options{})}
	m.pg.Psql(t, "postgres", `CREATE ROLE shopper LOGIN CREATEDB PASSWORD 'hunter2'`)
	dir := testkit.TempDir(t)
	m.socket = filepath.Join(dir, "s")
	testkit.MariaDB(t, filepath.Join(dir, "data"))
	m.serve(func() bool {
		return exec.Command("mariadb-admin", "--no-defaults", "--socket="+m.socket, "--user=root", "ping").Run() == nil
	}, "mariadbd", "--no-defaults", "--datadir="+filepath.Join(dir, "data"), "--socket="+m.socket, "--skip-networking", "--user=root", "--innodb-flush-log-at-trx-commit=0", "--innodb-buffer-pool-size=32M")
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

func (m *machine) serve(ready func() bool, program string, args ...string) {
	m.t.Helper()
	cmd := exec.Command(program, args...)
	if err := testkit.Start(cmd); err != nil {
		m.t.Fatal(err)
	}
	ended := false
	end := func() {
		if !ended {
			_ = cmd.Process.Kill() // it may have ended
			_ = cmd.Wait()
		}
		ended = true
	}
	m.ends = append(m.ends, end)
	m.t.Cleanup(end)
	eventually(m.t, program+" is up", ready)
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
	return []string{
		fmt.Sprintf("main=postgres:host=127.0.0.1 port=%d user=shopper password=hunter2 dbname=shop sslmode=disable", m.pg.Port),
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

// lose ends everything of the host at once.
func (m *machine) lose(addr string) {
	m.t.Helper()
	if m.d.cmd != nil {
		m.d.kill()
	}
	for _, end := range m.ends {
		end()
	}
	m.pg.Kill(m.t)
	list, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		m.t.Fatal(err)
	}
	for _, path := range list { // the app, by the address that it alone has
		if line, err := os.ReadFile(path); err == nil && strings.Contains(string(line), "serve-app") && strings.Contains(string(line), addr) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
		}
	}
	if err := os.RemoveAll(m.d.dir); err != nil {
		m.t.Fatal(err)
	}
}

// moment is what an app was like when a checkpoint was to be made.
type moment struct {
	word, dbs string
	files     []string
}

// TestHostLost kills a host at a random moment, with all of its servers, while checkpoints are made of an app of files, SQLite, Postgres, MariaDB and
// Redis, and deletes all that is left of it. Another host, with servers of its own, makes the app from the bucket and the identity: at the
// newest checkpoint that is there, and at older ones, all as they were, and none that the remote had promised is missing.
func TestHostLost(t *testing.T) { hostLost(t, 4, 0) }

// TestLongHostLost does so 20 times.
func TestLongHostLost(t *testing.T) {
	testkit.NeedLong(t)
	for i := range 20 {
		t.Run(fmt.Sprint(i), func(t *testing.T) { hostLost(t, 12, 3) })
	}
}

func hostLost(t *testing.T, states, older int) {
	server := s3test.Start(t)
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
	first := newMachine(t, env)
	first.pg.Psql(t, "postgres", `CREATE DATABASE shop OWNER shopper`)
	first.pg.Psql(t, "shop", `SET ROLE shopper; CREATE TABLE words (w text)`)
	first.sql("mysql", `CREATE DATABASE shop`)
	first.sql("shop", `CREATE TABLE words (w varchar(50))`)
	a := newApp(t, first.d, 200)
	first.set("zero")
	settings := []string{"app", "set", "--app", "shop", "remote.auto=all", "retention.keep_last=100"}
	for _, s := range first.specs() {
		settings = append(settings, "database="+s)
	}
	first.d.must(settings...)
	first.d.must("remote", "add", "backup", url, "--recipient", recipient, "--app", "shop")

	records, promised := map[string]moment{}, map[string]bool{} // by word; by checkpoint
	ctx := t.Context()
	note := func(word string) { records[word] = moment{word, first.look(), a.files(t)} }
	note("zero")
	rnd := testkit.Rand(t, "moment")
	for n := range states {
		if n == states-1 { // the last checkpoint ends with the host, at whatever it is at
			time.AfterFunc(time.Duration(rnd.IntN(300))*time.Millisecond, func() { _ = first.d.cmd.Process.Kill() })
		}
		word := fmt.Sprint("word-", n)
		a.set(t, word)
		first.set(word)
		note(word)
		if _, err := first.d.client.CreateCheckpoint(ctx, "shop", ipc.CreateRequest{}); err != nil {
			break
		}
		list, err := first.d.client.Remotes(ctx, "shop")
		if err != nil {
			break
		}
		if r := list.Remotes[0]; r.UpTo != "" {
			promised[string(r.UpTo)] = true
		}
		if n == 1 { // so that there is something to be promised
			eventually(t, "a checkpoint is on the remote", func() bool {
				list, err := first.d.client.Remotes(ctx, "shop")
				return err == nil && list.Remotes[0].UpTo != ""
			})
		}
	}
	first.d.cmd.Wait()
	first.d.cmd = nil
	first.lose(a.addr)

	second := newMachine(t, env)
	there := &testApp{d: second.d, ws: filepath.Join(second.d.dir, "shop"), addr: a.addr}
	clone := func(more ...string) ipc.CloneResult {
		t.Helper()
		args := []string{"clone", url, there.ws, "--identity", key}
		for _, s := range second.specs() {
			args = append(args, "--db", s)
		}
		began := time.Now()
		res := ask[ipc.CloneResult](second.d, append(args, more...)...)
		t.Logf("clone of %s, made %s: %v", res.Checkpoint, res.MadeAt.Format("15:04:05.000"), time.Since(began).Round(time.Millisecond))
		there.up(t)
		want, ok := records[there.word(t)]
		switch {
		case !ok:
			t.Fatalf("the app is in state %q, which it never was in", there.word(t))
		case second.look() != want.dbs:
			t.Fatalf("%s: the databases say\n%s\nand said\n%s", res.Checkpoint, second.look(), want.dbs)
		case len(res.Lacks) > 0 || !res.Rollback.Verification.Match || len(res.Rollback.Verification.Layers) != 5:
			t.Fatalf("%+v", res)
		}
		sameListing(t, "the files of "+want.word, there.files(t), want.files)
		return res
	}
	remove := func() {
		second.d.must("app", "remove", "shop", "--purge")
		if err := os.RemoveAll(there.ws); err != nil {
			t.Fatal(err)
		}
	}
	if older > 0 {
		clone()
		remove()
	}
	olds := make([]string, 0, len(promised))
	for id := range promised {
		olds = append(olds, id)
	}
	slices.Sort(olds)
	rnd.Shuffle(len(olds), func(i, j int) { olds[i], olds[j] = olds[j], olds[i] })
	for _, id := range olds[:min(older, len(olds))] {
		if res := clone("--at", id); string(res.Checkpoint) != id {
			t.Errorf("asked for %s, and was given %s", id, res.Checkpoint)
		}
		remove()
	}

	// And work goes on there.
	clone("--take-over")
	there.set(t, "later")
	second.set("later")
	there.create()
	second.d.must("push", "--wait", "--app", "shop")
	if list, err := second.d.client.Remotes(ctx, "shop"); err != nil || list.Remotes[0].Problem != "" || list.Remotes[0].Behind > 0 && list.Remotes[0].State == ipc.RemoteFailing {
		t.Errorf("%+v %v", list, err)
	}
}
