package daemon_test

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
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
	_, err = d.AddApp(t.Context(), root, ipc.App{Slug: "shop", Workspace: w.ws()})
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
