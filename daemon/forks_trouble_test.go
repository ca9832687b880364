package daemon_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

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
