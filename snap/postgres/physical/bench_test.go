package physical

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mulligan/snap"
	"mulligan/snap/postgres/physical/asowner"
	"mulligan/testkit/benchtable"
)

// BenchmarkCluster measures markers and restores beside pg_dump with
// pg_restore -j2, and beside stopping the server and copying its folder, and reports
// which goals are met.
//
// MULLIGAN_BENCH_PG lists the sizes in megabytes, as "100,1000,4000"; it is 100
// if unset. MULLIGAN_BENCH_PG_DIRS lists folders on the file systems to measure
// on, as "xfs:/mnt/ext4", where xfs is one with reflinks that is made in a file for
// the occasion, by root; if unset, that and a folder of the test's own. The server
// runs with fsync on.
func BenchmarkCluster(b *testing.B) {
	dirs := filepath.SplitList(os.Getenv("MULLIGAN_BENCH_PG_DIRS"))
	if len(dirs) == 0 {
		dirs = []string{""}
		if _, err := exec.LookPath("mkfs.xfs"); err == nil && os.Getuid() == 0 {
			dirs = append(dirs, xfs)
		}
	}
	sizes := os.Getenv("MULLIGAN_BENCH_PG")
	if sizes == "" {
		sizes = "100"
	}
	for _, dir := range dirs {
		for _, size := range strings.Split(sizes, ",") {
			mb, err := strconv.Atoi(size)
			if err != nil {
				b.Fatal(err)
			}
			where := "the test's folder"
			if dir != "" {
				where = filepath.Base(dir)
			}
			b.Run(fmt.Sprintf("%s/%dMB", where, mb), func(b *testing.B) {
				at := dir
				if dir == xfs {
					at = mountXFS(b, int64(mb)*12+2000)
				}
				benchCluster(b, at, where, mb)
			})
		}
	}
}

const xfs = "xfs"

// mountXFS makes a file system with reflinks, of mb megabytes at most, and mounts it.
func mountXFS(b *testing.B, mb int64) string {
	dir, err := os.MkdirTemp("/var/tmp", "mulligan-xfs-")
	check(b, err)
	b.Cleanup(func() { check(b, os.RemoveAll(dir)) })
	image, at := filepath.Join(dir, "image"), filepath.Join(dir, "at")
	check(b, os.WriteFile(image, nil, 0o600))
	check(b, os.Truncate(image, mb<<20))
	check(b, errors.Join(os.Mkdir(at, 0o755), os.Chmod(dir, 0o755)))
	shell := func(args ...string) {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			b.Fatalf("%s: %v\n%s", args[0], err, out)
		}
	}
	shell("mkfs.xfs", "-q", "-m", "reflink=1", image)
	shell("mount", "-o", "loop", image, at)
	b.Cleanup(func() { shell("umount", at) })
	shell("xfs_io", "-c", "cowextsize 8k", at) // else each page that is written to takes 128 kB
	return at
}

// figures are what a benchmark measured, by name.
type figures map[string]float64

// seconds measures f.
func (f figures) seconds(b *testing.B, name string, do func()) {
	b.Helper()
	began := time.Now()
	do()
	f.put(b, name+"-s", time.Since(began).Seconds())
}

func (f figures) put(b *testing.B, name string, v float64) {
	f[name] = v
	b.ReportMetric(v, name)
}

func benchCluster(b *testing.B, dir, where string, mb int) {
	s := newSubject(b, options{dir: dir, settings: map[string]string{"fsync": "on", "shared_buffers": "256MB", "max_wal_size": "2GB"}})
	// Text that compresses by half: some 1 kB a row.
	s.Psql(b, "app", fmt.Sprintf(`CREATE TABLE big AS SELECT g AS id, (SELECT string_agg(md5((g * 40 + i)::text), ' ') FROM generate_series(1, 29) i) AS v FROM generate_series(1, %d) g;
		ALTER TABLE big ADD PRIMARY KEY (id); CHECKPOINT`, mb*1000))
	check(b, s.driver.Maintain(b.Context()))
	f := figures{}
	for b.Loop() {
		used := s.used(b)
		f.seconds(b, "base", func() { check(b, s.driver.bases.take(b.Context())) })
		f.put(b, "base-MB", float64(s.used(b)-used)/1e6)
		s.benchMarkers(b, f)
		s.benchRestore(b, f)
		s.benchDump(b, f)
		s.benchCopy(b, f)
	}
	f.report(b, where, mb, s.driver.store.cloning(b.Context()) && mb == 1000)
}

// report reports what is compared, and which goals are met. Those of restores are for 1 GB on a file system with reflinks.
func (f figures) report(b *testing.B, where string, mb int, restores bool) {
	beside := func(what, unit, name string, below, times float64, others ...string) {
		r := benchtable.Row{Part: "a PostgreSQL cluster by its files", What: fmt.Sprintf("%s, %d MB, %s", what, mb, where), Unit: unit, Mulligan: f[name], Below: below, Times: times, Smaller: !restores && times > 1}
		for i := 0; i < len(others); i += 2 {
			r.Others = append(r.Others, benchtable.Other{Name: others[i], Value: f[others[i+1]]})
		}
		benchtable.Report(b, r)
	}
	beside("checkpoint of an idle server", "ms", "marker-ms", 20, 0)
	beside("checkpoint of a busy server", "ms", "marker-busy-ms", 20, 0)
	beside("copy of the files for markers to build on", "s", "base-s", 0, 0, "pg_dump -j2", "pgdump-s", "stop, cp, start", "stopcopy-s")
	beside("restore", "s", "restore-s", 0, 3, "pg_restore -j2", "pgrestore-s")
	beside("restore, beside a stopped copy", "s", "restore-s", 0, 0, "stop, cp back, start", "copyback-s")
	beside("forward again", "s", "forward-s", 0, 8, "pg_restore -j2", "pgrestore-s")
}

// used is what the file system of the cluster has in use, in bytes.
func (s *subject) used(b *testing.B) int64 {
	check(b, asowner.SyncFS(s.DataDir))
	var st unix.Statfs_t
	check(b, unix.Statfs(s.DataDir, &st))
	return int64(st.Blocks-st.Bfree) * st.Bsize
}

// benchMarkers reports the median of markers on an idle server and on a busy one.
func (s *subject) benchMarkers(b *testing.B, f figures) {
	median := func() float64 {
		var all []time.Duration
		for i := range 41 {
			began := time.Now()
			capture(b, s, snap.SnapshotID(fmt.Sprintf("db-mark-%d", i)))
			all = append(all, time.Since(began))
		}
		slices.Sort(all)
		return all[len(all)/2].Seconds() * 1000
	}
	f.put(b, "marker-ms", median())
	busy := s.Command("psql", "-Xq", "-h", s.Socket, "-p", fmt.Sprint(s.Port), "-U", "postgres", "app")
	busy.Stdin = strings.NewReader(strings.Repeat("UPDATE big SET v = v WHERE id = 1 + random() * 1000;\n", 1<<20))
	check(b, busy.Start())
	f.put(b, "marker-busy-ms", median())
	check(b, busy.Process.Kill())
	_ = busy.Wait() // it was killed
}

// benchRestore goes back, and forward again.
func (s *subject) benchRestore(b *testing.B, f figures) {
	capture(b, s, "db-target")
	s.Psql(b, "app", "UPDATE big SET v = reverse(v) WHERE id % 100 = 0; CREATE TABLE junk AS SELECT * FROM big LIMIT 1000")
	capture(b, s, "db-base")
	var sw snap.Switch
	used, whole := s.used(b), time.Now()
	f.seconds(b, "prepare", func() {
		var err error
		sw, err = s.driver.Prepare(b.Context(), snap.RestoreRequest{ID: "op-1", Target: "db-target", Base: "db-base"})
		check(b, err)
	})
	f.seconds(b, "outage", func() { check(b, sw.Commit(b.Context())) })
	f.put(b, "restore-s", time.Since(whole).Seconds())
	f.put(b, "restore-MB", float64(s.used(b)-used)/1e6)
	proof, err := sw.Check(b.Context())
	check(b, err)
	if !proof.Match {
		b.Fatalf("%+v", proof)
	}
	check(b, sw.Finish(b.Context()))
	capture(b, s, "db-back")
	f.seconds(b, "forward", func() { s.restore(b, "db-base", "db-back") })
	if n := s.Psql(b, "app", "SELECT count(*) FROM junk"); n != "1000" {
		b.Fatalf("forward again, there are %s rows", n)
	}
}

// benchDump is the logical way.
func (s *subject) benchDump(b *testing.B, f figures) {
	dump := filepath.Join(filepath.Dir(s.DataDir), "dump")
	used := s.used(b)
	f.seconds(b, "pgdump", func() { run(b, s, "pg_dump", "-Fd", "-Z0", "-j2", "-f", dump, "app") })
	f.seconds(b, "pgrestore", func() {
		run(b, s, "createdb", "again")
		run(b, s, "pg_restore", "-j2", "-d", "again", dump)
	})
	f.put(b, "dump-MB", float64(s.used(b)-used)/1e6) // the dump, and the database that was made of it
	s.Psql(b, "postgres", "DROP DATABASE again")
	check(b, os.RemoveAll(dump))
}

// benchCopy is the plain way: the server is down while its folder is copied there and back.
func (s *subject) benchCopy(b *testing.B, f figures) {
	aside := s.DataDir + "-copy"
	cp := func(from, to string) {
		out, err := exec.Command("cp", "-a", "--reflink=auto", from, to).CombinedOutput()
		if err != nil {
			b.Fatalf("cp: %v\n%s", err, out)
		}
		check(b, asowner.SyncFS(to))
	}
	f.seconds(b, "stopcopy", func() {
		check(b, s.driver.server.Stop(b.Context()))
		cp(s.DataDir, aside)
		check(b, s.driver.server.Start(b.Context()))
	})
	f.seconds(b, "copyback", func() {
		check(b, s.driver.server.Stop(b.Context()))
		check(b, os.RemoveAll(s.DataDir))
		cp(aside, s.DataDir)
		check(b, s.driver.server.Start(b.Context()))
	})
	check(b, os.RemoveAll(aside))
}
