package daemon_test

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"mulligan/daemon"
	"mulligan/ipc"
	"mulligan/snap"
	"mulligan/snap/postgres/pgtest"
)

// testDryRun compares everything that there is before and after a dry run, and
// what was foreseen with what a rollback then does.
func testDryRun(t *testing.T) {
	t.Parallel()
	c := pgtest.Start(t, pgtest.Options{Dir: quickDir(t), Settings: map[string]string{"autovacuum": "off"}}) // it would count as a transaction
	w := newWorld(t, c)
	d := w.open(t)
	defer w.close(t, d)
	exclude := []string{"*.log"}
	if _, err := d.SetApp(t.Context(), root, "shop", ipc.AppChange{Exclude: &exclude}); err != nil {
		t.Fatal(err)
	}
	cp, err := d.Create(t.Context(), root, "shop", ipc.CreateRequest{})
	if err != nil {
		t.Fatal(err)
	}
	w.set(t, "later")
	for range 2 { // what the first may find out may not change the second either
		before, trail := w.everything(t, d, c), trailLen(t, d)
		res, err := d.Rollback(t.Context(), root, "shop", cp.ID, ipc.RollbackRequest{DryRun: true, Reason: "why not"}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if after := w.everything(t, d, c); !slices.Equal(after, before) {
			t.Fatalf("a dry run changed something:\n%s\n\n%s", strings.Join(before, "\n"), strings.Join(after, "\n"))
		}
		if n := trailLen(t, d); n != trail {
			t.Errorf("the audit trail has %d entries, had %d", n, trail)
		}
		foreseen(t, res)
	}
	real, err := d.Rollback(t.Context(), root, "shop", cp.ID, ipc.RollbackRequest{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	again, err := d.Rollback(t.Context(), root, "shop", real.SafetyCheckpoint.ID, ipc.RollbackRequest{DryRun: true}, nil)
	if err != nil || again.Preview.DowntimeMS == nil || *again.Preview.DowntimeMS <= 0 || again.ChangesTotal != real.ChangesTotal {
		t.Errorf("the way back: %+v, %v", again.Preview, err)
	}
}

// foreseen checks what a dry run from the state later to the state zero says.
func foreseen(t *testing.T, res ipc.RollbackResult) {
	t.Helper()
	p := res.Preview
	if res.RolledBack || !res.DryRun || p == nil || !p.StopsUnit || p.DowntimeMS != nil || len(p.Layers) != 3 {
		t.Fatalf("%+v, %+v", res, p)
	}
	for i, want := range []ipc.LayerPreview{
		{Layer: "files", Create: 3, Modify: 12, Delete: 3}, {Layer: "db:shop", Modify: 1}, {Layer: "db:main", Modify: 1},
	} {
		got := p.Layers[i]
		if got.Layer != want.Layer || got.Create != want.Create || got.Modify != want.Modify || got.Delete != want.Delete || len(got.Changes) == 0 {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
	if !slices.ContainsFunc(p.NotCovered, func(s string) bool { return strings.Contains(s, "*.log") }) {
		t.Errorf("not covered: %q", p.NotCovered)
	}
}

func trailLen(t *testing.T, d *daemon.Daemon) int {
	t.Helper()
	list, err := d.Audit(t.Context(), root, "shop", 0, false)
	if err != nil {
		t.Fatal(err)
	}
	return len(list.Entries)
}

// everything is all that a dry run could have changed: the workspace to the
// times of its files, the daemon's own state, and the server's databases and
// the number of its transactions that wrote something. Of the content store it
// is what the checkpoints hold: to be compared, the present is read into it, and
// is garbage there at once.
func (w world) everything(t *testing.T, d *daemon.Daemon, c *pgtest.Cluster) []string {
	t.Helper()
	lines := w.touched(t)
	err := filepath.WalkDir(w.state(), func(p string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() || filepath.Ext(p) == ".seg" || e.Name() == "ballast" {
			return err
		}
		b, err := os.ReadFile(p)
		lines = append(lines, fmt.Sprintf("%s %x", p, sha256.Sum256(b)))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, cp := range listed(t, d) {
		res, err := d.Verify(t.Context(), root, "shop", cp.ID, snap.Full)
		if err != nil || !res.OK {
			t.Fatalf("%+v, %v", res, err)
		}
		about, err := json.Marshal(cp)
		if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, string(about))
	}
	return append(lines, c.Psql(t, "postgres", `SELECT datname FROM pg_database ORDER BY 1`),
		c.Psql(t, filepath.Base(w.dir), `SELECT pg_snapshot_xmax(pg_current_snapshot())`))
}
