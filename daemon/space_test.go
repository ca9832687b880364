package daemon_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"mulligan/daemon"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/testkit"
)

// TestDoesNotFit asks for checkpoints that cannot fit: the program is not even stopped.
func TestDoesNotFit(t *testing.T) {
	t.Parallel()
	testkit.Need(t, "root")
	w := newWorld(t, nil)
	smallDisk(t, w.dir+"/small", "24m")
	sh(t, `rm -f "$1/state/ballast" && mv "$1/state" "$1/small/state" && ln -s small/state "$1/state"`, w.dir)
	sh(t, `sqlite3 "$1/shop.db" "CREATE TABLE big (b BLOB); INSERT INTO big WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i < 250) SELECT zeroblob(1000000) FROM n"`, w.ws())
	d := w.open(t)
	defer w.close(t, d)
	_, err := d.Create(t.Context(), root, "shop", ipc.CreateRequest{})
	if errs.KindOf(err) != errs.Failed || !strings.Contains(err.Error(), "space") || errs.HintOf(err) == "" {
		t.Errorf("a database that cannot fit: %v", err)
	}
	keep := ipc.DefaultRetention()
	keep.MaxBytes = 1 << 20
	if _, err := d.SetApp(t.Context(), root, "shop", ipc.AppChange{Retention: &keep, Databases: &[]ipc.Database{}}); err != nil {
		t.Fatal(err)
	}
	sh(t, `rm "$1"/shop.db*; head -c 3M /dev/urandom >"$1/noise"`, w.ws())
	if _, err := d.Create(t.Context(), root, "shop", ipc.CreateRequest{Pinned: true}); err != nil {
		t.Fatal(err)
	}
	pid := w.pid(t)
	if _, err := d.Create(t.Context(), root, "shop", ipc.CreateRequest{}); errs.KindOf(err) != errs.Conflict || !strings.Contains(err.Error(), "max_bytes") {
		t.Errorf("pinned checkpoints that leave no room: %v", err)
	}
	if now := w.pid(t); now != pid {
		t.Errorf("the program was started anew: pid %s, was %s", now, pid)
	}
}

// smallDisk makes the folder dir and mounts a disk of that size there.
func smallDisk(t *testing.T, dir, size string) {
	t.Helper()
	check(t, os.Mkdir(dir, 0o755))
	check(t, unix.Mount("tmpfs", dir, "tmpfs", 0, "size="+size))
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
}

// TestFullDiskOfTheWorkspace: the disk of the workspace is full, and that of the state is not. A rollback has the room that the files take
// that it removes; one that leaves them names the command that deletes them first, and that command works.
func TestFullDiskOfTheWorkspace(t *testing.T) {
	t.Parallel()
	testkit.Need(t, "root")
	w := newWorld(t, nil)
	small := filepath.Join(w.dir, "small")
	smallDisk(t, small, "12m")
	ws := filepath.Join(small, "ws")
	sh(t, `mkdir "$1" && cd "$1" && for f in a b c; do head -c 1M /dev/urandom >$f; done && cp -r "$1" "$2/before"`, ws, w.dir)
	d := w.open(t)
	defer w.close(t, d)
	_, err := d.AddApp(t.Context(), root, ipc.App{Slug: "plain", Workspace: ws})
	check(t, err)
	cp, err := d.Create(t.Context(), root, "plain", ipc.CreateRequest{Pinned: true})
	check(t, err)
	rollback := func(req ipc.RollbackRequest) error {
		_, err := d.Rollback(t.Context(), root, "plain", cp.ID, req, nil)
		return err
	}
	overwrite := func() {
		sh(t, `cd "$1" && for f in a b c; do head -c 1M /dev/urandom >$f; done; cat /dev/urandom >fill 2>/dev/null || test -s fill`, ws)
	}
	isBefore := func(name string) bool { return read(t, ws, name) == read(t, w.dir, "before/"+name) }

	overwrite()
	err = rollback(ipc.RollbackRequest{Scope: []string{"a"}})
	want := fmt.Sprintf("`mulligan rollback %s --scope %s/a --discard %s/fill`", cp.ID, ws, ws)
	if errs.KindOf(err) != errs.Failed || !strings.Contains(errs.HintOf(err), want) || isBefore("a") {
		t.Errorf("a rollback that leaves what fills the disk: %v; its hint %q lacks %q", err, errs.HintOf(err), want)
	}
	check(t, rollback(ipc.RollbackRequest{Scope: []string{filepath.Join(ws, "a")}, Discard: []string{"fill"}}))
	if _, err := os.Lstat(filepath.Join(ws, "fill")); !os.IsNotExist(err) || !isBefore("a") || isBefore("b") {
		t.Errorf("after --discard: fill %v, a is back: %v, b is back: %v", err, isBefore("a"), isBefore("b"))
	}

	overwrite()
	other := filepath.Join(small, "other") // keeps the room of fill taken
	check(t, os.Link(filepath.Join(ws, "fill"), other))
	if err := rollback(ipc.RollbackRequest{}); !errors.Is(err, unix.ENOSPC) || isBefore("a") {
		t.Errorf("a rollback that removes one of two names of what fills the disk: %v", err)
	}
	check(t, os.Remove(other))
	check(t, rollback(ipc.RollbackRequest{}))
	if _, err := os.Lstat(filepath.Join(ws, "fill")); !os.IsNotExist(err) || !isBefore("a") || !isBefore("b") || !isBefore("c") {
		t.Errorf("a rollback on a full disk left something: fill %v", err)
	}
}

// TestFullDiskOfTheState: where the state folder has a disk of its own, which is full, nothing in the workspace makes room. No command that deletes it is
// named, and none deletes it.
func TestFullDiskOfTheState(t *testing.T) {
	t.Parallel()
	testkit.Need(t, "root")
	w := newWorld(t, nil)
	check(t, os.RemoveAll(w.state()))
	smallDisk(t, w.state(), "24m")
	d := w.open(t)
	defer w.close(t, d)
	ws := workspace(t)
	write(t, ws, "page", "before")
	_, err := d.AddApp(t.Context(), root, ipc.App{Slug: "plain", Workspace: ws})
	check(t, err)
	cp, err := d.Create(t.Context(), root, "plain", ipc.CreateRequest{Pinned: true})
	check(t, err)
	write(t, ws, "page", "after")
	write(t, ws, "new", strings.Repeat("x", 1<<20))
	sh(t, `cat /dev/zero >"$1" 2>/dev/null || test -s "$1"`, filepath.Join(w.state(), "fill"))
	for _, discard := range [][]string{nil, {"new"}} {
		_, err := d.Rollback(t.Context(), root, "plain", cp.ID, ipc.RollbackRequest{Discard: discard}, nil)
		if err == nil || strings.Contains(errs.HintOf(err), "--discard") {
			t.Errorf("discard %q: %v, %q", discard, err, errs.HintOf(err))
		}
		if got := read(t, ws, "new"); len(got) != 1<<20 || read(t, ws, "page") != "after" {
			t.Errorf("discard %q changed the workspace", discard)
		}
	}
	check(t, os.Remove(filepath.Join(w.state(), "fill")))
	_, err = d.Rollback(t.Context(), root, "plain", cp.ID, ipc.RollbackRequest{}, nil)
	check(t, err)
	if read(t, ws, "page") != "before" {
		t.Error("the rollback did not go back")
	}
}

// pid is the program's, as far as the daemon wrote it down.
func (w world) pid(t *testing.T) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(w.state(), "apps", "*", "run", "run.json"))
	if err != nil || len(found) != 1 {
		t.Fatalf("%q, %v", found, err)
	}
	b, err := os.ReadFile(found[0])
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(b), `"pid":`)
	pid, _, _ := strings.Cut(after, ",")
	return strings.TrimSpace(pid)
}

// TestDeletingOnAFullDisk: forks, checkpoints and apps can be deleted where the disk of the state folder is full to the last byte.
func TestDeletingOnAFullDisk(t *testing.T) {
	t.Parallel()
	testkit.Need(t, "root")
	w := forkWorld(t)
	smallDisk(t, w.state(), "24m")
	write(t, w.ws(), "page", "before")
	d := w.open(t)
	_, err := d.AddApp(t.Context(), root, ipc.App{Slug: "shop", Workspace: w.ws()})
	check(t, err)
	var made []ipc.CheckpointID
	for i := range 3 {
		write(t, w.ws(), "page", fmt.Sprint(i))
		cp, err := d.Create(t.Context(), root, "shop", ipc.CreateRequest{})
		check(t, err)
		made = append(made, cp.ID)
	}
	_, err = d.Fork(t.Context(), root, "shop", ipc.ForkRequest{CheckpointID: made[2]})
	check(t, err)
	keep := ipc.Retention{KeepLast: 1}
	_, err = d.SetApp(t.Context(), root, "shop", ipc.AppChange{Retention: &keep})
	check(t, err)
	w.close(t, d)
	fill := filepath.Join(w.state(), "fill")
	for _, c := range []struct {
		what string
		do   func(d *daemon.Daemon) error
	}{
		{"drop", func(d *daemon.Daemon) error { return d.DropFork(t.Context(), root, "shop", "1") }},
		{"delete", func(d *daemon.Daemon) error { return d.Delete(t.Context(), root, "shop", made[0]) }},
		{"prune", func(d *daemon.Daemon) error {
			res, err := d.Prune(t.Context(), root, "shop", false)
			if err == nil && !slices.Contains(res.Deleted, made[1]) {
				t.Errorf("the prune deletes %q", res.Deleted)
			}
			return err
		}},
		{"purge", func(d *daemon.Daemon) error { return d.RemoveApp(t.Context(), root, "shop", true) }},
	} {
		d := w.open(t) // the log of its records is new, and takes room
		waitFor(t, "the ballast is made", func() bool {
			st, err := os.Stat(filepath.Join(w.state(), "ballast"))
			return err == nil && st.Size() > 0
		})
		sh(t, `cat /dev/zero >"$1" 2>/dev/null || test -s "$1"`, fill)
		if err := c.do(d); err != nil {
			t.Errorf("%s: %v", c.what, err)
		}
		check(t, os.Remove(fill))
		w.close(t, d)
	}
}
