package main

import (
	"encoding/json"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"mulligan/ipc"
	"mulligan/testkit"
)

// TestOldStore starts the daemon on a state folder that an older mulligan wrote (testdata/oldstore/make.sh): every checkpoint is
// listed, whole, and can be gone to, in both directions.
func TestOldStore(t *testing.T) {
	t.Parallel()
	testkit.Need(t, "root", "sqlite3", "xz")
	kept, err := filepath.Abs("testdata/oldstore")
	if err != nil {
		t.Fatal(err)
	}
	// The records name the workspace by this path.
	const root = "/tmp/mulligan-old-store"
	var mark net.Listener
	eventually(t, "no other run uses "+root, func() bool {
		var err error
		mark, err = net.Listen("unix", "@mulligan-test-old-store")
		return err == nil
	})
	t.Cleanup(func() { mark.Close() })
	// A run that was killed may have left the folder.
	if err := errors.Join(os.RemoveAll(root), os.Mkdir(root, 0o755)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(root) })
	output := func(dir string, args ...string) string {
		t.Helper()
		cmd := exec.Command(args[0], args[1:]...)
		cmd.Dir, cmd.Stderr = dir, os.Stderr
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%s: %v", args, err)
		}
		return string(out)
	}
	output(root, "tar", "-xpf", filepath.Join(kept, "state.tar.xz"))
	d := newDaemon(t)
	d.dir = root
	d.start()
	type listed struct {
		ID     ipc.CheckpointID `json:"checkpoint_id"`
		Notes  string           `json:"notes"`
		Pinned bool             `json:"pinned"`
	}
	read := func(b []byte) (list struct{ Checkpoints []listed }) {
		t.Helper()
		if err := json.Unmarshal(b, &list); err != nil {
			t.Fatalf("%v in %s", err, b)
		}
		return list
	}
	b, err := os.ReadFile(filepath.Join(kept, "list.json"))
	if err != nil {
		t.Fatal(err)
	}
	want := read(b).Checkpoints
	got := read([]byte(d.must("list", "--app", "shop", "--json"))).Checkpoints
	if len(want) != 3 || len(got) != len(want) {
		t.Fatalf("listed are %+v, and there were %+v", got, want)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("checkpoint %d is %+v, and was %+v", i, got[i], want[i])
		}
		d.must("verify", string(want[i].ID), "--app", "shop")
	}
	// The newest is the safety checkpoint, of the third state.
	for _, to := range []struct {
		id    ipc.CheckpointID
		state string
	}{{want[1].ID, "two"}, {want[0].ID, "three"}, {want[2].ID, "one"}, {want[1].ID, "two"}} {
		d.must("rollback", string(to.id), "--app", "shop")
		is := output(filepath.Join(root, "ws"), "bash", filepath.Join(kept, "listing.sh"))
		was, err := os.ReadFile(filepath.Join(kept, to.state+".txt"))
		if err != nil {
			t.Fatal(err)
		}
		if is != string(was) {
			t.Errorf("%s is\n%s\nand was\n%s", to.state, is, was)
		}
	}
}
