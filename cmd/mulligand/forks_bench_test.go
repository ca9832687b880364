package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mulligan/ipc"
	"mulligan/snap/disk/disktest"
	"mulligan/snap/postgres/pgtest"
	"mulligan/testkit"
	"mulligan/testkit/benchtable"
)

// BenchmarkForks measures forks beside what people do without them, one after the other in each round, and reports whether the
// goals are met. BENCH_FILES, BENCH_MB and BENCH_GUEST_MB are the sizes: files of the app, megabytes of its PostgreSQL database (of which a whole app
// has a tenth), and megabytes on a guest's disk.
func BenchmarkForks(b *testing.B) {
	b.Run("files", benchForkedFiles)
	b.Run("postgres by dump", func(b *testing.B) { benchForkedPostgres(b, false) })
	b.Run("postgres by its files", func(b *testing.B) { benchForkedPostgres(b, true) })
	b.Run("guest", benchForkedGuest)
	b.Run("whole apps", benchForkedApps)
	b.Run("bisect", benchBisect)
}

// setting is a size from the environment.
func setting(name string, otherwise int) int {
	if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
		return n
	}
	return otherwise
}

const forksPart = "forks"

// beside is a row about forks: what mulligan took, beside another way.
func beside(b *testing.B, what string, mulligan, other time.Duration, name string, goal float64) benchtable.Row {
	n := float64(b.N)
	return benchtable.Row{Part: forksPart, What: what, Unit: "s", Mulligan: mulligan.Seconds() / n, Others: []benchtable.Other{{Name: name, Value: other.Seconds() / n}}, Times: goal}
}

// duration runs a function, and returns how long that took.
func duration(f func()) time.Duration {
	begun := time.Now()
	f()
	return time.Since(begun)
}

// benchApp is an app of an ordinary user's at root's daemon, on a file system that can share extents.
func benchApp(b *testing.B, megabytes int64) (d *daemonProcess, dir string) {
	b.Helper()
	testkit.Need(b, "root")
	dir = reflinks(b, megabytes)
	shell(b, dir, `mkdir ws pg forks && chown nobody ws forks && chown postgres pg`)
	d = newDaemon(b)
	d.args = []string{}
	d.start()
	return d, dir
}

func (d *daemonProcess) addFrom(b *testing.B, dir, text string) {
	b.Helper()
	file := filepath.Join(dir, "shop.toml")
	text = fmt.Sprintf("slug = 'shop'\nowner = 'nobody'\nworkspace = '%s/ws'\n", dir) + text + fmt.Sprintf("[fork]\ndir = '%s/forks/them'\n", dir)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		b.Fatal(err)
	}
	d.must("app", "add", "--file", file)
	d.cred = &syscall.Credential{Uid: ordinary, Gid: ordinary}
}

// sourceTree makes n small files, 100 in each folder.
func sourceTree(b *testing.B, ws string, n int) {
	b.Helper()
	for i := range n {
		folder := filepath.Join(ws, "src", strconv.Itoa(i/100))
		if i%100 == 0 {
			if err := os.MkdirAll(folder, 0o755); err != nil {
				b.Fatal(err)
			}
		}
		if err := os.WriteFile(filepath.Join(folder, "f"+strconv.Itoa(i%100)), fmt.Appendf(nil, "file %d of a source tree, with a line or two\n", i), 0o644); err != nil {
			b.Fatal(err)
		}
	}
}

func benchForkedFiles(b *testing.B) {
	n := setting("BENCH_FILES", 100_000)
	d, dir := benchApp(b, int64(2000+n/20))
	sourceTree(b, dir+"/ws", n)
	shell(b, dir+"/ws", `chown -R nobody .`)
	d.addFrom(b, dir, "")
	d.must("create", "--app", "shop")
	var first, three, further, copies time.Duration
	for range b.N {
		copies += duration(func() { shell(b, dir, `cp -a --reflink=always ws copy`) })
		shell(b, dir, `rm -r copy`)
		first += duration(func() { d.must("fork", "1", "--no-start", "--app", "shop") })
		d.must("drop", "--all", "--app", "shop")
		three += duration(func() { d.must("fork", "1", "--no-start", "--count", "3", "--app", "shop") })
		further += duration(func() { d.must("fork", "1", "--no-start", "--count", "3", "--app", "shop") }) / 3
		d.must("drop", "--all", "--app", "shop")
	}
	const reflinks = "cp -a --reflink=always"
	benchtable.Report(b, beside(b, fmt.Sprintf("first fork of %d files, XFS", n), first, copies, reflinks, 1))
	benchtable.Report(b, beside(b, "three forks at once, mounted over one copy", three, 3*copies, "three of them", 1))
	r := beside(b, "each further fork of the same checkpoint", further, copies, reflinks, 50)
	r.Smaller = n < 100_000
	benchtable.Report(b, r)
}

func benchForkedPostgres(b *testing.B, cluster bool) {
	mb := setting("BENCH_MB", 1000)
	d, dir := benchApp(b, int64(4000+12*mb))
	settings := map[string]string{"shared_buffers": "256MB", "max_wal_size": "4GB", "wal_level": "replica"}
	if cluster {
		settings["archive_mode"] = "on"
	}
	c := pgtest.New(b, pgtest.Options{Dir: dir + "/pg", Settings: settings})
	ownServer(b, c)
	c.Psql(b, "postgres", `CREATE ROLE shopper LOGIN SUPERUSER PASSWORD 'hunter2'`)
	c.Psql(b, "postgres", `CREATE DATABASE shop OWNER shopper`)
	c.Psql(b, "shop", fmt.Sprintf(`CREATE TABLE items (id int PRIMARY KEY, body text); INSERT INTO items SELECT i, repeat(md5(i::text), 6) FROM generate_series(1, %d) i`, mb*1000000/260))
	c.Psql(b, "shop", `VACUUM ANALYZE items`)
	how := "mode = 'logical'\n"
	if cluster {
		how = fmt.Sprintf("mode = 'physical'\ndata_dir = '%s'\n", c.DataDir)
	}
	d.addFrom(b, dir, "[[database]]\nname = 'main'\ndsn = '"+c.TCP("shopper", "hunter2", "shop")+"'\n"+how)
	d.must("create", "--app", "shop")
	c.Psql(b, "shop", `CHECKPOINT`)
	conn := fmt.Sprintf("host=127.0.0.1 port=%d user=shopper dbname=shop sslmode=disable", c.Port)
	as := func(command string) {
		cmd := exec.Command("sh", "-c", command)
		cmd.Env = append(os.Environ(), "PATH="+c.Bin+":/usr/bin:/bin", "PGHOST="+c.Socket, fmt.Sprintf("PGPORT=%d", c.Port), "PGUSER="+pgtest.Superuser)
		if out, err := cmd.CombinedOutput(); err != nil {
			b.Fatalf("%s: %v\n%s", command, err, out)
		}
	}
	var fork, restore, template time.Duration
	for i := range b.N {
		restore += duration(func() { as(`createdb dumped && pg_dump -Fc shop | pg_restore -d dumped`) })
		as(`dropdb dumped`)
		template += duration(func() { as(`createdb -T shop copied`) })
		as(`dropdb copied`)
		// What the other ways wrote is stored and archived before the fork is timed: it is their work.
		c.Psql(b, "shop", `CHECKPOINT`)
		eventually(b, "the log is archived", func() bool {
			waiting, err := filepath.Glob(filepath.Join(c.DataDir, "pg_wal/archive_status/*.ready"))
			return err == nil && len(waiting) == 0
		})
		unix.Sync()
		name := fmt.Sprintf("f%d", i)
		fork += duration(func() {
			d.must("fork", "1", "--name", name, "--app", "shop")
			d.must("exec", "--socket", d.socket, "--app", "shop", name, "--", "sh", "-c", c.Bin+"/psql -c 'SELECT 1' -d '"+conn+"'")
		})
		d.must("drop", "--all", "--app", "shop")
	}
	what := fmt.Sprintf("fork of %d MB of PostgreSQL, by dump, until it answers", mb)
	goal := 1.0
	if cluster {
		what, goal = fmt.Sprintf("fork of %d MB of PostgreSQL, by its files, until it answers", mb), 5
	}
	r := beside(b, what, fork, restore, "createdb, pg_dump | pg_restore", goal)
	if cluster {
		r.Below, r.Smaller = 2, mb < 1000
	}
	benchtable.Report(b, r)
	benchtable.Report(b, beside(b, what, fork, template, "createdb -T, without an own server", 0))
}

func benchBisect(b *testing.B) {
	const turns = 64
	testkit.Need(b, "root")
	d := newDaemon(b)
	d.args = []string{}
	d.start()
	dir, err := os.MkdirTemp("/var/tmp", "bisect")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { os.RemoveAll(dir) })
	ws := filepath.Join(dir, "ws")
	if err := os.Mkdir(ws, 0o755); err != nil {
		b.Fatal(err)
	}
	if err := copyApp(filepath.Join(ws, "app")); err != nil {
		b.Fatal(err)
	}
	shell(b, ws, `echo 0 >turn; for i in $(seq 2000); do echo $i >f$i; done`)
	addr := freeAddr(b)
	d.must("app", "add", "--slug", "shop", "--dir", ws, "--run", "./app serve-app "+addr+" turn", "--health", "http://"+addr+"/")
	d.must("app", "set", "--app", "shop", fmt.Sprintf("retention.keep_last=%d", 2*turns))
	for i := range turns {
		shell(b, ws, `echo $1 >turn`, fmt.Sprint(i+1))
		d.must("create", "--quiesce", "none", "--app", "shop")
	}
	list := ask[ipc.CheckpointList](d, "list", "--app", "shop").Checkpoints
	if len(list) != turns {
		b.Fatalf("%d checkpoints", len(list))
	}
	const bad = 41 // the first bad turn
	check := fmt.Sprintf(`test "$(cat turn)" -lt %d`, bad)
	bisect := func(more ...string) time.Duration {
		return duration(func() {
			args := append([]string{"bisect", "--socket", d.socket, "--good", string(list[turns-1].ID), "--bad", string(list[0].ID), "--app", "shop"}, more...)
			if out := d.must(append(args, "--", "sh", "-c", check)...); !strings.Contains(out, string(list[turns-bad].ID)) {
				b.Fatalf("bisect says %s", out)
			}
		})
	}
	var alone, two, fresh, byHand, downBisect, down time.Duration
	for range b.N {
		watch := watchDown(b, addr)
		alone += bisect()
		two += bisect("--jobs", "2")
		d.must("app", "set", "--app", "shop", "exclude=build")
		fresh += bisect()
		d.must("app", "set", "--app", "shop", "exclude=")
		downBisect += watch()
		watch = watchDown(b, addr)
		byHand += duration(func() {
			good, first := 1, turns // turn 1 is good, turn 64 bad
			for first-good > 1 {
				mid := (good + first) / 2
				d.must("rollback", string(list[turns-mid].ID), "--app", "shop")
				eventually(b, "the app answers", func() bool { return strings.TrimSpace(visit(b.Context(), addr)) == fmt.Sprint(mid) })
				if exec.Command("sh", "-c", "cd "+ws+"; "+check).Run() == nil {
					good = mid
				} else {
					first = mid
				}
			}
			if first != bad {
				b.Fatalf("found %d", first)
			}
			d.must("rollback", string(list[0].ID), "--app", "shop")
		})
		down += watch()
	}
	const live = "rollbacks of the live app"
	benchtable.Report(b, beside(b, fmt.Sprintf("bisect over %d turns", turns), alone, byHand, live, 1))
	benchtable.Report(b, beside(b, "the same with two tests at a time, over one copy", two, byHand, live, 0))
	benchtable.Report(b, beside(b, "the same with a new fork for each test, over one copy", fresh, byHand, live, 0))
	r := beside(b, "for how long the app was down in these three", downBisect, down, live, 0)
	r.Below = 0.01 // the visitor's pace
	benchtable.Report(b, r)
}

// watchDown asks an app all the time. The returned function tells for how long it did not answer.
func watchDown(b *testing.B, addr string) (stop func() time.Duration) {
	b.Helper()
	ctx, cancel := context.WithCancel(b.Context())
	var down atomic.Int64
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			begun := time.Now()
			answered := visit(ctx, addr) != ""
			time.Sleep(2 * time.Millisecond) // a visitor's pace
			if !answered && ctx.Err() == nil {
				down.Add(int64(time.Since(begun)))
			}
		}
	}()
	return func() time.Duration {
		cancel()
		<-done
		return time.Duration(down.Load())
	}
}

// benchForkedGuest measures a fork of a running guest, from a checkpoint with its memory, beside a full clone of its disk that is booted,
// as virt-clone makes one.
func benchForkedGuest(b *testing.B) {
	h := disktest.Running(b)
	mb := setting("BENCH_GUEST_MB", 4000)
	virsh := func(args ...string) { output(b, "", "virsh", append([]string{"-q", "-c", h.URI}, args...)...) }
	begin := func(g *disktest.Guest) {
		file := filepath.Join(h.Dir, g.Name+".xml")
		if err := os.WriteFile(file, []byte(g.XML), 0o600); err != nil {
			b.Fatal(err)
		}
		virsh("define", file)
		virsh("start", g.Name)
		g.WaitReady(b)
	}
	g := h.NewGuest(b, "shop", disktest.GuestOptions{SizeMiB: mb + mb/8 + 64, Blob: mb})
	begin(g)
	g.Do(b, "set warm")
	d := startDaemon(b)
	ws := filepath.Join(d.dir, "ws")
	if err := os.Mkdir(ws, 0o755); err != nil {
		b.Fatal(err)
	}
	d.must("app", "add", "--slug", "shop", "--dir", ws, "--domain", g.Name, "--uri", h.URI)
	d.must("app", "set", "--app", "shop", "shutdown=destroy")
	d.must("create", "--app", "shop", "--with-memory")
	var forks, clones time.Duration
	occupied := int64(0)
	for i := range b.N {
		clone := h.NewGuest(b, fmt.Sprintf("clone%d", i), disktest.GuestOptions{})
		clones += duration(func() {
			output(b, "", "qemu-img", "convert", "-U", "-O", "qcow2", g.Disks[0], clone.Disks[0])
			begin(clone)
		})
		clone.HangUp()
		virsh("destroy", clone.Name)
		virsh("undefine", clone.Name)
		if err := os.Remove(clone.Disks[0]); err != nil {
			b.Fatal(err)
		}
		var fork *disktest.Guest
		forks += duration(func() {
			f := ask[ipc.ForkList](d, "fork", "1", "--app", "shop").Forks[0]
			fork = g.Fork(f.Domain, g.Socket()+"."+f.Domain)
			fork.WaitReady(b)
			occupied += blocks(b, filepath.Join(filepath.Dir(g.Disks[0]), "mulligan", string(f.ID), "*.qcow2"))
		})
		if got := fork.Do(b, "get"); got != "warm" {
			b.Fatalf("the fork's guest has %q", got)
		}
		fork.HangUp()
		d.must("drop", "1", "--app", "shop")
	}
	benchtable.Report(b, beside(b, fmt.Sprintf("fork of a running guest, %d MB on its disk, until it answers", mb), forks, clones, "full clone of the disk, booted", 5))
	benchtable.Report(b, benchtable.Row{Part: forksPart, What: "what the fork's guest has of its own on disk then", Unit: "MB", Mulligan: float64(occupied) / float64(b.N) / 1e6})
}

// blocks is what files occupy, in bytes.
func blocks(b *testing.B, pattern string) (sum int64) {
	b.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		b.Fatalf("%s: %q, %v", pattern, files, err)
	}
	for _, file := range files {
		var s unix.Stat_t
		if err := unix.Stat(file, &s); err != nil {
			b.Fatal(err)
		}
		sum += s.Blocks * 512
	}
	return sum
}
