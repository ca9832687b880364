package daemon_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"mulligan/ipc"
	"mulligan/ipc/errs"
)

// TestLayerHeldUp: what one layer's driver left cannot be read when the daemon starts. That
// layer waits, and is shown and tried again; the others can be used, and taken back.
func TestLayerHeldUp(t *testing.T) {
	s := awayRedis(t)
	s.start(t)
	w := world{dir: worldDir(t)}
	d := w.open(t)
	defer func() { w.close(t, d) }()
	if _, err := d.AddApp(t.Context(), root, ipc.App{Slug: "shop", Workspace: w.ws(), Databases: []ipc.Database{s.db}}); err != nil {
		t.Fatal(err)
	}
	put := func(word string) {
		t.Helper()
		write(t, w.ws(), "work", word)
		s.set(t, word)
	}
	put("zero")
	cp := create(t, d)
	put("one")
	w.close(t, d)
	folders, err := filepath.Glob(filepath.Join(w.state(), "apps", "*", "db-main", "switches"))
	if err != nil || len(folders) != 1 {
		t.Fatalf("%q, %v", folders, err)
	}
	left := filepath.Join(folders[0], "op-left")
	if err := os.Mkdir(left, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(left, "plan.json"), []byte("no plan"), 0o600); err != nil {
		t.Fatal(err)
	}

	d = w.open(t)
	if p := problemsOf(t, d); !strings.Contains(p, "db:main cannot be used yet") || !strings.Contains(p, "tries again") {
		t.Errorf("the problems are %q", p)
	}
	_, err = d.Rollback(t.Context(), root, "shop", cp, ipc.RollbackRequest{}, nil)
	if err == nil || !strings.Contains(errs.HintOf(err), "--without db:main") {
		t.Fatalf("a whole rollback: %v (%s)", err, errs.HintOf(err))
	}
	if _, err := d.Create(t.Context(), root, "shop", ipc.CreateRequest{}); err == nil || !strings.Contains(err.Error(), "db:main") {
		t.Errorf("a checkpoint: %v", err)
	}
	goBack(t, d, cp, ipc.RollbackRequest{Scope: []string{"layer:files"}})
	if got := read(t, w.ws(), "work"); got != "zero" {
		t.Errorf("the files alone: work says %q", got)
	}
	goBack(t, d, ipc.Redo, ipc.RollbackRequest{})
	res := goBack(t, d, cp, ipc.RollbackRequest{Without: []string{"db:main"}})
	if got := read(t, w.ws(), "work"); got != "zero" || !slices.Equal(res.StayedBehind, []string{"db:main"}) {
		t.Errorf("without the database: work says %q, left behind %q", got, res.StayedBehind)
	}
	if got := s.get(t); got != "one" {
		t.Errorf("the database was left alone, and says %q", got)
	}

	if err := os.RemoveAll(left); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the layer is not held up", func() bool { return !strings.Contains(problemsOf(t, d), "cannot be used yet") })
	goBack(t, d, cp, ipc.RollbackRequest{})
	if got := s.get(t); got != "zero" {
		t.Errorf("the database says %q, want zero", got)
	}
}
