package main

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mulligan/ipc"
	"mulligan/snap/postgres/pgtest"
	"mulligan/testkit"
)

// clientApp is an app that has the address of its database server in its code (testapp serve-client), or a fork of it.
type clientApp struct{ addr string }

// ask has the app run its client until that succeeds.
func (a clientApp) ask(t testing.TB, method, input string) (said string) {
	t.Helper()
	var last string
	defer func() {
		if t.Failed() {
			t.Logf("%s says: %.2000s", a.addr, last)
		}
	}()
	eventually(t, "the app's client succeeds", func() bool {
		c := http.Client{Timeout: time.Minute}
		req, err := http.NewRequestWithContext(t.Context(), method, "http://"+a.addr, strings.NewReader(input))
		if err != nil {
			t.Fatal(err)
		}
		res, err := c.Do(req)
		if err != nil {
			last = err.Error()
			return false
		}
		defer res.Body.Close()
		b, err := io.ReadAll(res.Body)
		last = string(b)
		// redis-cli exits with 0 when the server is killed while it asks.
		return err == nil && res.StatusCode == http.StatusOK && !strings.HasPrefix(strings.TrimSpace(last), "I/O error")
	})
	return last
}

// do has the app send commands to its server, all of which are carried out or none.
func (a clientApp) do(t testing.TB, commands string) { t.Helper(); a.ask(t, http.MethodPost, commands) }

// dump is all that the app's server has, in an order that says nothing.
func (a clientApp) dump(t testing.TB) string {
	t.Helper()
	lines := strings.Split(a.ask(t, http.MethodGet, ""), "\n")
	lines = slices.DeleteFunc(lines, func(l string) bool {
		return strings.HasPrefix(l, `\restrict `) || strings.HasPrefix(l, `\unrestrict `)
	})
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// ordinary is a user with an account, which some servers need.
const ordinary = 65534

// forkedServer is a kind of database server that each fork of an app has for itself.
type forkedServer struct {
	name, need string
	program    string // of the server
	uid        int    // of the app's owner
	userDaemon bool   // the daemon is the owner's; else root's
	cluster    bool   // the daemon manages the files of the server, whose user is another one than the app's owner unless the daemon is his
	// start starts the parent's server, and returns the app's DSN and the commands of its client.
	start func(t *testing.T, dir string) (dsn string, client []string)
	write func(r *rand.Rand, word string) string // commands that change much
}

func forkedServers() []forkedServer {
	postgres := forkedServer{need: "postgres", program: "/bin/postgres", uid: ordinary, write: func(r *rand.Rand, word string) string {
		var list []string
		for range 30 {
			list = append(list, fmt.Sprintf("INSERT INTO items (name, price) VALUES ('%s %d', %d);", word, r.Int(), r.IntN(100)),
				fmt.Sprintf("UPDATE items SET name = '%s' WHERE id = %d;", word, r.IntN(300)), fmt.Sprintf("DELETE FROM orders WHERE item = %d;", r.IntN(300)))
		}
		return strings.Join(append(list, fmt.Sprintf("CREATE TABLE %s_%d (w text); INSERT INTO %[1]s_%[2]d VALUES ('%[1]s');", word, r.IntN(1e9))), "\n")
	}}
	redis := forkedServer{need: "redis", program: "redis-server", write: func(r *rand.Rand, word string) string {
		var list []string
		for range 50 {
			list = append(list, fmt.Sprintf("SET k%d %s-%d", r.IntN(200), word, r.Int()), fmt.Sprintf("RPUSH l%d %s", r.IntN(20), word))
		}
		return strings.Join(append(list, "SET word "+word), "\n")
	}}
	maria := forkedServer{need: "mariadb", program: "/mariadbd", uid: stranger, write: func(r *rand.Rand, word string) string {
		list := []string{"START TRANSACTION;"}
		for range 30 {
			list = append(list, fmt.Sprintf("INSERT INTO items (name, price) VALUES ('%s %d', %d);", word, r.Int(), r.IntN(100)),
				fmt.Sprintf("UPDATE items SET name = '%s' WHERE id = %d;", word, r.IntN(60)), fmt.Sprintf("DELETE FROM orders WHERE item = %d;", r.IntN(60)))
		}
		return strings.Join(append(list, fmt.Sprintf("COMMIT; CREATE TABLE %s_%d (w text); INSERT INTO %[1]s_%[2]d VALUES ('%[1]s');", word, r.IntN(1e9))), "\n")
	}}
	list := []forkedServer{redis, redis, postgres, postgres, maria, maria, postgres, postgres, postgres}
	list[0].name, list[0].uid, list[0].start = "redis by tcp", stranger, func(t *testing.T, dir string) (string, []string) { return startRedis(t, dir, false) }
	list[1].name, list[1].userDaemon, list[1].start = "redis by socket", true, func(t *testing.T, dir string) (string, []string) { return startRedis(t, dir, true) }
	list[2].name, list[2].start = "postgres by tcp", func(t *testing.T, _ string) (string, []string) { return startPostgres(t, false) }
	list[3].name, list[3].userDaemon, list[3].start = "postgres by socket", true, func(t *testing.T, _ string) (string, []string) { return startPostgres(t, true) }
	list[4].name, list[4].start = "mariadb by tcp", func(t *testing.T, dir string) (string, []string) { return startMariaDB(t, dir, false) }
	list[5].name, list[5].userDaemon, list[5].start = "mariadb by socket", true, func(t *testing.T, dir string) (string, []string) { return startMariaDB(t, dir, true) }
	list[6].name, list[6].cluster, list[6].start = "postgres by its files", true, func(t *testing.T, _ string) (string, []string) { return startCluster(t, "/var/tmp") }
	list[7], list[7].name, list[7].userDaemon = list[6], "postgres by its files, of the daemon's user", true
	list[8], list[8].name, list[8].start = list[6], "postgres by its files, with reflinks", func(t *testing.T, _ string) (string, []string) {
		return startCluster(t, reflinks(t, 3000))
	}
	return list
}

// reflinks returns a folder on a file system that can share blocks. It is not in /tmp, which forks have for themselves, and others than root
// may enter it.
func reflinks(t testing.TB, megabytes int64) string {
	t.Helper()
	mounted := testkit.Loop(t, megabytes, "mkfs.xfs", "-q", "-f")
	dir, err := os.MkdirTemp("/var/tmp", "forks")
	if err == nil {
		err = unix.Mount(mounted, dir, "", unix.MS_BIND, "")
	}
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(unix.Unmount(dir, unix.MNT_DETACH), os.Remove(dir)); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// startCluster starts a Postgres server whose files the daemon may manage. They are not in /tmp, which forks have for themselves.
func startCluster(t *testing.T, dir string) (dsn string, client []string) {
	c := pgtest.New(t, pgtest.Options{Dir: dir, Settings: map[string]string{"wal_level": "replica", "archive_mode": "on"}})
	ownServer(t, c)
	c.Psql(t, "postgres", `CREATE ROLE clerk; CREATE ROLE shopper LOGIN SUPERUSER PASSWORD 'hunter2'`)
	c.Psql(t, "postgres", `CREATE DATABASE shop OWNER shopper`)
	c.Psql(t, "shop", shopSQL+`; GRANT SELECT ON items TO clerk`)
	conn := fmt.Sprintf("host=127.0.0.1 port=%d user=shopper dbname=shop sslmode=disable", c.Port)
	return c.TCP("shopper", "hunter2", "shop") + "#mode=physical&data_dir=" + c.DataDir, []string{
		c.Bin + "/psql", "-XAtq", "--single-transaction", "-v", "ON_ERROR_STOP=1", "-f", "-", "-d", conn, "--", c.Bin + "/pg_dump", "-d", conn}
}

// startMariaDB starts a MariaDB server with a database that has a view, a routine, a trigger and an event of another user's.
func startMariaDB(t *testing.T, dir string, bySocket bool) (dsn string, client []string) {
	_, port, err := net.SplitHostPort(freeAddr(t))
	if err != nil {
		t.Fatal(err)
	}
	data, sockets := filepath.Join(dir, "mysql"), filepath.Join(dir, "sockets")
	if err := os.Mkdir(sockets, 0o755); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(sockets, "my.sock")
	testkit.MariaDB(t, data)
	engine(t, testkit.MariaDBAnswers(socket), "mariadbd", testkit.MariaDBServer(data, socket, "--bind-address=127.0.0.1", "--port="+port, "--innodb-flush-log-at-trx-commit=0", "--character-set-server=utf8mb4")...)
	output(t, `CREATE DATABASE shop; CREATE USER shopper@'%' IDENTIFIED BY 'hunter2'; GRANT ALL ON *.* TO shopper@'%'; CREATE USER clerk@localhost; GRANT ALL ON shop.* TO clerk@localhost;
		USE shop;
		CREATE TABLE items (id int AUTO_INCREMENT PRIMARY KEY, name text, price int); CREATE TABLE orders (id int AUTO_INCREMENT PRIMARY KEY, item int, KEY (item));
		CREATE TABLE log (w text);
		INSERT INTO items (name, price) SELECT CONCAT('item ', seq), seq FROM seq_1_to_60; INSERT INTO orders (item) SELECT seq FROM seq_1_to_60;
		CREATE DEFINER=clerk@localhost VIEW dear AS SELECT * FROM items WHERE price > 50;
		CREATE DEFINER=clerk@localhost FUNCTION total() RETURNS int READS SQL DATA RETURN (SELECT SUM(price) FROM items);
		CREATE DEFINER=clerk@localhost TRIGGER made AFTER INSERT ON items FOR EACH ROW INSERT INTO log VALUES (NEW.name);
		CREATE DEFINER=clerk@localhost EVENT never ON SCHEDULE EVERY 1 YEAR STARTS '2037-01-01 00:00:00' DO DELETE FROM log;`,
		"mariadb", "--no-defaults", "--socket="+socket, "--user=root")
	server := []string{"--no-defaults", "--protocol=tcp", "--host=127.0.0.1", "--port=" + port, "--user=shopper"}
	dsn = "mysql://shopper:hunter2@127.0.0.1:" + port + "/shop"
	if bySocket {
		server = []string{"--no-defaults", "--socket=" + socket, "--user=shopper"}
		dsn = "mysql://shopper:hunter2@/shop?socket=" + socket
	}
	return dsn, slices.Concat([]string{"mariadb"}, server, []string{"shop", "--", "mariadb-dump"}, server,
		[]string{"--skip-dump-date", "--skip-comments", "--skip-extended-insert", "--routines", "--events", "--triggers", "shop"})
}

// startRedis starts a Redis server.
func startRedis(t *testing.T, dir string, bySocket bool) (dsn string, client []string) {
	_, port, err := net.SplitHostPort(freeAddr(t))
	if err != nil {
		t.Fatal(err)
	}
	sockets, data := filepath.Join(dir, "sockets"), filepath.Join(dir, "data")
	if err := errors.Join(os.Mkdir(sockets, 0o755), os.Mkdir(data, 0o755)); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(sockets, "redis.sock")
	engine(t, func() bool {
		out, err := exec.Command("redis-cli", "-p", port, "--no-auth-warning", "-a", "hunter2", "PING").Output()
		return err == nil && strings.TrimSpace(string(out)) == "PONG"
	}, "redis-server", "--bind", "127.0.0.1", "--port", port, "--unixsocket", socket, "--dir", data, "--requirepass", "hunter2", "--logfile", filepath.Join(data, "log"))
	dsn, client = "redis://:hunter2@127.0.0.1:"+port, []string{"redis-cli", "-e", "-h", "127.0.0.1", "-p", port}
	if bySocket {
		dsn, client = "redis://:hunter2@/?socket="+socket, []string{"redis-cli", "-e", "-s", socket}
	}
	all := "local out = {} local keys = redis.call('KEYS', '*') table.sort(keys) for _, k in ipairs(keys) do out[#out+1] = k .. redis.sha1hex(redis.call('DUMP', k)) end return table.concat(out, ' ')"
	return dsn, append(append(slices.Clone(client), append([]string{"--"}, client...)...), "EVAL", all, "0")
}

// startPostgres starts a Postgres server with a database that uses roles, rights and more than tables.
func startPostgres(t *testing.T, bySocket bool) (dsn string, client []string) {
	c := pgtest.Start(t, pgtest.Options{})
	c.Psql(t, "postgres", `CREATE ROLE clerk; CREATE ROLE shopper LOGIN CREATEDB PASSWORD 'hunter2'; CREATE DATABASE shop OWNER shopper`)
	c.Psql(t, "shop", shopSQL+`; GRANT SELECT ON items TO clerk`)
	conn := fmt.Sprintf("host=127.0.0.1 port=%d user=shopper dbname=shop sslmode=disable", c.Port)
	if bySocket {
		conn = fmt.Sprintf("host=%s port=%d user=shopper dbname=shop", c.Socket, c.Port)
	}
	return "postgres:" + conn + " password=hunter2", []string{
		c.Bin + "/psql", "-XAtq", "--single-transaction", "-v", "ON_ERROR_STOP=1", "-f", "-", "-d", conn, "--", c.Bin + "/pg_dump", "-d", conn}
}

// testForkedServers makes forks of an app with a database server: each has a server of its own at the address of the parent's, which
// runs with the owner's rights. One is kept, and redo leads back; the daemon is killed under them; in the end nothing of them is left.
func testForkedServers(t *testing.T) {
	t.Parallel()
	testkit.Need(t, "root")
	kinds := forkedServers()
	for _, i := range testkit.Sample(t, "kinds of servers", len(kinds), 1) {
		c := kinds[i]
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			testkit.Need(t, c.need)
			if c.cluster && c.userDaemon {
				c.uid = accountOf(t, "postgres")
			}
			c.run(t)
		})
	}
}

// accountOf returns the number of a user of the host.
func accountOf(t *testing.T, name string) int {
	t.Helper()
	u, err := user.Lookup(name)
	if err != nil {
		t.Fatal(err)
	}
	uid, err := strconv.Atoi(u.Uid)
	if err != nil {
		t.Fatal(err)
	}
	return uid
}

func (c forkedServer) run(t *testing.T) {
	d := newDaemon(t)
	dir, err := os.MkdirTemp("/var/tmp", "forks")
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	check(err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	check(os.Chmod(dir, 0o755))
	owner := &syscall.Credential{Uid: uint32(c.uid), Gid: uint32(c.uid)}
	start := func() {
		d.cred = nil
		if c.userDaemon {
			d.cred = owner
		} else {
			d.args = []string{}
		}
		d.start()
		d.cred = owner
	}
	ws := filepath.Join(dir, "ws")
	check(os.Mkdir(ws, 0o755))
	check(copyApp(filepath.Join(ws, "app")))
	check(os.WriteFile(filepath.Join(ws, "password"), []byte("hunter2"), 0o644))
	for _, path := range []string{dir, ws, filepath.Join(ws, "app"), filepath.Join(ws, "password")} {
		check(os.Chown(path, c.uid, c.uid))
	}
	if c.userDaemon {
		check(os.Chown(d.dir, c.uid, c.uid))
	}
	dsn, client := c.start(t, dir)
	start()
	parent := clientApp{freeAddr(t)}
	words := append([]string{"./app", "serve-client", parent.addr}, client...)
	for i, w := range words {
		if strings.ContainsAny(w, " '=") {
			words[i] = `"` + w + `"`
		}
	}
	add := []string{"app", "add", "--slug", "shop", "--dir", ws, "--db", "main=" + dsn, "--run", strings.Join(words, " "), "--health", "http://" + parent.addr + "/"}
	if c.cluster {
		owned := ""
		if !c.userDaemon {
			d.cred, owned = nil, "owner = 'nobody'\n" // root names it
		}
		url, folder, _ := strings.Cut(dsn, "#mode=physical&data_dir=")
		file := filepath.Join(dir, "shop.toml")
		check(os.WriteFile(file, fmt.Appendf(nil, "slug = 'shop'\n%sworkspace = '%s'\nrun = ['%s']\n[health]\nurl = 'http://%s/'\n[[database]]\nname = 'main'\ndsn = '%s'\nmode = 'physical'\ndata_dir = '%s'\n",
			owned, ws, strings.Join(append([]string{"./app", "serve-client", parent.addr}, client...), "', '"), parent.addr, url, folder), 0o600))
		check(os.Chown(file, c.uid, c.uid))
		add = []string{"app", "add", "--file", file}
	}
	d.must(add...)
	d.cred = owner
	sameDump := func(t *testing.T, what, got, want string) {
		t.Helper()
		if c.cluster { // a replay of the log may leave them ahead
			got, want = withoutSequences(got), withoutSequences(want)
		}
		sameDump(t, what, got, want)
	}
	r := testkit.Rand(t)
	parent.do(t, c.write(r, "broken"))
	broken := parent.dump(t)

	made := ask[ipc.ForkList](d, "fork", "--app", "shop", "--count", "3").Forks
	if len(made) != 3 {
		t.Fatalf("made are %+v", made)
	}
	var forks []clientApp
	var tried []string
	for i, f := range made {
		if len(f.Problems) > 0 {
			t.Errorf("fork %d has problems: %q", i+1, f.Problems)
		}
		fork := clientApp{f.Fork.Ports[0].Address}
		sameDump(t, fmt.Sprintf("fork %d begins with", i+1), fork.dump(t), broken)
		fork.do(t, c.write(r, fmt.Sprintf("try%d", i+1)))
		forks, tried = append(forks, fork), append(tried, fork.dump(t))
	}
	sameDump(t, "the parent has", parent.dump(t), broken)
	servers := d.inForks(c.program)
	for pid, uid := range servers {
		if (uid == c.uid) != (c.userDaemon || !c.cluster) {
			t.Errorf("a fork's server %d runs as %d", pid, uid)
		}
	}
	if len(servers) != 3 {
		t.Errorf("the forks have the servers %v", servers)
	}
	if _, folder, ok := strings.Cut(dsn, "&data_dir="); ok {
		forks[2].do(t, fmt.Sprintf("COPY (SELECT 1) TO PROGRAM 'cat >%s/evil; cat >%[1]s.mulligan/evil; true'", folder))
		tried[2] = forks[2].dump(t)
		for _, path := range []string{folder + "/evil", folder + ".mulligan/evil"} {
			if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("a fork's server reaches the files of its parent's: %s, %v", path, err)
			}
		}
	}
	parent.do(t, c.write(r, "onwards"))
	onwards := parent.dump(t)

	d.kill()
	start()
	// Servers that are killed are started again, with their data.
	for pid := range servers {
		check(unix.Kill(pid, unix.SIGKILL))
	}
	for i, f := range forks {
		now := f.dump(t)
		sameDump(t, fmt.Sprintf("fork %d has", i+1), withoutSequences(now), withoutSequences(tried[i]))
		tried[i] = now
	}
	d.must("create", "--app", made[0].Slug)
	forks[0].do(t, c.write(r, "worse"))
	d.must("rollback", "1", "--app", made[0].Slug)
	sameDump(t, "after the rollback fork 1 has", forks[0].dump(t), tried[0])
	before := d.must("list", "--app", "shop")
	d.must("keep", "2", "--dry-run", "--app", "shop")
	if after := d.must("list", "--app", "shop"); after != before {
		t.Errorf("keep --dry-run left checkpoints: %s\nbefore: %s", after, before)
	}
	sameDump(t, "after keep --dry-run the parent has", parent.dump(t), onwards)
	sameDump(t, "after keep --dry-run the fork has", forks[1].dump(t), tried[1])
	d.must("keep", "2", "--app", "shop")
	sameDump(t, "after keep the parent has", parent.dump(t), tried[1])
	kept := ask[ipc.CheckpointList](d, "list", "--app", "shop").Checkpoints[1].ID // below the safety checkpoint
	d.must("redo", "--app", "shop")
	sameDump(t, "after redo the parent has", parent.dump(t), onwards)
	d.must("redo", "--app", "shop")
	sameDump(t, "after a redo of that the parent has", parent.dump(t), tried[1])
	d.must("create", "--app", "shop")
	parent.do(t, c.write(r, "after"))
	d.must("rollback", "1", "--app", "shop")
	sameDump(t, "after a rollback to a checkpoint that was made after keep, the parent has", parent.dump(t), tried[1])
	parent.do(t, c.write(r, "again"))
	d.must("rollback", string(kept), "--app", "shop")
	sameDump(t, "after a rollback to the fork's state, the parent has", parent.dump(t), tried[1])
	parent.do(t, c.write(r, "later"))
	later := parent.dump(t)
	d.must("verify", string(kept), "--app", "shop")
	origins := ask[ipc.CheckpointList](d, "list", "--app", made[2].Slug).Checkpoints
	d.must("rollback", string(origins[len(origins)-1].ID), "--app", made[2].Slug)
	sameDump(t, "after a rollback to its origin fork 3 has", forks[2].dump(t), broken)
	d.must("redo", "--app", made[2].Slug)
	sameDump(t, "after redo fork 3 has", forks[2].dump(t), tried[2])
	d.must("drop", "--all", "--app", "shop")
	sameDump(t, "in the end the parent has", parent.dump(t), later)
	if _, folder, ok := strings.Cut(dsn, "&data_dir="); ok {
		if left, err := os.ReadDir(folder + ".mulligan/served"); err != nil || len(left) > 0 {
			t.Errorf("copies of the cluster are left: %v, %v", left, err)
		}
	}
	if left := d.inForks(""); len(left) != 0 {
		t.Errorf("processes are left: %v", left)
	}
	if apps, err := os.ReadDir(filepath.Join(d.dir, "state", "apps")); err != nil || len(apps) != 1 {
		t.Errorf("there is state of %v, %v", apps, err)
	}
	d.keepsSecret(t, "hunter2")
}

// withoutSequences removes the positions of Postgres's sequences from a dump: after a crash, Postgres skips values.
func withoutSequences(dump string) string {
	lines := strings.Split(dump, "\n")
	return strings.Join(slices.DeleteFunc(lines, func(l string) bool { return strings.HasPrefix(l, "SELECT pg_catalog.setval(") }), "\n")
}

// sameDump compares two dumps.
func sameDump(t *testing.T, what, got, want string) {
	t.Helper()
	if got == want {
		return
	}
	has, wants := strings.Split(got, "\n"), strings.Split(want, "\n")
	only := func(list, other []string) []string {
		var out []string
		for _, l := range list {
			if !slices.Contains(other, l) && len(out) < 10 {
				out = append(out, l)
			}
		}
		return out
	}
	t.Errorf("%s, other than it should:\n%.2000q\nand not:\n%.2000q", what, only(has, wants), only(wants, has))
}

// inForks returns the processes in namespaces of forks whose command contains name, with their users.
func (d *daemonProcess) inForks(name string) map[int]int {
	d.t.Helper()
	found := map[int]int{}
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		d.t.Fatal(err)
	}
	for _, dir := range dirs {
		mounts, err := os.ReadFile(filepath.Join(dir, "mountinfo"))
		command, err2 := os.ReadFile(filepath.Join(dir, "cmdline"))
		var st unix.Stat_t
		if err := errors.Join(err, err2, unix.Stat(dir, &st)); err != nil { // it has ended
			continue
		}
		if strings.Contains(string(mounts), filepath.Base(d.dir)+"/state/apps") && strings.Contains(string(command), name) {
			pid, err := strconv.Atoi(filepath.Base(dir))
			if err != nil {
				d.t.Fatal(err)
			}
			found[pid] = int(st.Uid)
		}
	}
	return found
}
