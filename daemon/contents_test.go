package daemon_test

import (
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mulligan/daemon"
	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/snap"
	"mulligan/testkit"
)

// TestOwnersShareNothing: one user keeps a secret, another stores the same
// content, which he guesses. Nothing that he is told is other than if his guess were
// wrong: no size, not what the store takes; and their contents are in stores apart.
func TestOwnersShareNothing(t *testing.T) {
	t.Parallel()
	state := filepath.Join(t.TempDir(), "state")
	d, err := daemon.Open(t.Context(), daemon.Options{StateDir: state})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close(t.Context())
	victim, spy := ipc.Caller{UID: 65534, PID: 2}, ipc.Caller{UID: 65533, PID: 3}
	secret, other := testkit.Bytes(t, 1<<20), testkit.Bytes(t, 1<<20)

	kept := keep(t, d, victim, "diary", secret)
	right, wrong := keep(t, d, spy, "right", secret), keep(t, d, spy, "wrong", other)
	if diff := right.SizeBytes - wrong.SizeBytes; diff > 4096 || diff < -4096 {
		t.Errorf("a right guess has %d bytes, a wrong one %d", right.SizeBytes, wrong.SizeBytes)
	}
	all, one, two := d.Status(root).StoreBytes, d.Status(victim).StoreBytes, d.Status(spy).StoreBytes
	if one < 1<<20 || one > 3<<19 || two < 2<<20 || two > 5<<19 || all < one+two {
		t.Errorf("the stores are said to have %d, %d and, to root, %d bytes", one, two, all)
	}
	for _, name := range []string{"store-65534", "store-65533"} {
		if fi, err := os.Stat(filepath.Join(state, name)); err != nil || fi.Mode().Perm() != 0o700 {
			t.Errorf("%s: %v, %v", name, fi, err)
		}
	}
	if _, err := d.Checkpoint(t.Context(), spy, "diary", kept.ID); errs.KindOf(err) != errs.NotFound {
		t.Errorf("another's checkpoint: %v", err)
	}
	if _, err := d.Rollback(t.Context(), spy, "right", kept.ID, ipc.RollbackRequest{}, nil); errs.KindOf(err) != errs.NotFound {
		t.Errorf("a rollback to another's checkpoint: %v", err)
	}
	if err := d.Delete(t.Context(), spy, "right", right.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Verify(t.Context(), victim, "diary", kept.ID, snap.Full); err != nil {
		t.Error(err)
	}
}

// TestPurgeLeavesNothing: of a purged app nothing is left in the content store: not its journal, nor the snapshots of a database that was taken out
// of the app, nor those of a layer that is held up.
func TestPurgeLeavesNothing(t *testing.T) {
	t.Parallel()
	opt := daemon.Options{StateDir: filepath.Join(t.TempDir(), "state")}
	contents := filepath.Join(opt.StateDir, "store")
	ws := workspace(t)
	write(t, ws, "file", string(testkit.Bytes(t, 1<<20)))
	main, other := ipc.Database{Name: "main", Driver: "sqlite", DSN: "main.db"}, ipc.Database{Name: "other", Driver: "sqlite", DSN: "other.db"}
	for _, db := range []ipc.Database{main, other} {
		c, err := sql.Open("sqlite", filepath.Join(ws, db.DSN))
		check(t, err)
		_, err = c.Exec(`CREATE TABLE t (secret BLOB); INSERT INTO t VALUES (randomblob(1 << 20))`)
		check(t, errs.Also(err, c.Close()))
	}
	d, err := daemon.Open(t.Context(), opt)
	check(t, err)
	defer func() { check(t, d.Close(t.Context())) }()
	a, err := d.AddApp(t.Context(), root, ipc.App{Slug: "shop", Workspace: ws, Auto: true, Databases: []ipc.Database{main, other}})
	check(t, err)
	awaitFollowing(t, d)
	create(t, d)
	_, err = d.SetApp(t.Context(), root, "shop", ipc.AppChange{Databases: &[]ipc.Database{main}})
	check(t, err)
	check(t, d.Close(t.Context()))
	all := strings.Join(rootsIn(t, contents), "\n")
	for _, kind := range []string{"files/%s/journal/", "sqlite/%s/main/", "sqlite/%s/other/"} {
		if prefix := fmt.Sprintf(kind, a.ID); !strings.Contains(all, prefix) {
			t.Fatalf("there is nothing of %s in\n%s", prefix, all)
		}
	}
	left := filepath.Join(opt.StateDir, "apps", string(a.ID), "db-main", "switches", "op-left")
	check(t, os.Mkdir(left, 0o700))
	check(t, os.WriteFile(filepath.Join(left, "plan.json"), []byte("no plan"), 0o600))
	d, err = daemon.Open(t.Context(), opt)
	check(t, err)
	if p := problemsOf(t, d); !strings.Contains(p, "db:main cannot be used yet") {
		t.Fatalf("the problems are %q", p)
	}

	check(t, d.RemoveApp(t.Context(), root, "shop", true))
	waitFor(t, "the contents are gone", func() bool { return d.Status(root).StoreBytes < 1<<20 })
	db, err := sql.Open("sqlite", "file:"+filepath.Join(opt.StateDir, "mulligan.db")+"?_pragma=busy_timeout(10000)")
	check(t, err)
	defer db.Close()
	waitFor(t, "nothing is to be removed any more", func() bool {
		var n int
		check(t, db.QueryRow(`SELECT count(*) FROM disposals`).Scan(&n))
		return n == 0
	})
	check(t, d.Close(t.Context()))
	if names := rootsIn(t, contents); len(names) > 0 {
		t.Errorf("after the purge the content store has\n%s", strings.Join(names, "\n"))
	}
}

// keep registers an app of who's with one file in it, and makes a checkpoint.
func keep(t *testing.T, d *daemon.Daemon, who ipc.Caller, slug string, content []byte) ipc.Checkpoint {
	t.Helper()
	ws := workspace(t)
	write(t, ws, "file", string(content))
	for _, p := range []string{ws, filepath.Join(ws, "file")} {
		if err := os.Chown(p, who.UID, who.UID); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := d.AddApp(t.Context(), who, ipc.App{Slug: slug, Workspace: ws}); err != nil {
		t.Fatal(fmt.Errorf("%s: %w", slug, err))
	}
	cp, err := d.Create(t.Context(), who, slug, ipc.CreateRequest{})
	if err != nil {
		t.Fatal(err)
	}
	return cp
}
