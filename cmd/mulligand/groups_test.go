package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"mulligan/ipc"
	"mulligan/testkit"
)

// TestFileOfAnotherGroup has a user's own daemon protect a folder with a file that this user may
// not give to its group again: init, create and doctor say so with what to do. A rollback that has
// nothing to give goes through; one that has is refused before it does anything, and names the way.
func TestFileOfAnotherGroup(t *testing.T) {
	t.Parallel()
	testkit.Need(t, "root")
	d := newDaemon(t)
	ws := filepath.Join(d.dir, "ws")
	for _, err := range []error{
		os.Mkdir(ws, 0o755),
		os.WriteFile(filepath.Join(ws, "mine"), []byte("zero"), 0o644),
		os.WriteFile(filepath.Join(ws, "theirs"), []byte("zero"), 0o664),
		os.Chown(d.dir, stranger, stranger), os.Chown(ws, stranger, stranger), os.Chown(filepath.Join(ws, "mine"), stranger, stranger),
		os.Chown(filepath.Join(ws, "theirs"), stranger, 4711),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	d.cred = &syscall.Credential{Uid: stranger, Gid: stranger}
	d.start()
	says := func(what, said string) {
		t.Helper()
		if !strings.Contains(said, "theirs") {
			t.Errorf("%s says nothing of the file: %s", what, said)
		}
	}
	out, errOut, code := d.mulligan("init", ws, "--slug", "shop", "--yes")
	if code != 0 {
		t.Fatalf("init: %s%s", out, errOut)
	}
	says("init", out+errOut)
	cp := ask[ipc.Checkpoint](d, "create", "--app", "shop")
	says("create", strings.Join(cp.Warnings, "\n"))
	out, errOut, _ = d.mulligan("doctor")
	says("doctor", out+errOut)
	change := func(name string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(ws, name), []byte("one"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	holds := func(name, want string) {
		t.Helper()
		if text, err := os.ReadFile(filepath.Join(ws, name)); err != nil || string(text) != want {
			t.Errorf("%s says %q, %v; want %q", name, text, err, want)
		}
	}
	change("mine")
	d.must("rollback", string(cp.ID), "--app", "shop")
	holds("mine", "zero")

	change("mine")
	change("theirs")
	before := len(ask[ipc.CheckpointList](d, "list", "--app", "shop").Checkpoints)
	_, errOut, code = d.mulligan("rollback", string(cp.ID), "--app", "shop")
	if code != 5 || !strings.Contains(errOut, "theirs") || !strings.Contains(errOut, "a scope that leaves it out") {
		t.Errorf("a rollback that would have to give the file to its group ends with %d: %s", code, errOut)
	}
	holds("mine", "one")
	if n := len(ask[ipc.CheckpointList](d, "list", "--app", "shop").Checkpoints); n != before {
		t.Errorf("the refused rollback left %d checkpoints, there were %d", n, before)
	}
	d.must("rollback", string(cp.ID), "--app", "shop", "--scope", filepath.Join(ws, "mine"))
	holds("mine", "zero")
	holds("theirs", "one")
}
