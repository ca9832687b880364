package main

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mulligan/ipc"
	"mulligan/snap/postgres/pgtest"
	"mulligan/testkit/benchtable"
)

// benchForkedApps measures five forks of an app that has files, SQLite, PostgreSQL, Redis and a web server, until the web servers of all of
// them answer, beside five copies that are made by hand with ports of their own.
func benchForkedApps(b *testing.B) {
	const count = 5
	files, mb := setting("BENCH_FILES", 20_000), setting("BENCH_MB", 1000)/10
	d, dir := benchApp(b, int64(6000+files/4+20*mb))
	ws := filepath.Join(dir, "ws")
	sourceTree(b, ws, files)
	if err := copyApp(filepath.Join(ws, "app")); err != nil {
		b.Fatal(err)
	}
	output(b, `CREATE TABLE words (id INTEGER PRIMARY KEY, word TEXT);
		WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i < 100000) INSERT INTO words (word) SELECT hex(randomblob(16)) FROM n`, "sqlite3", ws+"/shop.db")
	shell(b, ws, `echo served >page.html; chown -R nobody .`)
	c := pgtest.New(b, pgtest.Options{Dir: dir + "/pg", Settings: map[string]string{"shared_buffers": "128MB"}})
	ownServer(b, c)
	c.Psql(b, "postgres", `CREATE ROLE shopper LOGIN CREATEDB PASSWORD 'hunter2'`)
	c.Psql(b, "postgres", `CREATE DATABASE shop OWNER shopper`)
	c.Psql(b, "shop", fmt.Sprintf(`SET ROLE shopper; CREATE TABLE items (id int PRIMARY KEY, body text); INSERT INTO items SELECT i, repeat(md5(i::text), 6) FROM generate_series(1, %d) i`, mb*1000000/260))
	redis := func(data string) (port string, end func()) {
		_, port, err := net.SplitHostPort(freeAddr(b))
		if err != nil {
			b.Fatal(err)
		}
		cmd := exec.Command("redis-server", "--bind", "127.0.0.1", "--port", port, "--dir", data, "--save", "", "--logfile", filepath.Join(data, "log"))
		if err := cmd.Start(); err != nil {
			b.Fatal(err)
		}
		return port, func() { _ = cmd.Process.Kill(); _ = cmd.Wait() } // its status says nothing
	}
	shell(b, dir, `mkdir redis`)
	port, end := redis(dir + "/redis")
	b.Cleanup(end)
	keys := func(port string) string {
		out, _ := exec.Command("redis-cli", "-p", port, "DBSIZE").CombinedOutput() // an error: it does not listen yet
		return strings.TrimSpace(string(out))
	}
	eventually(b, "Redis answers", func() bool { return keys(port) == "0" })
	output(b, "", "redis-cli", "-p", port, "EVAL", "for i = 1, 100000 do redis.call('SET', 'key:' .. i, 'value ' .. i) end", "0")
	addr := freeAddr(b)
	d.addFrom(b, dir, fmt.Sprintf("run = ['./app', 'serve-app', '%s', 'page.html']\n[health]\nurl = 'http://%[1]s/'\n[[database]]\ndsn = 'sqlite:shop.db'\n"+
		"[[database]]\nname = 'main'\ndsn = '%[2]s'\n[[database]]\nname = 'cache'\ndsn = 'redis://127.0.0.1:%[3]s'\n", addr, c.TCP("shopper", "hunter2", "shop"), port))
	d.must("create", "--app", "shop")
	used := func() int64 {
		var st unix.Statfs_t
		if unix.Sync(); unix.Statfs(dir, &st) != nil {
			b.Fatal("the file system cannot be asked")
		}
		return int64(st.Blocks-st.Bfree) * st.Bsize
	}

	var forks, hands time.Duration
	var memory, disk, handDisk int64
	for range b.N {
		before := used()
		var ends []func()
		hands += duration(func() {
			ports, addrs := make([]string, count), make([]string, count)
			for i := range count {
				to := fmt.Sprintf("%s/copy%d", dir, i)
				shell(b, dir, `mkdir "$1" && cp -a --reflink=always ws "$1/ws" && redis-cli -p "$2" SAVE >/dev/null && cp --reflink=always redis/dump.rdb "$1/"`, to, port)
				cmd := exec.Command("sh", "-c", fmt.Sprintf("createdb -O shopper copy%d && pg_dump -Fc shop | pg_restore -d copy%[1]d", i))
				cmd.Env = append(os.Environ(), "PATH="+c.Bin+":/usr/bin:/bin", "PGHOST="+c.Socket, fmt.Sprintf("PGPORT=%d", c.Port), "PGUSER="+pgtest.Superuser)
				if out, err := cmd.CombinedOutput(); err != nil {
					b.Fatalf("%v\n%s", err, out)
				}
				var end func()
				ports[i], end = redis(to)
				ends = append(ends, end)
				addrs[i] = freeAddr(b)
				app := exec.Command("./app", "serve-app", addrs[i], "page.html")
				app.Dir, app.SysProcAttr = to+"/ws", &syscall.SysProcAttr{Credential: d.cred}
				if err := app.Start(); err != nil {
					b.Fatal(err)
				}
				ends = append(ends, func() { _ = app.Process.Kill(); _ = app.Wait() }) // as above
			}
			for i := range count {
				eventually(b, "a copy serves", func() bool { return visit(b.Context(), addrs[i]) == "served\n" && keys(ports[i]) == "100000" })
			}
		})
		handDisk += used() - before
		for _, end := range ends {
			end()
		}
		for i := range count {
			c.Psql(b, "postgres", fmt.Sprintf(`DROP DATABASE copy%d`, i))
		}
		shell(b, dir, `rm -r copy*`)

		before = used()
		forks += duration(func() {
			for _, f := range ask[ipc.ForkList](d, "fork", "1", "--count", strconv.Itoa(count), "--app", "shop").Forks {
				eventually(b, "a fork serves", func() bool { return visit(b.Context(), f.Fork.Ports[0].Address) == "served\n" })
			}
		})
		disk += used() - before
		for pid := range d.inForks("") {
			memory += proportional(b, pid)
		}
		d.must("drop", "--all", "--app", "shop")
	}
	benchtable.Report(b, beside(b, fmt.Sprintf("%d forks of %d files, SQLite, %d MB of PostgreSQL, Redis", count, files, mb), forks, hands, "copies made by hand", 0))
	each := float64(b.N) * count * 1e6
	benchtable.Report(b, benchtable.Row{Part: forksPart, What: "on disk, of each", Unit: "MB", Mulligan: float64(disk) / each, Others: []benchtable.Other{{Name: "a copy made by hand", Value: float64(handDisk) / each}}})
	benchtable.Report(b, benchtable.Row{Part: forksPart, What: "memory of all processes of a fork", Unit: "MB", Mulligan: float64(memory) / each})
}

// proportional is the memory of a process in bytes, in which what it shares with others is divided among them.
func proportional(b *testing.B, pid int) int64 {
	b.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return 0 // it has ended
	}
	_, after, _ := strings.Cut(string(text), "\nPss:")
	fields := strings.Fields(after)
	if len(fields) == 0 {
		return 0 // it has none, as it is ending
	}
	kib, err := strconv.ParseInt(fields[0], 10, 64)
	if err != nil {
		b.Fatal(err)
	}
	return kib * 1024
}
