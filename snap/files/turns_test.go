package files

import (
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"mulligan/snap"
	"mulligan/snap/files/watch"
	"mulligan/testkit"
)

// long says that the long form of a test is asked for.
func long() bool { return testkit.Long() }

// testTurnsOfTwoWriters: two writers work in every turn as people and their
// tools do: edits by rename, in place, by truncation, appending and through
// mappings, shell commands, git in repositories within repositories, modes.
// Every turn's checkpoint is what an independent look saw before it began.
// 16 turns, or 500 with MULLIGAN_TEST_LONG=1.
func testTurnsOfTwoWriters(t *testing.T) {
	turns := 16
	if long() {
		turns = 200
	}
	f, r := newFollowed(t), testkit.Rand(t)
	for _, name := range []string{"one", "two"} {
		must(t, os.Mkdir(filepath.Join(f.dir, name), 0o755))
		for i := range 30 {
			write(t, fmt.Sprintf("%s/%s/src%d/file%d", f.dir, name, i%4, i), string(random(r, 3000)))
		}
		sh(t, filepath.Join(f.dir, name), gitDo+"git init -q . && git add -A && git commit -qm first")
	}
	type turn struct {
		id    snap.SnapshotID
		lines []string
	}
	var all []turn
	for i := range turns {
		before := listing(t, f.dir)
		start := f.flush(t)
		var wg sync.WaitGroup
		for k, name := range []string{"one", "two"} {
			r := testkit.Rand(t, "writer", k)
			wg.Go(func() {
				for range 1 + r.IntN(6) {
					work(t, r, filepath.Join(f.dir, name))
				}
			})
		}
		wg.Go(func() { all = append(all, turn{f.at(t, start), before}) })
		wg.Wait()
		if i%8 == 7 {
			f.exact(t)
			_, err := f.cas.Pack(t.Context())
			must(t, err)
		}
	}
	f.exact(t)
	r.Shuffle(len(all), func(i, k int) { all[i], all[k] = all[k], all[i] })
	for _, x := range all {
		f.restore(t, x.id)
		same(t, string(x.id), listing(t, f.dir), x.lines)
	}
	f.exact(t)
	t.Logf("%d turns, each equal to the copy from before it", len(all))
}

const gitDo = "export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@example.com GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@example.com GIT_CONFIG_GLOBAL=/dev/null; "

// work does one thing in dir.
func work(t testing.TB, r *rand.Rand, dir string) {
	var files []string
	must(t, filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && d.Name() == ".git" {
			return filepath.SkipDir
		}
		if err == nil && d.Type().IsRegular() {
			files = append(files, p)
		}
		return err
	}))
	file := filepath.Join(dir, "new")
	if len(files) > 0 {
		file = files[r.IntN(len(files))]
	}
	n := r.IntN(1000)
	switch r.IntN(12) {
	case 0: // as editors save
		must(t, os.WriteFile(file+"~", random(r, r.IntN(5000)), 0o644))
		must(t, os.Rename(file+"~", file))
	case 1:
		must(t, os.WriteFile(file, random(r, r.IntN(5000)), 0o644))
	case 2:
		must(t, os.Truncate(file, int64(r.IntN(4000))))
	case 3:
		appendTo(t, file, random(r, r.IntN(500)))
	case 4, 5:
		storeMapped(t, r, file)
	case 6:
		sh(t, dir, fmt.Sprintf("mkdir -p out%d && cp -r src%d out%d/ && sed -i s/a/b/g out%d/src%d/*; ls > list", n%5, n%4, n%5, n%5, n%4))
	case 7:
		sh(t, dir, fmt.Sprintf("rm -rf out%d; mv src%d moved%d; mkdir -p src%d; echo %d > src%d/fresh; ln -sf src%d/fresh link", n%5, n%4, n, n%4, n, n%4, n%4))
	case 8:
		sh(t, dir, gitDo+"git add -A; git commit -qm more; git checkout -q -B side HEAD~1; git checkout -qf -")
	case 9:
		sh(t, dir, gitDo+fmt.Sprintf("git stash -qu; git stash pop -q; git branch b%d; git gc -q --prune=now", n))
	case 10: // a repository in the repository
		sh(t, dir, gitDo+fmt.Sprintf("mkdir -p nested%d && cd nested%d && git init -q . && echo %d > f && git add f && git commit -qm n", n%3, n%3, n))
	case 11:
		must(t, os.Chmod(file, 0o600|fs.FileMode(r.IntN(512))))
		must(t, os.Chmod(filepath.Dir(file), 0o700|fs.FileMode(r.IntN(64))))
	}
}

func appendTo(t testing.TB, path string, p []byte) {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY|os.O_CREATE, 0o644)
	must(t, err)
	_, err = f.Write(p)
	must(t, err)
	must(t, f.Close())
}

// storeMapped changes a file through a mapping, of which no write tells.
func storeMapped(t testing.TB, r *rand.Rand, path string) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	must(t, err)
	defer f.Close()
	fi, err := f.Stat()
	must(t, err)
	if fi.Size() == 0 {
		return
	}
	p, err := unix.Mmap(int(f.Fd()), 0, int(fi.Size()), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	must(t, err)
	for range 1 + r.IntN(20) {
		p[r.IntN(len(p))] ^= byte(1 + r.IntN(255))
	}
	must(t, unix.Munmap(p))
}

// testRealStorm: tar of many files, npm install, rm -rf of it all and a rebuild
// in a loop, also two of them at once, while there is room for 16 events, in the
// kernel's own queue at first and in the watcher's after each overflow: when it is over, the journal has what is on disk, every time. 3,000
// files and no npm, or 60,000 and npm with MULLIGAN_TEST_LONG=1.
func testRealStorm(t *testing.T) {
	n := 3000
	if long() {
		n = 60000
	}
	restore := limitQueue(t, 16)
	f := newFollowed(t, func(c *Config) { c.Watch = func(o *watch.Options) { o.Queue = 16 } })
	restore()
	src := t.TempDir()
	for i := range n {
		write(t, fmt.Sprintf("%s/p%d/lib/%d.js", src, i/20, i), fmt.Sprint("module ", i))
	}
	tar := filepath.Join(t.TempDir(), "src.tar")
	sh(t, src, "tar cf "+tar+" .")
	storms := []string{
		"mkdir -p a && tar xf " + tar + " -C a",
		"for i in 1 2 3; do rm -rf out; mkdir out; cp -r a/p1 a/p2 a/p3 out/; echo $i > out/stamp; done",
		"(rm -rf a) & (mkdir b; tar xf " + tar + " -C b); wait",
		"(for i in 1 2 3; do rm -rf out; mkdir out; cp -r b/p1 b/p2 out/; done) & (mkdir -p c; cp -r b/p3 c/; rm -rf b/p4); wait",
	}
	if long() {
		storms = append(storms,
			npmInstall(t, "n"),
			"(rm -rf n) & ("+npmInstall(t, "m")+"); wait",
			"rm -rf m b c out")
	}
	var overflows int
	for _, s := range storms {
		out, err := exec.Command("sh", "-c", "cd "+f.dir+"; "+s).CombinedOutput()
		if err != nil {
			t.Logf("%.60s: %v: %.200s", s, err, out)
		}
		if f.Following().State != snap.Watching {
			overflows++
		}
		f.exact(t)
	}
	t.Logf("%d storms; %d were not over when they ended", len(storms), overflows)
	f.restart(t)
	f.exact(t)
}

// npmInstall is a command that installs what the benchmark's lockfile names.
func npmInstall(t *testing.T, dir string) string {
	t.Helper()
	from, err := filepath.Abs("filesbench/npm")
	must(t, err)
	return fmt.Sprintf("mkdir -p %s && cp %s/package*.json %s/ && npm ci --prefix %s --ignore-scripts --no-audit --no-fund --prefer-offline", dir, from, dir, dir)
}

// limitQueue has inotify queues that are made until restore hold that many
// events. The kernel has one such number for everybody.
func limitQueue(t *testing.T, n int) (restore func()) {
	t.Helper()
	const path = "/proc/sys/fs/inotify/max_queued_events"
	old, err := os.ReadFile(path)
	must(t, err)
	if err := os.WriteFile(path, fmt.Append(nil, n), 0); err != nil {
		testkit.Lack(t, "cannot limit the queue: ", err)
	}
	restore = sync.OnceFunc(func() { must(t, os.WriteFile(path, old, 0)) })
	t.Cleanup(restore)
	return restore
}
