package daemon_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/testkit"
)

// TestDoesNotFit asks for checkpoints that cannot fit: the program is not even stopped.
func TestDoesNotFit(t *testing.T) {
	t.Parallel()
	testkit.Need(t, "root")
	w := newWorld(t, nil)
	small := filepath.Join(w.dir, "small")
	sh(t, `mkdir "$1"`, small)
	if err := unix.Mount("tmpfs", small, "tmpfs", 0, "size=24m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(small, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
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
