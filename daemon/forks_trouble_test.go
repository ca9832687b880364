package daemon_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

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
	opt := daemon.Options{Watches: -1, StateDir: w.state(), StopTimeout: time.Minute, Steady: steady}
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
