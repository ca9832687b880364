package daemon_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mulligan/daemon"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/testkit"
)

// testForkFolders drops a fork whose folder was made anew by a rollback, which is removed, and one in whose place another folder is, which is refused and
// leaves both as they are.
func testForkFolders(t *testing.T) {
	t.Parallel()
	testkit.Need(t, "root")
	w := forkWorld(t)
	write(t, w.ws(), "n", "here")
	d := w.open(t)
	defer w.close(t, d)
	_, err := d.AddApp(t.Context(), root, ipc.App{Slug: "shop", Workspace: w.ws(), Run: []string{"sh", "-c", "exec sleep 100000"}})
	check(t, err)
	made, err := d.Fork(t.Context(), root, "shop", ipc.ForkRequest{})
	check(t, err)
	f := made.Forks[0]
	stays := func(path string) {
		t.Helper()
		if text, err := os.ReadFile(filepath.Join(path, "n")); err != nil || string(text) != "here" {
			t.Errorf("%s has %q, %v", path, text, err)
		}
	}

	check(t, os.Rename(f.Workspace, f.Workspace+"-moved"))
	check(t, os.CopyFS(f.Workspace, os.DirFS(f.Workspace+"-moved")))
	err = d.DropFork(t.Context(), root, "shop", "1")
	if errs.KindOf(err) != errs.Conflict || !strings.Contains(err.Error(), f.Workspace) || errs.HintOf(err) == "" {
		t.Errorf("with another folder in the place of the fork's: %v", err)
	}
	stays(f.Workspace)
	stays(f.Workspace + "-moved")
	if f, err := d.App(t.Context(), root, f.Slug); err != nil || f.Fork.Making || f.State != "running" {
		t.Errorf("the fork that was not dropped is %+v, %v", f, err)
	}

	check(t, os.RemoveAll(f.Workspace))
	cps, err := d.Checkpoints(t.Context(), root, f.Slug, ipc.CheckpointQuery{})
	check(t, err)
	_, err = d.Rollback(t.Context(), root, f.Slug, cps.Checkpoints[0].ID, ipc.RollbackRequest{}, nil)
	check(t, err)
	stays(f.Workspace)
	check(t, d.DropFork(t.Context(), root, "shop", "1"))
	if _, err := os.Lstat(f.Workspace); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the folder that a rollback made anew: %v", err)
	}
	made, err = d.Fork(t.Context(), root, "shop", ipc.ForkRequest{})
	check(t, err)
	if made.Forks[0].Fork.Name != "1" {
		t.Errorf("the next fork is %q", made.Forks[0].Fork.Name)
	}
	check(t, d.DropFork(t.Context(), root, "shop", "1"))
}

// testForkThatFailsInUse lets the making of a fork fail while something keeps the fork from being dropped: a change of its settings, which is waited for,
// and a mount in its folder, which is told, and after which the fork is dropped.
func testForkThatFailsInUse(t *testing.T) {
	t.Parallel()
	testkit.Need(t, "root")
	w := forkWorld(t)
	var d *daemon.Daemon
	var inUse func()
	opt := w.options()
	opt.Failpoint = func(step string) error {
		if step == "fork: filled" {
			inUse()
			return errors.New("the test says so")
		}
		return nil
	}
	d = w.openAs(t, opt)
	defer func() { w.close(t, d) }()
	slow := "trap 'touch asked; until [ -e may-end ]; do sleep 0.1; done; exit 0' TERM; touch ready; while :; do sleep 0.1; done"
	_, err := d.AddApp(t.Context(), root, ipc.App{Slug: "shop", Workspace: w.ws(), Run: []string{"sh", "-c", slow}, Exclude: []string{"ready", "asked", "may-end"}})
	check(t, err)
	defer func() { check(t, os.WriteFile(filepath.Join(w.ws(), "may-end"), nil, 0o644)) }()
	in := filepath.Join(w.dir, "shop-forks", "1")
	forks := func() []ipc.App {
		list, err := d.Forks(t.Context(), root, "shop")
		check(t, err)
		return list.Forks
	}
	there := func(file string) func() bool {
		return func() bool { _, err := os.Stat(filepath.Join(in, file)); return err == nil }
	}

	changed := make(chan error, 1)
	inUse = func() {
		testkit.Eventually(t, "the fork's command runs", there("ready"))
		go func() {
			_, err := d.SetApp(t.Context(), root, "shop-1", ipc.AppChange{Run: &[]string{"sleep", "100000"}})
			changed <- err
		}()
		testkit.Eventually(t, "the fork's command is asked to end", there("asked"))
		check(t, os.WriteFile(filepath.Join(in, "may-end"), nil, 0o644))
	}
	_, err = d.Fork(t.Context(), root, "shop", ipc.ForkRequest{})
	if err == nil || err.Error() != "fork: the test says so" {
		t.Errorf("a fork that fails while its settings are changed: %v", err)
	}
	check(t, <-changed)
	if left := forks(); len(left) > 0 || there("")() {
		t.Errorf("left is %+v, the folder: %v", left, there("")())
	}

	at := filepath.Join(in, "mnt")
	inUse = func() {
		testkit.Eventually(t, "the fork's command runs", there("ready"))
		check(t, os.WriteFile(filepath.Join(in, "may-end"), nil, 0o644))
		check(t, errors.Join(os.Mkdir(at, 0o755), unix.Mount(w.ws(), at, "", unix.MS_BIND, "")))
	}
	_, err = d.Fork(t.Context(), root, "shop", ipc.ForkRequest{})
	if err == nil || !strings.Contains(err.Error(), "the test says so") {
		t.Errorf("a fork that fails with something mounted in it: %v", err)
	}
	d.Expire(t.Context(), time.Now())
	left := forks()
	if len(left) != 1 || !left[0].Fork.Making || !slices.ContainsFunc(left[0].Problems, func(words string) bool { return strings.Contains(words, at) }) {
		t.Errorf("left is %+v", left)
	}
	check(t, unix.Unmount(at, 0))
	d.Expire(t.Context(), time.Now())
	if left := forks(); len(left) > 0 || there("")() {
		t.Errorf("with the mount gone, left is %+v, the folder: %v", left, there("")())
	}
}

// testForksOfOthers holds the making and the expiry of one owner's fork up at each step at which they may wait for what is the owner's, such as a
// filesystem: meanwhile another owner's fork is made, and expires.
func testForksOfOthers(t *testing.T) {
	t.Parallel()
	testkit.Need(t, "root")
	w := forkWorld(t)
	check(t, os.Chmod(w.dir, 0o777))
	var holdAt atomic.Value
	var skew atomic.Int64
	holdAt.Store("")
	held, goOn := make(chan bool), make(chan bool)
	opt := daemon.Options{Watches: -1, StateDir: w.state(), StopTimeout: time.Minute, Steady: steady, ExpireEvery: time.Hour}
	opt.Now = func() time.Time { return time.Now().Add(time.Duration(skew.Load())) }
	opt.Failpoint = func(step string) error {
		if step == holdAt.Load() && holdAt.CompareAndSwap(step, "") {
			held <- true
			<-goOn
		}
		return nil
	}
	d := w.openAs(t, opt)
	defer w.close(t, d)
	defer close(goOn)
	owners := []string{"games", "root"}
	for _, owner := range owners {
		ws := filepath.Join(w.dir, owner)
		check(t, os.Mkdir(ws, 0o755))
		write(t, ws, "n", "here")
		sh(t, `chown -R "$1" "$2"`, owner, ws)
		_, err := d.AddApp(t.Context(), root, ipc.App{Slug: owner, Owner: owner, Workspace: ws, Forking: ipc.Forking{ExpireAfter: "24h"}})
		check(t, err)
	}
	forks := func(owner string) (names []string) {
		list, err := d.Forks(t.Context(), root, owner)
		check(t, err)
		for _, f := range list.Forks {
			names = append(names, f.Fork.Name)
		}
		return names
	}
	// beside runs work, which is held up at the step, and meanwhile what must not wait for it.
	beside := func(step string, work func() error, meanwhile func()) {
		t.Helper()
		holdAt.Store(step)
		ended := make(chan error, 1)
		go func() { ended <- work() }()
		<-held
		meanwhile()
		goOn <- true
		if err := <-ended; err != nil {
			t.Errorf("what was held up at %q: %v", step, err)
		}
	}
	fork := func(owner string) error {
		_, err := d.Fork(t.Context(), root, owner, ipc.ForkRequest{})
		return err
	}
	for _, step := range []string{"fork: described", "adopt files"} {
		beside(step, func() error { return fork("games") }, func() {
			made := make(chan error, 1)
			go func() { made <- fork("root") }()
			testkit.Eventually(t, "the other owner's fork is made beside one that is held up at "+step, func() bool { return len(made) > 0 })
			check(t, <-made)
			if step == "fork: described" { // and takes the name that was chosen
				check(t, fork("games"))
			}
		})
	}
	if names := forks("games"); !slices.Equal(names, []string{"1", "2", "3"}) {
		t.Errorf("there are the forks %q", names)
	}
	begun := time.Now()
	skew.Store(int64(25 * time.Hour))
	beside("fork: stopped", func() error { d.Expire(t.Context(), begun); return nil }, func() {
		testkit.Eventually(t, "one owner's forks are dropped beside one that is held up", func() bool {
			return len(forks("games")) == 0 || len(forks("root")) == 0
		})
		d.Expire(t.Context(), begun) // the next does not wait
	})
	if left := append(forks("games"), forks("root")...); len(left) > 0 {
		t.Errorf("the forks %q are left", left)
	}
}

// testDropInSilentFolder starts a daemon that has to finish the drop of a fork in a folder over which its owner has mounted a filesystem that never
// answers. The daemon says so, and another owner's app runs.
func testDropInSilentFolder(t *testing.T) {
	t.Parallel()
	testkit.Need(t, "root", "bindfs")
	w := forkWorld(t)
	check(t, os.Chmod(w.dir, 0o777))
	opt := daemon.Options{Watches: -1, StateDir: w.state(), StopTimeout: time.Minute, StartWait: time.Millisecond, Steady: steady}
	broken := opt
	broken.Failpoint = func(step string) error {
		if step == "fork: stopped" {
			return errors.New("the test says so")
		}
		return nil
	}
	d := w.openAs(t, broken)
	for _, owner := range []string{"games", "root"} {
		ws := filepath.Join(w.dir, owner)
		check(t, os.Mkdir(ws, 0o755))
		write(t, ws, "n", "here")
		sh(t, `chown -R "$1" "$2"`, owner, ws)
		_, err := d.AddApp(t.Context(), root, ipc.App{Slug: owner, Owner: owner, Workspace: ws, Run: []string{"sleep", "100000"}})
		check(t, err)
	}
	_, err := d.Fork(t.Context(), root, "games", ipc.ForkRequest{})
	check(t, err)
	if err := d.DropFork(t.Context(), root, "games", "1"); err == nil {
		t.Fatal("the fork was dropped")
	}
	w.close(t, d)

	at := filepath.Join(w.dir, "games-forks")
	server := exec.Command("setpriv", "--reuid=games", "--regid=games", "--clear-groups", "bindfs", "-f", "-o", "nonempty", "--no-allow-other", filepath.Join(w.dir, "games"), at)
	check(t, server.Start())
	away := sync.OnceFunc(func() {
		_ = unix.Unmount(at, unix.MNT_DETACH)
		_ = server.Process.Kill() // also if it is stopped
		_ = server.Wait()
	})
	defer away()
	testkit.Eventually(t, "bindfs serves the folder", func() bool {
		mounts, err := os.ReadFile("/proc/self/mountinfo")
		return err == nil && strings.Contains(string(mounts), at+" ")
	})
	check(t, server.Process.Signal(unix.SIGSTOP))

	d = w.openAs(t, opt)
	defer func() { w.close(t, d) }()
	testkit.Eventually(t, "another owner's app runs", func() bool {
		a, err := d.App(t.Context(), root, "root")
		return err == nil && a.State == "running"
	})
	testkit.Eventually(t, "the daemon says that the fork could not be dropped", func() bool {
		list, err := d.Forks(t.Context(), root, "games")
		check(t, err)
		return len(list.Forks) == 1 && slices.ContainsFunc(list.Forks[0].Problems, func(words string) bool { return strings.Contains(words, "took longer than") })
	})
	away()
	testkit.Eventually(t, "the fork is dropped", func() bool {
		d.Expire(t.Context(), time.Now())
		list, err := d.Forks(t.Context(), root, "games")
		check(t, err)
		return len(list.Forks) == 0
	})
	if _, err := os.Lstat(at); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the folder of the forks: %v", err)
	}
}
