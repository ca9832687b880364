package main

import (
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mulligan/ipc"
	"mulligan/remote/identity"
	"mulligan/remote/s3test"
	"mulligan/snap/postgres/pgtest"
	"mulligan/testkit"
	"mulligan/testkit/benchtable"
)

// BenchmarkRemotes measures remotes beside restic and kopia, which send to the same server one after the other, and reports whether the goals
// are met. BENCH_FILES, BENCH_KB and BENCH_MB are the sizes: files of the app, kilobytes of each, and megabytes of the PostgreSQL database that a lost host had.
// All of it is on one XFS, in a file: an ext4 without a journal takes the longer to make a file, the more have just been removed.
func BenchmarkRemotes(b *testing.B) {
	b.Run("files", benchSent)
	b.Run("host lost, PostgreSQL by its files", func(b *testing.B) { benchHostLost(b, true) })
	b.Run("host lost, PostgreSQL by dump", func(b *testing.B) { benchHostLost(b, false) })
}

// benchDisk is the size of the benchmarks' disk in megabytes. What is not used of it takes no place.
const benchDisk = 40_000

// counted is a server behind a proxy that counts what goes through it.
type counted struct {
	url            string
	requests, sent atomic.Int64
	daemon         *daemonProcess // nil: it is not measured
}

func newCounted(b *testing.B, s *s3test.Server) *counted {
	b.Helper()
	u, err := url.Parse(s.Endpoint)
	if err != nil {
		b.Fatal(err)
	}
	c := &counted{}
	forward := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(u)
		r.Out.Host = r.In.Host // it is signed
	}}
	p := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.requests.Add(1)
		c.sent.Add(max(r.ContentLength, 0))
		forward.ServeHTTP(w, r)
	}))
	b.Cleanup(p.Close)
	c.url = p.URL
	for name, value := range map[string]string{"AWS_ENDPOINT_URL_S3": c.url, "AWS_REGION": "us-east-1", "AWS_ACCESS_KEY_ID": s3test.Key, "AWS_SECRET_ACCESS_KEY": s3test.Secret} {
		b.Setenv(name, value) // of all the programs
	}
	return c
}

// cost is what a piece of work took.
type cost struct {
	time           time.Duration
	cpu            time.Duration // which other work on the machine changes less
	requests, sent int64
}

func (c cost) String() string {
	return fmt.Sprintf("%8.2f s, %7.2f s of CPU, %5d requests, %9.3f MB", c.time.Seconds(), c.cpu.Seconds(), c.requests, float64(c.sent)/1e6)
}

func (c *counted) of(f func()) cost {
	requests, sent, cpu := c.requests.Load(), c.sent.Load(), c.cpu()
	took := duration(f)
	return cost{took, c.cpu() - cpu, c.requests.Load() - requests, c.sent.Load() - sent}
}

// cpu returns the time of a processor that this process's children took which have ended, and the daemon.
func (c *counted) cpu() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_CHILDREN, &u); err != nil {
		return 0
	}
	sum := time.Duration(u.Utime.Nano() + u.Stime.Nano())
	if c.daemon == nil || c.daemon.cmd == nil {
		return sum
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", c.daemon.cmd.Process.Pid))
	if err != nil {
		return sum
	}
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	for _, f := range fields[11:15] { // utime, stime and those of its children, see proc_pid_stat(5)
		n, _ := strconv.ParseInt(f, 10, 64)
		sum += time.Duration(n) * (time.Second / 100)
	}
	return sum
}

// remotesPart is the heading of the rows about remotes.
const remotesPart = "remotes"

// compare reports what mulligan and others took for the same: the time, and then the bytes. more changes the row of times.
func compare(b *testing.B, what string, mulligan cost, others map[string]cost, more func(*benchtable.Row)) {
	b.Helper()
	load, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		b.Fatal(err)
	}
	b.Logf("%s (load %s)", what, strings.Join(strings.Fields(string(load))[:3], " "))
	b.Logf("  %-10s %v", "mulligan", mulligan)
	times := benchtable.Row{Part: remotesPart, What: what, Unit: "s", Mulligan: mulligan.time.Seconds()}
	bytes := benchtable.Row{Part: remotesPart, What: what + ": sent", Unit: "MB", Mulligan: float64(mulligan.sent) / 1e6, Times: 1}
	for _, name := range slices.Sorted(maps.Keys(others)) {
		c := others[name]
		b.Logf("  %-10s %v", name, c)
		times.Others = append(times.Others, benchtable.Other{Name: name, Value: c.time.Seconds()})
		bytes.Others = append(bytes.Others, benchtable.Other{Name: name, Value: float64(c.sent) / 1e6})
	}
	more(&times)
	benchtable.Report(b, times)
	if mulligan.sent > 1e6 { // of less, most is what each program says at every start
		benchtable.Report(b, bytes)
	}
}

// atLeast is the goal of taking so many times less than the best of the others; smaller says that less was measured than the goal is for.
func atLeast(times float64, smaller bool) func(*benchtable.Row) {
	return func(r *benchtable.Row) { r.Times, r.Smaller = times, smaller }
}

// rival is another program that sends files to a bucket.
type rival struct {
	name string
	b    *testing.B
	path string
	dir  string // for what it keeps on the host
	url  string
}

func newRival(b *testing.B, name, module, dir, version, url string) *rival {
	b.Helper()
	return &rival{name: name, b: b, path: testkit.GoTool(b, module, dir, version, 300), dir: b.TempDir(), url: url}
}

func (r *rival) run(args ...string) {
	r.b.Helper()
	cmd := exec.Command(r.path, args...)
	cmd.Env = append(os.Environ(), "RESTIC_PASSWORD=hunter2", "RESTIC_REPOSITORY=s3:"+r.url+"/"+s3test.Bucket+"/restic", "RESTIC_CACHE_DIR="+r.dir,
		"KOPIA_PASSWORD=hunter2", "KOPIA_CONFIG_PATH="+r.dir+"/config", "KOPIA_CACHE_DIRECTORY="+r.dir+"/cache", "KOPIA_LOG_DIR="+r.dir, "KOPIA_CHECK_FOR_UPDATES=false", "HOME="+r.dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		r.b.Fatalf("%s %q: %v\n%s", r.name, args, err, out)
	}
}

// begin makes a repository.
func (r *rival) begin() {
	r.b.Helper()
	if r.name == "restic" {
		r.run("init")
		return
	}
	r.run("repository", "create", "s3", "--bucket="+s3test.Bucket, "--prefix=kopia/", "--endpoint="+strings.TrimPrefix(r.url, "http://"), "--disable-tls",
		"--access-key="+s3test.Key, "--secret-access-key="+s3test.Secret, "--region=us-east-1")
	r.run("policy", "set", "--global", "--compression=zstd")
}

// send backs a folder up.
func (r *rival) send(dir string) {
	r.b.Helper()
	if r.name == "restic" {
		r.run("backup", "--quiet", dir)
		return
	}
	r.run("snapshot", "create", "--no-progress", dir)
}

func rivals(b *testing.B, url string) (list []*rival) {
	b.Helper()
	for _, r := range [][4]string{{"restic", "github.com/restic/restic", "cmd/restic", "v0.18.1"}, {"kopia", "github.com/kopia/kopia", ".", "v0.22.3"}} {
		list = append(list, newRival(b, r[0], r[1], r[2], r[3], url))
	}
	return list
}

// text returns n bytes of which a third is all that cannot be compressed.
func text(b *testing.B, n int, label ...any) []byte {
	b.Helper()
	const letters = "abcdefghijklmnopqrstuvwxyz      etaoin shrdlu\n(){}=;,.\t\"'0123456"
	p := testkit.Bytes(b, n, label...)
	for i := range p {
		p[i] = letters[int(p[i])%len(letters)]
		if i%2 == 1 {
			p[i] = p[i-1]
		}
	}
	return p
}

func recipient(b *testing.B) (key, recipient string) {
	b.Helper()
	text, recipient, err := identity.New()
	if err != nil {
		b.Fatal(err)
	}
	key = filepath.Join(b.TempDir(), "key")
	if err := os.WriteFile(key, []byte(text), 0o600); err != nil {
		b.Fatal(err)
	}
	return key, recipient
}

// benchSent sends an app of files, and then ten changed ones.
func benchSent(b *testing.B) {
	n, kb := setting("BENCH_FILES", 100_000), setting("BENCH_KB", 16)
	disk := reflinks(b, benchDisk)
	server := newCounted(b, s3test.StartIn(b, benchDir(b, disk)))
	d := newDaemonIn(b, disk)
	d.start()
	ws := filepath.Join(benchDir(b, disk), "ws")
	path := func(i int) string { return fmt.Sprintf("%s/src/%d/f%d", ws, i/100, i) }
	for i := range n {
		if i%100 == 0 {
			if err := os.MkdirAll(filepath.Dir(path(i)), 0o755); err != nil {
				b.Fatal(err)
			}
		}
		if err := os.WriteFile(path(i), text(b, kb<<10, i), 0o644); err != nil {
			b.Fatal(err)
		}
	}
	shell(b, ws, "sync")
	_, to := recipient(b)
	others := rivals(b, server.url)
	for _, r := range others {
		r.begin()
	}
	d.must("app", "add", "--slug", "shop", "--dir", ws)
	d.must("remote", "add", "backup", "s3://"+s3test.Bucket+"/apps", "--recipient", to, "--app", "shop")
	for range b.N {
		server.daemon = d
		made := server.of(func() { d.must("create", "--app", "shop") })
		pushed := server.of(func() { d.must("push", "--wait", "--app", "shop") })
		theirs := map[string]cost{}
		for _, r := range others {
			theirs[r.name] = server.of(func() { r.send(ws) })
		}
		smaller := n < 100_000
		compare(b, fmt.Sprintf("push of a first checkpoint, %d files of %d KiB", n, kb), pushed, theirs, atLeast(2, smaller))
		both := pushed
		both.time, both.cpu = both.time+made.time, both.cpu+made.cpu
		compare(b, "the same, with the making of the checkpoint", both, theirs, atLeast(1, smaller))
		var rows [5]cost
		const rounds = 3
		sums := map[string]cost{}
		for round := range rounds {
			for i := range 10 {
				if err := os.WriteFile(path((round*10+i)*n/40), text(b, kb<<10, "changed", round, i), 0o644); err != nil {
					b.Fatal(err)
				}
			}
			rows[0] = server.of(func() { d.must("create", "--app", "shop") })
			rows[1] = server.of(func() { d.must("push", "--wait", "--app", "shop") })
			add(sums, "mulligan", rows[1])
			rows[1].time, rows[1].cpu = rows[1].time+rows[0].time, rows[1].cpu+rows[0].cpu
			add(sums, "both", rows[1])
			for _, r := range others {
				add(sums, r.name, server.of(func() { r.send(ws) }))
			}
		}
		theirs = map[string]cost{}
		for _, r := range others {
			theirs[r.name] = mean(sums[r.name], rounds)
		}
		compare(b, fmt.Sprintf("push of 10 changed files in %d, mean of %d", n, rounds), mean(sums["mulligan"], rounds), theirs, func(r *benchtable.Row) {
			r.Times, r.Below, r.Smaller = 10, 1, smaller
		})
		compare(b, "the same, with the making of the checkpoint", mean(sums["both"], rounds), theirs, atLeast(10, smaller))
		benchtable.Report(b, benchtable.Row{Part: remotesPart, What: "requests of such a push", Mulligan: float64(mean(sums["mulligan"], rounds).requests), Below: 4,
			Others: []benchtable.Other{{Name: "kopia", Value: float64(theirs["kopia"].requests)}, {Name: "restic", Value: float64(theirs["restic"].requests)}}})
	}
}

func add(sums map[string]cost, name string, c cost) {
	s := sums[name]
	sums[name] = cost{s.time + c.time, s.cpu + c.cpu, s.requests + c.requests, s.sent + c.sent}
}

func mean(c cost, n int64) cost {
	return cost{c.time / time.Duration(n), c.cpu / time.Duration(n), c.requests / n, c.sent / n}
}

// benchDir makes a folder on a disk.
func benchDir(b *testing.B, disk string) string {
	b.Helper()
	dir, err := os.MkdirTemp(disk, "remotes")
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// benchHostLost makes an app again from a bucket, on a host with empty servers: files, PostgreSQL and Redis; beside restic, pg_restore and a copy of Redis's file.
func benchHostLost(b *testing.B, cluster bool) {
	n, mb := 20_000, setting("BENCH_MB", 1000)
	disk := reflinks(b, benchDisk)
	server := newCounted(b, s3test.StartIn(b, benchDir(b, disk)))
	key, to := recipient(b)
	first := newDatabases(b, disk, cluster)
	first.pg.Psql(b, "postgres", `CREATE DATABASE shop OWNER shopper`)
	first.pg.Psql(b, "shop", fmt.Sprintf(`SET ROLE shopper; CREATE TABLE items (id int PRIMARY KEY, body text);
		INSERT INTO items SELECT i, md5(i::text) || md5((i+1)::text) || md5((i+2)::text) || repeat('words of an item ', 6) FROM generate_series(1, %d) i; CREATE INDEX ON items (md5(body))`, mb*1000000/310))
	first.pg.Psql(b, "shop", `VACUUM ANALYZE items; CHECKPOINT`)
	size := strings.TrimSpace(first.pg.Psql(b, "shop", `SELECT pg_database_size('shop') / 1000000`))
	first.cli("EVAL \"for i=1,20000 do redis.call('SET', 'key-'..i, string.rep('v', 100)..i) end\" 0\nSAVE\n")
	d := newDaemonIn(b, disk)
	d.start()
	a := newApp(b, d, n)
	set := []string{"app", "set", "--app", "shop"}
	for _, spec := range first.specs() {
		set = append(set, "database="+spec)
	}
	d.must(set...)
	d.must("remote", "add", "backup", "s3://"+s3test.Bucket+"/apps", "--recipient", to, "--app", "shop")
	a.create()
	d.must("push", "--wait", "--app", "shop")

	restic := rivals(b, server.url)[0]
	restic.begin()
	dump := filepath.Join(benchDir(b, disk), "dump")
	if err := os.Mkdir(dump, 0o777); err != nil {
		b.Fatal(err)
	}
	args := []string{"-h", first.pg.Socket, "-p", fmt.Sprint(first.pg.Port), "-U", "postgres"}
	if out, err := first.pg.Command("pg_dump", append(args, "-Fc", "-Z", "1", "shop")...).Output(); err != nil {
		b.Fatal(err)
	} else if err := os.WriteFile(dump+"/shop.dump", out, 0o644); err != nil {
		b.Fatal(err)
	}
	shell(b, dump, `cp "$1"/dump.rdb . && cp -a "$2" ws`, first.dir, a.ws)
	restic.send(dump)
	first.rows = first.count()
	d.stop()
	endApp(b, a.addr)
	first.end()

	for range b.N {
		second := newDatabases(b, disk, cluster)
		there := newDaemonIn(b, disk)
		there.start()
		app := &testApp{d: there, ws: filepath.Join(there.dir, "shop"), addr: a.addr}
		clone := []string{"clone", "s3://" + s3test.Bucket + "/apps", app.ws, "--identity", key}
		for _, spec := range second.specs() {
			clone = append(clone, "--db", spec)
		}
		server.daemon = there
		ours := server.of(func() {
			res := ask[ipc.CloneResult](there, clone...)
			app.up(b)
			b.Log(stagesOf(res))
		})
		if got := second.count(); got != first.rows {
			b.Fatalf("the clone has %s rows, not %s", got, first.rows)
		}
		there.stop()
		server.daemon = nil
		endApp(b, a.addr)
		second.end()

		third := newDatabases(b, disk, false)
		back := benchDir(b, disk)
		third.down()
		theirs := server.of(func() {
			restic.run("restore", "latest", "--target", back, "--quiet")
			shell(b, back, `cp .`+dump+`/dump.rdb "$1"/dump.rdb`, third.dir)
			third.up()
			third.pg.Psql(b, "postgres", `CREATE DATABASE shop OWNER shopper`)
			args := []string{"-h", third.pg.Socket, "-p", fmt.Sprint(third.pg.Port), "-U", "postgres", "-j", "2", "-d", "shop", back + dump + "/shop.dump"}
			if out, err := third.pg.Command("pg_restore", args...).CombinedOutput(); err != nil {
				b.Fatalf("pg_restore: %v\n%s", err, out)
			}
			app := exec.Command(filepath.Join(bin, "app"), "serve-app", a.addr, "page.html")
			app.Dir = filepath.Join(back+dump, "ws")
			if err := testkit.Start(app); err != nil {
				b.Fatal(err)
			}
			(&testApp{addr: a.addr}).up(b)
		})
		if got := third.count(); got != first.rows {
			b.Fatalf("pg_restore has %s rows, not %s", got, first.rows)
		}
		endApp(b, a.addr)
		third.end()
		how := map[bool]string{true: "its files", false: "dump"}[cluster]
		compare(b, fmt.Sprintf("host lost: %d files, PostgreSQL of %s MB by %s, Redis; to the app's answer", n, size, how), ours, map[string]cost{"by hand": theirs}, atLeast(3, mb < 1000))
	}
}

// databases are the servers of a host, on a disk.
type databases struct {
	b    *testing.B
	pg   *pgtest.Cluster
	own  bool   // the cluster is in the daemon's care
	dir  string // of Redis
	port string
	cmd  *exec.Cmd // of Redis
	rows string
}

func newDatabases(b *testing.B, disk string, own bool) *databases {
	b.Helper()
	dir := benchDir(b, disk)
	shell(b, dir, `mkdir pg redis && chown postgres pg`)
	d := &databases{b: b, own: own, dir: dir + "/redis", port: fmt.Sprint(testkit.Port(b))}
	settings := map[string]string{"shared_buffers": "256MB", "max_wal_size": "4GB", "fsync": "on", "synchronous_commit": "on", "full_page_writes": "on"}
	if own {
		settings["wal_level"], settings["archive_mode"] = "replica", "on"
	}
	d.pg = pgtest.New(b, pgtest.Options{Dir: dir + "/pg", Settings: settings})
	if own {
		ownServer(b, d.pg)
	} else {
		d.pg.Start(b)
	}
	d.pg.Psql(b, "postgres", `CREATE ROLE shopper LOGIN CREATEDB PASSWORD 'hunter2'`)
	d.up()
	b.Cleanup(d.down)
	return d
}

func (d *databases) specs() []string {
	main := fmt.Sprintf("main=postgres:host=127.0.0.1 port=%d user=shopper password=hunter2 dbname=shop sslmode=disable", d.pg.Port)
	if d.own {
		main = "main=" + d.pg.DSN("shop") + "#mode=physical&data_dir=" + d.pg.DataDir
	}
	return []string{
		main,
		"cache=redis://127.0.0.1:" + d.port,
	}
}

func (d *databases) cli(input string) string {
	cmd := exec.Command("redis-cli", "-h", "127.0.0.1", "-p", d.port)
	cmd.Stdin = strings.NewReader(input)
	out, _ := cmd.Output() // it may not listen yet
	return string(out)
}

// up starts Redis, with what is in its folder.
func (d *databases) up() {
	d.b.Helper()
	d.cmd = exec.Command("redis-server", "--bind", "127.0.0.1", "--port", d.port, "--dir", d.dir, "--save", "", "--logfile", d.dir+"/log")
	if err := testkit.Start(d.cmd); err != nil {
		d.b.Fatal(err)
	}
	eventually(d.b, "Redis is up", func() bool { return strings.TrimSpace(d.cli("PING")) == "PONG" })
}

func (d *databases) down() {
	if d.cmd != nil {
		_ = d.cmd.Process.Kill() // it may have ended
		_ = d.cmd.Wait()
		d.cmd = nil
	}
}

func (d *databases) end() {
	d.b.Helper()
	if d.own {
		_ = d.pg.Command("pg_ctl", "stop", "-s", "-m", "immediate", "-D", d.pg.DataDir).Run() // it may be down
	} else {
		d.pg.Stop(d.b)
	}
	d.down()
}

// count returns how much is in the databases.
func (d *databases) count() string {
	return strings.TrimSpace(d.pg.Psql(d.b, "shop", `SELECT count(*), md5(min(body) || max(body)) FROM items`)) + " and " + strings.TrimSpace(d.cli("DBSIZE"))
}

// stagesOf tells how long each stage of a clone's rollback took.
func stagesOf(res ipc.CloneResult) string {
	var list []string
	for _, s := range res.Rollback.Stages {
		list = append(list, fmt.Sprintf("%s %.2f s", s.Stage, float64(s.DurationMS)/1000))
	}
	return strings.Join(list, ", ")
}
