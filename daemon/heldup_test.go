package daemon_test

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"mulligan/errs"
	"mulligan/ipc"
)

// TestLayerHeldUp: what one layer's driver left cannot be read when the daemon starts. That
// layer waits, and is shown and tried again; the others can be used, and taken back.
func TestLayerHeldUp(t *testing.T) {
	t.Parallel()
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

// calledBy reports whether a function whose name ends like this called the caller.
func calledBy(name string) bool {
	pcs := make([]uintptr, 64)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs)])
	for {
		f, more := frames.Next()
		if strings.HasSuffix(f.Function, name) {
			return true
		}
		if !more {
			return false
		}
	}
}

// testFilesHeldUp: what a create that was cut short left of the files cannot be dropped when the
// daemon starts. The files wait, the database goes back, and checkpoints can be deleted and
// pruned meanwhile: what is stored of their files is dropped later.
func testFilesHeldUp(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	opt := w.options()
	var failing, held atomic.Bool
	opt.Failpoint = func(step string) error {
		switch {
		case failing.Load() && (step == "record checkpoint" || step == "append-change" && calledBy("files.(*Driver).Delete")),
			held.Load() && step == "append-change" && calledBy("files.(*Driver).Sweep"):
			return errs.New(errs.Failed, step, "no").WithHint("mend the disk")
		}
		return nil
	}
	d := w.openAs(t, opt)
	defer func() { w.close(t, d) }()
	if err := keepLast(t.Context(), d, 10); err != nil {
		t.Fatal(err)
	}
	var ids []ipc.CheckpointID
	var files []string // their snapshots' ids
	for i := range 4 {
		w.set(t, fmt.Sprint("word-", i))
		ids = append(ids, create(t, d))
		files = append(files, *listed(t, d)[0].FilesSnapshot)
	}
	w.set(t, "one")
	failing.Store(true)
	if _, err := d.Create(t.Context(), root, "shop", ipc.CreateRequest{}); err == nil {
		t.Fatal("the create was not cut short")
	}
	w.close(t, d)
	failing.Store(false)
	held.Store(true)
	d = w.openAs(t, opt)
	if p := problemsOf(t, d); !strings.Contains(p, "files cannot be used yet") || !strings.Contains(p, "mend the disk") {
		t.Errorf("the problems are %q", p)
	}
	_, err := d.Rollback(t.Context(), root, "shop", ids[3], ipc.RollbackRequest{}, nil)
	if err == nil || !strings.Contains(errs.HintOf(err), "--without files") {
		t.Fatalf("a whole rollback: %v (%s)", err, errs.HintOf(err))
	}
	if _, err := d.Create(t.Context(), root, "shop", ipc.CreateRequest{}); err == nil || !strings.Contains(err.Error(), "files") {
		t.Errorf("a checkpoint: %v", err)
	}
	for _, req := range []ipc.RollbackRequest{{Scope: []string{"layer:db"}}, {Without: []string{"files"}}} {
		goBack(t, d, ids[3], req)
		if word, err := w.sqliteSays(); err != nil || word != "word-3" {
			t.Errorf("the database says %q, %v", word, err)
		}
		if got := read(t, w.ws(), "file0"); got != "one" {
			t.Errorf("files that are held up say %q", got)
		}
		goBack(t, d, ipc.Redo, ipc.RollbackRequest{})
	}

	if err := d.Delete(t.Context(), root, "shop", ids[0]); err != nil {
		t.Errorf("delete: %v", err)
	}
	if err := keepLast(t.Context(), d, 1); err != nil {
		t.Fatal(err)
	}
	if p := problemsOf(t, d); !strings.Contains(p, "files cannot be used yet") {
		t.Errorf("a change of the app's settings ended what held its files up: %q", p)
	}
	res, err := d.Prune(t.Context(), root, "shop", false)
	if err != nil || !slices.Contains(res.Deleted, ids[1]) || !slices.Contains(res.Deleted, ids[2]) {
		t.Errorf("prune: %+v, %v", res, err)
	}
	for _, cp := range listed(t, d) {
		if slices.Contains(ids[:3], cp.ID) {
			t.Errorf("%s was deleted, and is listed", cp.ID)
		}
	}

	held.Store(false)
	waitFor(t, "the files are not held up", func() bool { return !strings.Contains(problemsOf(t, d), "cannot be used yet") })
	goBack(t, d, ids[3], ipc.RollbackRequest{})
	w.runs(t, d, "word-3")
	for _, id := range files[:3] {
		waitFor(t, "what was deleted is dropped: "+id, func() bool { return w.roots(t, id) == 0 })
	}
}
