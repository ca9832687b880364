package daemon_test

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"mulligan/errs"
	"mulligan/ipc"
	"mulligan/testkit"
)

// TestWorktree: that a worktree's repository is not captured is said when it is
// registered, by each checkpoint that a person makes, and by a dry run; not by turns'.
func TestWorktree(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	opt := w.options()
	opt.AgentWait = testkit.Patience // the turn begins when the files are read, however long that takes
	d := w.openAs(t, opt)
	defer w.close(t, d)
	ctx := t.Context()
	elsewhere := filepath.Join(w.dir, "repo/.git/worktrees/ws")
	if a, err := d.AppWithGaps(ctx, root, "shop"); err != nil || len(a.Gaps) != 0 {
		t.Fatalf("nothing is missing: %+v, %v", a.Gaps, err)
	}
	if err := os.WriteFile(filepath.Join(w.ws(), ".git"), []byte("gitdir: "+elsewhere+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	a, err := d.AppWithGaps(ctx, root, "shop")
	if err != nil || len(a.Gaps) != 1 || !strings.Contains(a.Gaps[0].What, elsewhere) || a.Gaps[0].Remedy == "" || a.Gaps[0].Blocks {
		t.Fatalf("%+v, %v", a.Gaps, err)
	}
	says := func(words []string) bool { return strings.Contains(strings.Join(words, "\n"), elsewhere) }
	cp, err := d.Create(ctx, root, "shop", ipc.CreateRequest{})
	if err != nil || !says(cp.Warnings) {
		t.Fatalf("the checkpoint's warnings: %q, %v", cp.Warnings, err)
	}
	dry, err := d.Rollback(ctx, root, "shop", cp.ID, ipc.RollbackRequest{DryRun: true}, nil)
	if err != nil || !says(dry.Preview.NotCovered) {
		t.Fatalf("the dry run: %+v, %v", dry.Preview, err)
	}
	yes := true
	if _, err := d.SetApp(ctx, root, "shop", ipc.AppChange{Auto: &yes}); err != nil {
		t.Fatal(err)
	}
	turn, err := d.BeginTurn(ctx, root, "shop", ipc.BeginTurn{TurnID: "t1"})
	if err == nil {
		w.setFiles(t, "one")
		turn, err = d.EndTurn(ctx, root, "shop", "t1")
	}
	if err != nil || turn.CheckpointID == nil {
		t.Fatalf("%+v, %v", turn, err)
	}
	of, err := d.Checkpoint(ctx, root, "shop", *turn.CheckpointID)
	if err != nil || says(of.Warnings) {
		t.Errorf("the turn's checkpoint says it again: %q, %v", of.Warnings, err)
	}
}

// testForeseen: what Prepare would refuse for its rights is refused before the safety
// checkpoint is begun.
func testForeseen(t *testing.T) {
	t.Parallel()
	testkit.Need(t, "root")
	w := newWorld(t, nil)
	opt := w.options()
	var mu sync.Mutex
	var steps []string
	opt.Failpoint = func(step string) error {
		mu.Lock()
		defer mu.Unlock()
		steps = append(steps, step)
		return nil
	}
	d := w.openAs(t, opt)
	defer w.close(t, d)
	ctx := t.Context()
	if _, err := d.SetApp(ctx, root, "shop", ipc.AppChange{Exclude: &[]string{"*.log"}}); err != nil {
		t.Fatal(err)
	}
	sh(t, `mkdir "$1/folder" && echo x >"$1/folder/f" && chown -R 4711:4711 "$1/folder"`, w.ws())
	cp, err := d.Create(ctx, root, "shop", ipc.CreateRequest{})
	if err != nil {
		t.Fatal(err)
	}
	sh(t, `chown -R 4712:4712 "$1/folder" && echo x >"$1/folder/its.log"`, w.ws())
	before := idsOf(listed(t, d))
	for _, dry := range []bool{true, false} {
		mu.Lock()
		steps = nil
		mu.Unlock()
		_, err = d.Rollback(ctx, root, "shop", cp.ID, ipc.RollbackRequest{DryRun: dry}, nil)
		if errs.KindOf(err) != errs.Conflict || !strings.Contains(err.Error(), filepath.Join(w.ws(), "folder")) {
			t.Fatalf("dry=%v: a folder that changes hands with an excluded file in it: %v", dry, err)
		}
		mu.Lock()
		for _, s := range steps {
			if strings.HasPrefix(s, "stage ") || strings.HasPrefix(s, "capture ") || strings.HasPrefix(s, "plan ") {
				t.Errorf("dry=%v: %q came before the refusal", dry, s)
			}
		}
		mu.Unlock()
	}
	if after := idsOf(listed(t, d)); len(after) != len(before) {
		t.Errorf("checkpoints before %v, after %v", before, after)
	}
	if err := unix.Unlink(filepath.Join(w.ws(), "folder/its.log")); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Rollback(ctx, root, "shop", cp.ID, ipc.RollbackRequest{}, nil); err != nil {
		t.Fatal(err)
	}
}
