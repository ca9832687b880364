package daemon_test

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"mulligan/ipc"
	"mulligan/testkit"
)

// TestBisectForks takes a fork from one test of a bisect to the next, has a new one where that fails, and has one for each test where a
// rollback would not give back what the app excludes.
func TestBisectForks(t *testing.T) {
	t.Parallel()
	testkit.Need(t, "root") // the forks have namespaces
	dir, err := os.MkdirTemp("/var/tmp", "mt")
	check(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	w := world{dir: dir}
	check(t, os.Mkdir(w.ws(), 0o755))
	var made, cleared, failAt int
	opt := w.options()
	opt.Failpoint = func(step string) error {
		switch step {
		case "fork: folder made":
			made++
		case "fork: cleared":
			if cleared++; cleared == failAt {
				return errors.New("the test says so")
			}
		}
		return nil
	}
	d := w.openAs(t, opt)
	defer w.close(t, d)
	all := ipc.DefaultRetention()
	all.KeepLast = 100
	_, err = d.AddApp(t.Context(), root, ipc.App{Slug: "shop", Workspace: w.ws(), Retention: all})
	check(t, err)
	r := testkit.Rand(t)
	const last = 20
	bad := 1 + r.IntN(last)
	var ids []ipc.CheckpointID
	for n := range last + 1 {
		check(t, os.WriteFile(filepath.Join(w.ws(), "n"), []byte(strconv.Itoa(n)), 0o644))
		cp, err := d.Create(t.Context(), root, "shop", ipc.CreateRequest{Quiesce: ipc.QuiesceNone})
		check(t, err)
		ids = append(ids, cp.ID)
	}
	search := func(what string, forks func(tests int) int) {
		t.Helper()
		made, cleared = 0, 0
		res, err := d.Bisect(t.Context(), root, "shop", ipc.BisectRequest{Bad: ids[last], Command: []string{"sh", "-c", `test "$(cat n)" -lt ` + strconv.Itoa(bad)}})
		check(t, err)
		if res.Outcome != ipc.BisectFound || res.Bad.ID != ids[bad] {
			t.Errorf("%s: bad from %d: %+v", what, bad, res)
		}
		if want := forks(len(res.Runs)); len(res.Runs) < 3 || made != want {
			t.Errorf("%s: %d tests had %d forks, and not %d", what, len(res.Runs), made, want)
		}
		if apps := d.Apps(t.Context(), root); len(apps) != 1 {
			t.Errorf("%s: there are the apps %+v", what, apps)
		}
	}
	search("alone", func(int) int { return 1 })
	failAt = 2
	search("with a fork that cannot be cleared", func(int) int { return 2 })
	failAt = 0
	_, err = d.SetApp(t.Context(), root, "shop", ipc.AppChange{Exclude: &[]string{"build"}})
	check(t, err)
	search("with excluded files", func(tests int) int { return tests })
}

// TestForksPartly makes five forks, of which one fails. The others are whole, the answer says what failed, and nothing is left of that one.
func TestForksPartly(t *testing.T) {
	t.Parallel()
	testkit.Need(t, "root")
	dir, err := os.MkdirTemp("/var/tmp", "mt")
	check(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	w := world{dir: dir}
	check(t, os.Mkdir(w.ws(), 0o755))
	check(t, os.WriteFile(filepath.Join(w.ws(), "n"), []byte("here"), 0o644))
	var mu sync.Mutex // the forks are made beside each other
	made := 0
	opt := w.options()
	opt.Failpoint = func(step string) error {
		mu.Lock()
		defer mu.Unlock()
		if step == "fork: folder made" {
			if made++; made == 2 {
				return errors.New("the test says so")
			}
		}
		return nil
	}
	d := w.openAs(t, opt)
	defer w.close(t, d)
	_, err = d.AddApp(t.Context(), root, ipc.App{Slug: "shop", Workspace: w.ws(), Run: []string{"sh", "-c", "exec sleep 100000"}})
	check(t, err)
	list, err := d.Fork(t.Context(), root, "shop", ipc.ForkRequest{Count: 5})
	if err == nil || !strings.Contains(err.Error(), "the test says so") || made != 5 {
		t.Errorf("with one that fails: %v; %d forks were begun", err, made)
	}
	all, err := d.Forks(t.Context(), root, "shop")
	check(t, err)
	if len(list.Forks) != 4 || len(all.Forks) != 4 {
		t.Errorf("the answer has %d forks, and there are %d", len(list.Forks), len(all.Forks))
	}
	folders, err := os.ReadDir(filepath.Join(dir, "shop-forks"))
	check(t, err)
	if len(folders) != 4 {
		t.Errorf("there are the folders %v", folders)
	}
	for _, f := range list.Forks {
		text, err := os.ReadFile(filepath.Join(f.Workspace, "n"))
		if err != nil || string(text) != "here" || f.State != "running" || f.Fork.Making {
			t.Errorf("the fork %s has %q, %v, and is %+v", f.Slug, text, err, f)
		}
		check(t, d.DropFork(t.Context(), root, "shop", f.Fork.Name))
	}
}
